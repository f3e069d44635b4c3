"""How near a word is to the visual tokens that it means, layer by layer (Eq. 10, 15, 18-21).

The paper's theorems speak of a word and the visual tokens that it means. Means over all pairs say
little of them: nearly all pairs are irrelevant. Here a box says which tokens are relevant. One
sample a forward; each layer is reduced to a cosine and a score a visual token while it is there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError
from normprobe.extensions.pictures.sample_tables import (
    LEFT_OUT,
    left_out_table,
    measured_rows,
)
from normprobe.hooks import attached, observing, on_input, on_output, run_until
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.on_device import moved_to
from normprobe.model.attention_weights import watching_attention
from normprobe.model.find.overrides import CROSS_ATTENTION
from normprobe.model.first_forward import check_forward
from normprobe.model.image_places import Array, PlacesUnknown, image_places, share_inside
from normprobe.model.measured_model import MeasuredModel
from normprobe.model.token_places import text_after_image, tokens_of_word
from normprobe.schema import TOKEN_GROUPS, VISUAL
from normprobe.statistics.attention_rows import cosines_to_word, region_means
from normprobe.statistics.resampling import Resampled, Together, add_intervals
from normprobe.tensors import to_host
from normprobe.tidy import Numbers, declared, tidy

#: What is measured of a word and a visual token.
QUANTITIES = ("cosine", "score")
#: Where the visual token lies, and inside - outside.
SIDES = ("inside", "outside", "gap")


@dataclass(frozen=True)
class SeenGrounding:
    """What one forward leaves, on its way to the CPU."""

    layers: int  # how many the decoder has
    # ``[visual tokens]`` which share of each place lies in the box; NaN: the token shows none of
    # the image
    inside: Array
    scored: Sequence[int] = ()  # the layers with a score
    # ``[visual tokens]`` of the layers from 0 the cosine, then of ``scored`` the score
    arrived: Callable[[], list[NDArray[Any]]] = list
    left_out: str = ""  # why the sample was not measured; empty: it was


def observer(
    model: MeasuredModel, builder: InputBuilder
) -> Callable[[Mapping[str, Any], Sequence[Sample]], SeenGrounding]:
    """What measures one sample after another.

    Where the visual tokens lie is derived and tested once for each picture size, on the first
    picture of that size: seventeen runs of what comes before the decoder.
    """
    if model.parts.fusion == CROSS_ATTENTION:
        raise _without_places("the text attends to visual states that are no rows of its sequence")
    places: dict[tuple[int, int], Array | str] = {}

    def observe(inputs: Mapping[str, Any], samples: Sequence[Sample]) -> SeenGrounding:
        (sample,) = samples
        if sample.referent is None or sample.image is None:
            raise NormprobeError(
                f"{sample.id} says no word and box",
                "pass --data boxes, JSON lines with word and box, or RefCOCO as JSON",
            )
        check_forward(model, inputs)
        batch = model.batch(inputs)
        groups = batch.groups_at(model.decoder_input(inputs))[0].cpu()
        visual = groups == TOKEN_GROUPS.index(VISUAL)
        size = sample.image.size
        if size not in places:
            is_first = not places
            places[size] = _places(model, builder, sample, visual)
            if is_first and isinstance(found := places[size], str):
                raise _without_places(found)
        text, ids = text_after_image(batch, groups)
        word = text[tokens_of_word(sample.referent.word, ids, builder.tokenizer.decode)]
        inside = _inside(places[size], sample, int(visual.sum()))
        if isinstance(inside, str) or not len(word):
            reason = inside if isinstance(inside, str) else "the word is not in the model's text"
            return SeenGrounding(len(model.decoder_layers), np.empty(0), left_out=reason)
        return seen_of(model, inputs, word, visual.nonzero().flatten(), inside)

    return observe


def seen_of(
    model: MeasuredModel, inputs: Mapping[str, Any], word: Tensor, visual: Tensor, inside: Array
) -> SeenGrounding:
    """One forward up to the last decoder layer.

    Args:
        model: on any device.
        inputs: of one sample.
        word: ``[word tokens]`` positions at the decoder input, ascending.
        visual: ``[visual tokens]`` positions, likewise.
        inside: as in ``SeenGrounding``.
    """
    layers = model.decoder_layers
    cosines: dict[int, Tensor] = {}
    scores: dict[int, Tensor] = {}
    heads: dict[int, int] = {}

    def read(number: int, state: Tensor) -> None:
        chosen = (positions.to(state.device) for positions in (word, visual))
        cosines[number] = cosines_to_word(model.read_stream(state)[0], *chosen)

    def see(layer: int, _: str, start: int, weights: Tensor, before: Tensor | None) -> None:
        del start, weights
        if before is None:  # a model that returns its weights keeps its scores to itself
            return
        by_token = before[..., visual.to(before.device)].sum(dim=(0, 1))
        scores[layer] = scores[layer] + by_token if layer in scores else by_token
        heads[layer] = heads.get(layer, 0) + before.shape[0] * before.shape[1]

    assert model.parts.decoder_layers is not None
    handles = [on_input(layers[0], partial(read, 0))]
    handles += [on_output(layer, partial(read, n)) for n, layer in enumerate(layers, start=1)]
    with (
        observing(model.model),
        attached(*handles),
        watching_attention(model.parts.decoder_layers, word, see),
    ):
        run_until(model.model, moved_to(model.model, inputs), leaving=layers[-1])
    means = [scores[layer] / heads[layer] for layer in sorted(scores)]
    by_layer = [cosines[number] for number in range(len(layers) + 1)]
    return SeenGrounding(len(layers), inside, sorted(scores), to_host([*by_layer, *means]))


def rows(seen: SeenGrounding, sample_ids: Sequence[str] | None) -> pd.DataFrame:
    """One row a layer."""
    (sample_id,) = sample_ids or ["0"]
    numbers = [f"{quantity}_{side}" for quantity in QUANTITIES for side in SIDES]
    named = {"sample_id": sample_id, LEFT_OUT: seen.left_out}
    if seen.left_out:
        return pd.DataFrame([{**named, "layer": 0, **dict.fromkeys(numbers, np.nan)}])
    arrived = seen.arrived()
    cosines, scores = arrived[: seen.layers + 1], arrived[seen.layers + 1 :]
    by_layer = {
        "cosine": dict(enumerate(cosines)),
        "score": dict(zip(seen.scored, scores, strict=True)),
    }
    found = []
    for layer in range(seen.layers + 1):
        row: dict[str, Any] = {**named, "layer": layer}
        for quantity in QUANTITIES:
            values = _sides(by_layer[quantity].get(layer), seen.inside)
            row |= {f"{quantity}_{side}": value for side, value in zip(SIDES, values, strict=True)}
        found.append(row)
    return pd.DataFrame(found)


def _sides(by_token: NDArray[Any] | None, inside: Array) -> tuple[float, float, float]:
    """Mean inside, outside, and the gap; NaN where a token has no number."""
    if by_token is None:
        return (np.nan,) * 3
    shown = np.isfinite(inside)
    values = torch.from_numpy(by_token[shown]), torch.from_numpy(inside[shown])
    signal, noise = region_means(*values)
    gap = signal - noise
    return (signal, noise, gap) if np.isfinite(gap) else (np.nan,) * 3


def _places(
    model: MeasuredModel, builder: InputBuilder, sample: Sample, visual: Tensor
) -> Array | str:
    """The place of each visual token, or why it is unknown."""
    assert sample.image is not None
    try:
        boxes, _ = image_places(
            model,
            lambda picture: builder.build([replace(sample, images=(picture,))]),
            sample.image,
            visual.numpy(),
        )
    except PlacesUnknown as unknown:
        return str(unknown)
    return boxes


def _inside(places: Array | str, sample: Sample, tokens: int) -> Array | str:
    """Which share of each token's place lies in the box, or why that says nothing."""
    assert sample.referent is not None and sample.image is not None
    if isinstance(places, str):
        return places
    if len(places) != tokens:
        return "the number of visual tokens depends on more than the image's size"
    inside = share_inside(places, sample.referent.box, sample.image.size)
    shows = (places[:, 2] > places[:, 0]) & (places[:, 3] > places[:, 1])
    if not inside.any():
        return "no visual token looks into the box"
    if inside[shows].min() == 1:
        return "every visual token lies in the box"
    return np.where(shows, inside, np.nan)


def _without_places(reason: str) -> NormprobeError:
    return NormprobeError(
        f"where the visual tokens lie in the picture is unknown: {reason}",
        "`normprobe layers` and `normprobe attention` work without places",
    )


_MEANS = tuple(f"{quantity}_{side}" for quantity in QUANTITIES for side in SIDES)


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Everything that a run of ``grounding`` contains."""
    remedy = "pass other --data, with boxes around parts of the picture"
    measured = measured_rows(rows, "measured", remedy)
    return {"grounding": grounding_table(measured), **left_out_table(rows)}


def grounding_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Sample rows to grounding.csv: means over samples, intervals by a bootstrap over images."""
    by_layer = rows.groupby("layer")
    means, counts = by_layer[list(_MEANS)].mean(), by_layer[list(_MEANS)].count()
    cells = means.index.to_frame(index=False)
    numbers: Numbers = {
        name: {"mean": means[name].to_numpy(), "samples": counts[name].to_numpy()}
        for name in _MEANS
    }
    resampled = Resampled(cells, rows, ["layer"])
    drawn = {(name, "mean"): resampled.means(name, by_tokens=False) for name in _MEANS}
    held = {(name, "mean"): resampled.holding(name) for name in _MEANS}
    together = [Together([f"{quantity}_gap"]) for quantity in QUANTITIES]
    table = declared(__package__)["grounding"]
    add_intervals(numbers, drawn, resampled.units, held, together, table=table)
    return tidy(cells, numbers)
