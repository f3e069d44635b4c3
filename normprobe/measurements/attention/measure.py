"""``attention``: how text attends to the image, layer by layer (Appendix G).

One forward of one prompt. Each layer's attention is reduced while it is there: the rows of the
asked text tokens, chunk by chunk, to a few numbers a head and row and one map over the image.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from transformers import BatchFeature

from normprobe.data.region import Box, spans_of_word
from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError
from normprobe.hooks import observing, run_until
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.on_device import inputs_for
from normprobe.model.attention_weights import watching_attention
from normprobe.model.depths import layers_of_all_depths
from normprobe.model.find.overrides import CROSS_ATTENTION
from normprobe.model.image_places import Array, Build, PlacesUnknown, image_places, share_inside
from normprobe.model.measured_model import MeasuredModel
from normprobe.model.word_positions import (
    Decode,
    text_after_image,
    tokens_of_word,
)
from normprobe.schema import IMAGE, TOKEN_GROUPS, VISUAL
from normprobe.statistics.attention_rows import score_gap, signal_to_noise, visual_attention

#: The query of all text tokens after the image; the others are words of the prompt.
ALL_TEXT = "all text"

#: Attention modules inside a decoder layer whose keys are states of the vision encoder.
_CROSS = re.compile(r"cross|encoder|enc_")

_SHOWN = 4  # heat maps a query, where no layers are chosen

_NUMBERS = ("share", "even_share", "entropy")

_ASK = "output_attentions"


class MeasuredAttention(NamedTuple):
    """What ``measure_attention`` finds.

    Attributes:
        table: the rows of attention.csv, one a layer and query.
        heatmaps: the rows of heatmaps.csv, one a layer, query and visual token: the token's place
            as fractions of the image, and the attention it receives; with several images also the
            number of its image. None: places are unknown.
        images: with several images the rows of images.csv, one a layer, query and image: how much
            of the attention falls on its tokens. None: one image, or they cannot be told apart.
        places: for each image, how well the model confirmed the places, the correlation of where
            the image was changed with which tokens reacted; or why they are unknown.
    """

    table: pd.DataFrame
    heatmaps: pd.DataFrame | None
    images: pd.DataFrame | None
    places: list[float | str]


def check_request(
    builder: InputBuilder,
    sample: Sample,
    words: Sequence[str],
    layers: Sequence[int],
    box: Box | None,
    *,
    decoder_layers: int | None,
) -> None:
    """Refuse what can be refused before a weight is read.

    Args:
        builder: of the model's inputs.
        sample: with an image.
        words: as in ``measure_attention``, like the two that follow.
        layers: likewise.
        box: likewise.
        decoder_layers: how many the model has; None: not known yet.

    Raises:
        NormprobeError: a layer, word or box that is not there.
    """
    _check_box(box, sample.images)
    if decoder_layers is not None:
        _check_layers(layers, decoder_layers)
    if not words or builder.inputs_file.build is not None:  # that may ask the model
        return
    ids = builder.build([sample])["input_ids"][0].tolist()
    for word in words:
        if not spans_of_word(word, builder.tokenizer.decode(ids)):
            raise _absent(word, sample.prompt)


def attention_of(
    model: MeasuredModel,
    builder: InputBuilder,
    sample: Sample,
    *,
    words: Sequence[str] = (),
    layers: Sequence[int] = (),
    box: Box | None = None,
) -> MeasuredAttention:
    """Measure how the text of a sample attends to its images.

    Args:
        model: on its device.
        builder: makes the model's inputs of the sample.
        sample: with an image, or several.
        words: as in ``measure_attention``, like ``box``.
        layers: likewise; none: a few of all depths.
        box: likewise.

    Raises:
        NormprobeError: as ``measure_attention``.
    """
    return measure_attention(
        model,
        lambda pictures: builder.build([replace(sample, images=tuple(pictures))]),
        sample.images,
        decode=builder.tokenizer.decode,
        words=words,
        layers=layers or layers_of_all_depths(len(model.decoder_layers), _SHOWN),
        box=box,
    )


def measure_attention(
    model: MeasuredModel,
    build: Callable[[Sequence[Image.Image]], Mapping[str, Any]],
    images: Sequence[Image.Image],
    *,
    decode: Decode,
    words: Sequence[str] = (),
    layers: Sequence[int] = (),
    box: Box | None = None,
) -> MeasuredAttention:
    """Measure how the text of one prompt attends to its images.

    Args:
        model: on its device.
        build: makes the model's inputs of pictures; the prompt is part of it.
        images: RGB, in the order of the prompt.
        decode: of the tokenizer.
        words: words or phrases of the prompt, each a query of its own beside all text.
        layers: whose heat maps to keep, from 1; none given: all.
        box: the target region.

    Returns:
        Numbers for every layer, heat maps for the chosen ones. ``share`` is the attention on
        visual tokens, ``even_share`` what it would be if each row spread evenly over the tokens it
        may see, ``entropy`` that of the weights on visual tokens, renormalised, over the logarithm
        of their number. Means and population deviations are over heads and the query's tokens.
        ``signal_to_noise`` is a visual token's mean attention inside the box over that outside,
        ``score_gap`` its mean score before the softmax inside minus outside (Eq. 21); empty where
        the model returns its weights itself.

    Raises:
        NormprobeError: a layer, word or box that is not there, a box with no visual token inside
            or outside, or with several images, a prompt without text after its image, or attention
            that cannot be watched.
    """
    decoder_layers = model.decoder_layers
    _check_layers(layers, len(decoder_layers))
    _check_box(box, images)

    inputs = inputs_for(model.model, BatchFeature(dict(build(images))))
    batch = model.batch(inputs)
    at_entry = batch.groups_at(model.decoder_input(inputs))
    # The groups of the one sample at the decoder input, [positions], on the CPU.
    groups = at_entry[0].cpu()
    queries = _queries(model, inputs, groups, decode, words)
    positions = torch.unique(torch.cat(list(queries.values())))
    attends = model.parts.fusion == CROSS_ATTENTION
    visual = None if attends else groups == TOKEN_GROUPS.index(VISUAL)
    members = torch.stack([torch.isin(positions, query) for query in queries.values()])
    reader = _Reader(visual, members)
    assert model.parts.decoder_layers is not None
    with (
        observing(model.model),
        watching_attention(model.parts.decoder_layers, positions, reader.see),
    ):
        run_until(model.model, inputs, leaving=decoder_layers[-1])
        if not reader.maps and _ASK in signature(model.model.forward).parameters:
            # Attention of its own may return its weights only where it is asked.
            run_until(model.model, {**inputs, _ASK: True}, leaving=decoder_layers[-1])
    if not reader.maps:
        raise NormprobeError(
            f"the attention of {model} to visual tokens cannot be watched: inside "
            "its decoder layers nothing calls the AttentionInterface or returns weights",
            "try --attn-implementation eager; attention between the layers is not supported",
        )

    own = _own_tokens(visual, batch.images_at(at_entry), len(images))
    places = [
        _places(
            model,
            partial(_with_other, build, images, place),
            image,
            None if own is None else own[place],
        )
        for place, image in enumerate(images)
    ]
    boxes = places[0][0]
    inside = None if box is None or boxes is None else _share_inside(boxes, box, images[0].size)
    table, shares, heatmaps = [], [], []
    for number in range(1, len(decoder_layers) + 1):
        for name, numbers, by_token, scores in reader.results(number, list(queries)):
            row = {"layer": number, "query": name, **numbers}
            row |= {"signal_to_noise": np.nan, "score_gap": np.nan}
            if by_token is not None and scores is not None and inside is not None:
                row["signal_to_noise"] = signal_to_noise(by_token, inside)
                row["score_gap"] = score_gap(scores, inside)
            table.append(row)
            if by_token is None:
                continue
            parts = by_token.reshape(len(images), -1) if own is None else _parts(by_token, own)
            for image, (part, (boxes, _)) in enumerate(zip(parts, places, strict=True), start=1):
                row = {"layer": number, "query": name, IMAGE: image}
                visible = len(part) if own is not None else int((part > 0).sum())
                shares.append({**row, "visual_tokens": visible, "share_mean": float(part.sum())})
                if boxes is not None and number in (layers or (number,)):
                    heatmaps.append(_heatmap(row, boxes, part))
    several = len(images) > 1
    drawn = pd.concat(heatmaps, ignore_index=True) if heatmaps else None
    return MeasuredAttention(
        pd.DataFrame(table),
        drawn if drawn is None or several else drawn.drop(columns=IMAGE),
        pd.DataFrame(shares) if several else None,
        [found for _, found in places],
    )


class _Reader:
    """Keeps a few numbers a head and row, and two maps a query, of each layer's attention.

    Attributes:
        maps: by layer, ``[queries, visual tokens]``: weights summed over heads and tokens.
    """

    def __init__(self, visual: Tensor | None, members: Tensor) -> None:
        self.maps: dict[int, Tensor] = {}
        self._scores: dict[int, Tensor] = {}  # like the maps, before the softmax; NaN: not known
        self._visual = visual  # [keys] bool; None: every key of cross-attention is visual
        self._members = members  # [queries, rows] bool: which rows are a query's
        # By layer and attention module: [numbers, heads, rows], in chunks of rows.
        self._numbers: dict[int, dict[str, list[Tensor]]] = defaultdict(lambda: defaultdict(list))

    def see(
        self, layer: int, name: str, start: int, weights: Tensor, scores: Tensor | None
    ) -> None:
        """Take rows ``[heads, rows, keys]``, the first of which has the number ``start``."""
        heads, rows, keys = weights.shape
        if self._visual is None:
            if not _CROSS.search(name):
                return  # text attends to itself
            visual = weights.new_ones(keys, dtype=torch.bool)
        else:
            visual = self._visual.to(weights.device)
        if len(visual) != keys:
            raise NormprobeError(
                f"decoder layer {layer} ({name}) attends to {keys} keys; expected {len(visual)}, "
                "one for each position",
                "open an issue with the model type",
            )
        seen = visual_attention(weights, visual)
        numbers = torch.stack([seen.share, seen.even_share, seen.entropy])
        self._numbers[layer][name].append(numbers.cpu())
        members = self._members[:, start : start + rows].to(seen.by_key)
        added = (heads * members @ seen.by_key).cpu()
        of_scores = torch.full_like(added, torch.nan)
        if scores is not None:
            by_key = scores[..., visual].sum(dim=0)
            # No product with zeros: a key that a row of another query cannot see is -inf.
            of_queries = [by_key[member.bool()].sum(dim=0) for member in members]
            of_scores = torch.stack(of_queries).cpu()
        for kept, more in ((self.maps, added), (self._scores, of_scores)):
            kept[layer] = kept[layer] + more if layer in kept else more

    def results(
        self, layer: int, queries: Iterable[str]
    ) -> "Iterable[tuple[str, dict[str, float], Tensor | None, Tensor | None]]":
        """Of each query its name, its numbers by column, and its mean weight and score a token."""
        for place, query in enumerate(queries):
            members = self._members[place]
            if layer not in self.maps:  # a layer without softmax attention, or without visual keys
                yield query, {"heads": 0, "tokens": int(members.sum())}, None, None
                continue
            numbers = torch.cat([torch.cat(m, -1) for m in self._numbers[layer].values()], dim=1)
            heads = numbers.shape[1]
            by_token, scores = (
                kept[layer][place].double() / (heads * members.sum())
                for kept in (self.maps, self._scores)
            )
            # Of empty tiles, which a mask hides from all text, none is counted.
            visible = len(by_token) if self._visual is not None else int((by_token > 0).sum())
            columns: dict[str, float] = {
                "heads": heads,
                "tokens": int(members.sum()),
                "visual_tokens": visible,
            }
            for name, values in zip(_NUMBERS, numbers[..., members].double().numpy(), strict=True):
                if name == "entropy":  # of a single token it says nothing
                    values = values / (np.log(visible) or np.nan)
                known = values[np.isfinite(values)]
                columns[f"{name}_mean"] = known.mean() if known.size else np.nan
                if name != "even_share":
                    columns[f"{name}_std"] = known.std() if known.size else np.nan
            yield query, columns, by_token, scores


def _queries(
    model: MeasuredModel,
    inputs: Mapping[str, Any],
    groups: Tensor,
    decode: Decode,
    words: Sequence[str],
) -> dict[str, Tensor]:
    """The rows of each query, ascending. A causal row before the image cannot see it."""
    text, ids = text_after_image(model, inputs, groups)
    queries = {ALL_TEXT: text}
    for word in words:
        queries[word] = text[tokens_of_word(word, ids, decode)]
        if not len(queries[word]):
            raise _absent(word, decode(ids))
    return queries


def _absent(word: str, text: str) -> NormprobeError:
    return NormprobeError(
        f"--word: {word!r} is not in the text after the image: {' '.join(text.split())[:200]}",
        "pass a whole word or phrase of the prompt",
    )


def _own_tokens(
    visual: Tensor | None, numbers: Tensor | None, images: int
) -> list[NDArray[np.bool_]] | None:
    """The visual tokens of each image, ``[positions]``; None: they are no rows of the sequence.

    States that text attends to follow each other image by image, with equally many of each.
    """
    if visual is None:
        return None
    if images == 1 or numbers is None:
        return [visual.numpy()]
    if not bool(numbers.any()):
        raise NormprobeError(
            "the images of the prompt cannot be told apart in what the processor returns",
            "ask about one image",
        )
    return [(numbers[0] == number).cpu().numpy() for number in range(1, images + 1)]


def _parts(by_token: Tensor, own: Sequence[NDArray[np.bool_]]) -> list[Tensor]:
    """What of a map over all visual tokens belongs to each image."""
    visual = np.any(own, axis=0)
    return [by_token[torch.from_numpy(mask[visual])] for mask in own]


def _with_other(
    build: Callable[[Sequence[Image.Image]], Mapping[str, Any]],
    images: Sequence[Image.Image],
    place: int,
    picture: Image.Image,
) -> Mapping[str, Any]:
    """The inputs with another picture in place of one image."""
    return build([*images[:place], picture, *images[place + 1 :]])


def _places(
    model: MeasuredModel, build: Build, image: Image.Image, visual: NDArray[np.bool_] | None
) -> tuple[Array | None, float | str]:
    if visual is None:
        return None, "the text attends to visual states that are no rows of its own sequence"
    try:
        return image_places(model, build, image, visual)
    except PlacesUnknown as unknown:
        return None, str(unknown)


def _share_inside(boxes: Array, box: Box, size: tuple[int, int]) -> Tensor:
    """Which share of each visual token's place lies in the target region."""
    covered = share_inside(boxes, box, size)
    if not 0 < covered.sum() < len(covered):
        lies = "where no visual token looks" if covered.sum() == 0 else "around all visual tokens"
        raise NormprobeError(
            f"--box: {','.join(f'{edge:g}' for edge in box)} lies {lies}; they show "
            f"{_region(boxes, size)} of the image",
            "choose a region that holds some of them",
        )
    return torch.from_numpy(covered)


def _region(boxes: Array, size: tuple[int, int]) -> str:
    """What all places together enclose, in pixels."""
    edges = [*boxes[:, :2].min(0), *boxes[:, 2:].max(0)]
    return ",".join(f"{edge * pixels:.0f}" for edge, pixels in zip(edges, 2 * size, strict=True))


def _heatmap(row: Mapping[str, Any], boxes: Array, by_token: Tensor) -> pd.DataFrame:
    places = pd.DataFrame(boxes, columns=["left", "top", "right", "bottom"])
    for place, (name, value) in enumerate(row.items()):
        places.insert(place, name, value)
    places["attention"] = by_token.numpy()
    return places


def _check_layers(layers: Sequence[int], count: int) -> None:
    for layer in layers:
        if not 1 <= layer <= count:
            raise NormprobeError(
                f"--layer: expected 1 to {count}, received {layer}",
                f"the decoder has {count} layers, counted from 1",
            )


def _check_box(box: Box | None, images: Sequence[Image.Image]) -> None:
    if box is None:
        return
    if len(images) > 1:
        raise NormprobeError(
            f"--box: a region of one image; received {len(images)} images",
            "leave --box out, or ask about one image",
        )
    left, top, right, bottom = box
    width, height = images[0].size
    if not (0 <= left < right <= width and 0 <= top < bottom <= height):
        raise NormprobeError(
            f"--box: {','.join(f'{edge:g}' for edge in box)} is no region of the image, which has "
            f"{width} x {height} pixels",
            "pass left,top,right,bottom in pixels, e.g. "
            f"--box 0,0,{width // 2},{height // 2} for the upper left quarter",
        )
