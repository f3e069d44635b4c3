"""One sample: which row of the text table each visual token is nearest to by cosine, and how near.

The largest of many cosines is large by chance alone, and larger where all states share a direction.
So the same model runs on the same pictures with their pixels permuted: as many rows, the same
colours, nothing to be seen. A token has a word where it is nearer to its nearest row than all but
one in twenty of the permuted pictures' tokens are to theirs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError
from normprobe.hooks import attached, observing, on_input, on_output, run_until
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.on_device import moved_to, with_permuted_pixels
from normprobe.inputs.processor import token_text
from normprobe.model.find.overrides import CROSS_ATTENTION
from normprobe.model.find.parts import weight_of
from normprobe.model.find.structure import image_token_rows
from normprobe.model.first_forward import check_forward
from normprobe.model.measured_model import MeasuredModel
from normprobe.schema import TEXT, VISUAL
from normprobe.statistics.token_metrics import in_group, token_norms, widened
from normprobe.tensors import to_host

#: Which share of a permuted picture's tokens may be as near to their words.
CHANCE = 0.05
#: How many words of a layer a sample tells, those nearest to most of its tokens.
WORDS = 10
#: How many rows of the table are compared at once.
_ROWS_AT_ONCE = 8192

Array = NDArray[np.float32]


@dataclass(frozen=True)
class NearestRows:
    """Of some tokens, by layer from 0 on."""

    cosines: Array  # ``[layers, tokens]``; NaN of a state that has no direction
    ids: NDArray[np.int64]  # likewise, of the nearest rows


@dataclass(frozen=True)
class SeenWords:
    """What one sample leaves."""

    visual: NearestRows | None = None
    permuted: NearestRows | None = None  # of the same tokens of the permuted pictures
    text: NearestRows | None = None
    spelled: Callable[[int], str] = str  # a row of the table as text
    left_out: str = ""  # why the sample was not measured; empty: it was


@dataclass(frozen=True)
class WordRows:
    """The rows of a text table that are words: of the tokenizer, no special or image token."""

    weight: Tensor  # ``[rows, hidden]``
    norms: Tensor  # ``[rows]``, 1 of a row without a direction
    penalty: Tensor  # ``[rows]``, 0 of a word, else minus infinity

    def nearest(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """The largest cosine of each state, ``[tokens]``, and the row that has it.

        Args:
            states: ``[tokens, hidden]``.

        Raises:
            NormprobeError: rows of the table have another width.
        """
        if states.shape[-1] != self.weight.shape[-1]:
            raise NormprobeError(
                f"rows of the text table are {self.weight.shape[-1]} wide, states "
                f"{states.shape[-1]}: they have no cosine",
                "normprobe layers measures such a model",
            )
        norms = token_norms(states).unsqueeze(-1)
        units = widened(states) / norms
        best, found = torch.full_like(norms[:, 0], -torch.inf), torch.zeros_like(norms[:, 0]).long()
        for start in range(0, len(self.weight), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            rows, lengths, penalty = (
                each[part].to(units.device) for each in (self.weight, self.norms, self.penalty)
            )
            cosines = units @ rows.to(units.dtype).T / lengths + penalty
            most, where = cosines.max(dim=-1)
            better = most > best
            best, found = torch.where(better, most, best), torch.where(better, where + start, found)
        known = torch.isfinite(norms[:, 0]) & (norms[:, 0] > 0)
        return torch.where(known, best, torch.nan), found


def observer(
    model: MeasuredModel, builder: InputBuilder
) -> Callable[[Mapping[str, Any], Sequence[Sample]], SeenWords]:
    """What measures one sample after another."""
    words = word_rows(model, builder)
    spelled = partial(token_text, builder.tokenizer)

    def observe(inputs: Mapping[str, Any], samples: Sequence[Sample]) -> SeenWords:
        (sample,) = samples
        if not (sample.images or sample.videos):
            return SeenWords(left_out="it has no picture")
        check_forward(model, inputs)
        groups = model.batch(inputs).groups_at(model.decoder_input(inputs))[0].cpu()
        visual, text = (in_group(group, groups) for group in (VISUAL, TEXT))
        of_visual, of_text = nearest_of(model, inputs, words, (visual, text))
        (permuted,) = nearest_of(model, with_permuted_pixels(inputs), words, (visual,))
        return SeenWords(of_visual, permuted, of_text, spelled)

    return observe


def word_rows(model: MeasuredModel, builder: InputBuilder) -> WordRows:
    """The words of a model's text table.

    Raises:
        NormprobeError: its visual states are no rows of the sequence.
    """
    if model.parts.fusion == CROSS_ATTENTION:
        raise NormprobeError(
            "nearest words need visual tokens: the text attends to visual states that are no rows "
            "of its sequence",
            "normprobe interface and layers measure such a model",
        )
    assert model.parts.text_embedding is not None  # the decoder has run
    weight = weight_of(model.parts.text_embedding).detach()
    no_words = {*builder.special_token_ids, *model.parts.image_token_ids}
    no_words |= {*model.parts.video_token_ids, *model.parts.audio_token_ids}
    no_words |= set(image_token_rows(model.model))
    ids = [id_ for id_ in builder.vocabulary_ids if id_ < len(weight) and id_ not in no_words]
    penalty = torch.full((len(weight),), -torch.inf)
    penalty[ids] = 0.0
    norms = token_norms(weight)
    penalty = penalty.to(norms.device)
    usable = torch.isfinite(norms) & (norms > 0)  # else a row has no direction
    return WordRows(
        weight.nan_to_num(0.0, 0.0, 0.0) if not usable.all() else weight,
        torch.where(usable, norms, 1.0),
        torch.where(usable, penalty, -torch.inf),
    )


def nearest_of(
    model: MeasuredModel, inputs: Mapping[str, Any], words: WordRows, masks: Sequence[Tensor]
) -> list[NearestRows]:
    """One forward up to the last decoder layer.

    Args:
        model: on any device.
        inputs: of one sample.
        words: of its text table.
        masks: ``[seq]`` bool at the decoder input, one a group of tokens.
    """
    chosen = torch.cat([mask.nonzero().flatten() for mask in masks])
    kept: dict[int, tuple[Tensor, Tensor]] = {}

    def read(layer: int, state: Tensor) -> None:
        kept[layer] = words.nearest(model.read_stream(state)[0][chosen.to(state.device)])

    layers = model.decoder_layers
    handles = [on_input(layers[0], partial(read, 0))]
    handles += [on_output(layer, partial(read, number)) for number, layer in enumerate(layers, 1)]
    with observing(model.model), attached(*handles):
        run_until(model.model, moved_to(model.model, inputs), leaving=layers[-1])
    arrived = to_host([part for layer in sorted(kept) for part in kept[layer]])()
    cosines, ids = np.stack(arrived[::2]), np.stack(arrived[1::2])
    ends = np.cumsum([int(mask.sum()) for mask in masks])[:-1]
    parts = zip(np.split(cosines, ends, axis=1), np.split(ids, ends, axis=1), strict=True)
    return [NearestRows(*part) for part in parts]


def rows(seen: SeenWords, sample_ids: Sequence[str] | None) -> pd.DataFrame:
    """A row a layer, of ``rank`` 0; then a row a layer and word."""
    (sample_id,) = sample_ids or ["0"]
    made = [*_rows_of(seen)] if not seen.left_out else [{"layer": 0, "rank": 0}]
    numbers = ["nearest_cosine", "permuted_cosine", "text_cosine", "above_chance", "chance"]
    columns = ["layer", "rank", "tokens", *numbers, "token_id", "word", "share"]
    table = pd.DataFrame(made).reindex(columns=columns)
    counts = {name: table[name].fillna(0).astype(int) for name in ("tokens", "token_id")}
    words = table["word"].astype(object).where(table["word"].notna(), "")
    return table.assign(sample_id=sample_id, left_out=seen.left_out, word=words, **counts)


def _rows_of(seen: SeenWords) -> Iterator[dict[str, Any]]:
    assert seen.visual is not None and seen.permuted is not None and seen.text is not None
    for layer, (cosines, ids) in enumerate(zip(seen.visual.cosines, seen.visual.ids, strict=True)):
        of_permuted, of_text = seen.permuted.cosines[layer], seen.text.cosines[layer]
        above, chance = above_chance(cosines, of_permuted)
        yield {
            "layer": layer,
            "rank": 0,
            "tokens": len(cosines),
            "nearest_cosine": _mean(cosines),
            "permuted_cosine": _mean(of_permuted),
            "text_cosine": _mean(of_text),
            "above_chance": above,
            "chance": chance,
        }
        known = np.isfinite(cosines)
        counted, places, counts = np.unique(ids[known], return_inverse=True, return_counts=True)
        for rank, place in enumerate(np.argsort(-counts, kind="stable")[:WORDS], start=1):
            yield {
                "layer": layer,
                "rank": rank,
                "tokens": counts[place],
                "nearest_cosine": _mean(cosines[known][places == place]),
                "token_id": counted[place],
                "word": seen.spelled(int(counted[place])),
                "share": counts[place] / len(cosines),
            }


def above_chance(cosines: Array, permuted: Array) -> tuple[float, float]:
    """Which share of tokens is nearer to a word than chance, and which one would be by chance.

    Of n permuted tokens the k-th nearest is the threshold: a token like these is above it with
    probability k / (n + 1). k is the largest for which that is at most ``CHANCE``, at least 1.
    """
    known, ordered = cosines[np.isfinite(cosines)], np.sort(permuted[np.isfinite(permuted)])
    if not len(known) or not len(ordered):
        return np.nan, np.nan
    place = max(1, int(CHANCE * (len(ordered) + 1)))
    return float((known > ordered[-place]).mean()), place / (len(ordered) + 1)


def _mean(cosines: Array) -> float:
    known = cosines[np.isfinite(cosines)].astype(np.float64)
    return float(known.mean()) if len(known) else np.nan
