"""One sample: the norm of each visual token at every stage, and the attention that it receives.

Tokens are classed by their norm behind the vision tower, and followed from there.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from normprobe.data.sample import Sample
from normprobe.extensions.pictures.watched import run_watched
from normprobe.hooks import on_input, on_output
from normprobe.inputs.on_device import moved_to
from normprobe.model.first_forward import check_forward
from normprobe.model.measured_model import MeasuredModel
from normprobe.model.token_places import text_after_image
from normprobe.model.tower_join import Array, BeforeDecoder, Join, NotJoined
from normprobe.schema import TEXT, VISUAL
from normprobe.statistics.bootstrap import spearman
from normprobe.statistics.loud_tokens import LOUDEST, QUIET, loud_classes, twins_of
from normprobe.statistics.token_metrics import in_group, token_norms

#: The stages in their order.
TOWER, PROJECTOR, DECODER = STAGES_FOLLOWED = ("tower", "projector", "decoder")

FOLLOWED_GROUPS = (VISUAL, TEXT, *LOUDEST, QUIET)

#: What a token gets, and of each: of the others, and of quiet tokens beside it.
RECEIVED = ("attention", "value_share")
OF_REST, OF_TWINS = "rest_", "twin_"
#: Rank correlations over the visual tokens of a sample: of the norm here, or of what is received.
NORM_RANKS = ("tower_norm", "projector_norm", "input_norm")
RECEIVED_RANKS = ("attention_tower_norm", "attention_norm", "value_tower_norm")

#: By stage and layer: ``[visual tokens]``.
_Places = dict[tuple[str, int], Array]


@dataclass(frozen=True)
class FollowedTokens:
    """What one sample leaves."""

    before: BeforeDecoder = field(default_factory=BeforeDecoder)
    norms: Mapping[int, Array] = field(default_factory=dict)  # by layer ``[visual tokens]``
    text: Mapping[int, float] = field(default_factory=dict)  # mean norm of text tokens by layer
    # by layer ``[visual tokens]``: mean over heads and text tokens behind the picture
    attention: Mapping[int, Array] = field(default_factory=dict)
    # the share of a token in the sum over all keys of weights times norms of values; none where a
    # model returns its weights itself
    values: Mapping[int, Array] = field(default_factory=dict)
    images: NDArray[np.int_] | None = None  # ``[visual tokens]``, whose they are
    left_out: str = ""  # why the sample was not measured; empty: it was


def observer(
    model: MeasuredModel,
) -> Callable[[Mapping[str, Any], Sequence[Sample]], FollowedTokens]:
    """What measures one sample after another."""
    joins: list[Join] = []

    def observe(inputs: Mapping[str, Any], samples: Sequence[Sample]) -> FollowedTokens:
        (sample,) = samples
        if not sample.images:
            return FollowedTokens(left_out="it has no picture")
        if sample.videos:
            return FollowedTokens(left_out="it has a video, whose rows are not told apart")
        check_forward(model, inputs)
        try:
            if not joins:
                joins.append(Join(model))
            return followed(model, joins[0], inputs)
        except NotJoined as why:
            return FollowedTokens(left_out=str(why))

    return observe


def followed(model: MeasuredModel, join: Join, inputs: Mapping[str, Any]) -> FollowedTokens:
    """The vision side with its gradients, then one forward up to the last decoder layer."""
    batch = model.batch(inputs)
    at_entry = batch.groups_at(model.decoder_input(inputs))
    groups = at_entry[0].cpu()
    visual, text = in_group(VISUAL, groups), in_group(TEXT, groups)
    positions, _ = text_after_image(batch, groups)
    before = join.norms(inputs, visual)
    numbers = batch.images_at(at_entry)
    seen = _Received(visual)
    norms: dict[int, Array] = {}
    of_text: dict[int, float] = {}

    def keep(layer: int, state: Tensor) -> None:
        of_all = token_norms(model.read_stream(state))[0].double().cpu().numpy()
        norms[layer], of_text[layer] = of_all[visual], float(of_all[text].mean())

    handles = [on_input(model.decoder_layers[0], partial(keep, 0))]
    for layer, module in enumerate(model.decoder_layers, start=1):
        handles.append(on_output(module, partial(keep, layer)))
    run_watched(
        model,
        moved_to(model.model, inputs),
        positions,
        seen.see,
        lambda: bool(seen.attention),
        *handles,
        see_keys=seen.see_keys,
    )
    images = None if numbers is None else numbers[0].cpu().numpy()[visual.numpy()]
    return FollowedTokens(before, norms, of_text, *seen.found(), images)


class _Received:
    """What each visual token gets of the attention of text, layer by layer."""

    def __init__(self, visual: Tensor) -> None:
        self._visual = visual
        self._norms: dict[tuple[int, str], Tensor] = {}  # of values, [key heads, keys]
        self.attention: dict[int, Tensor] = {}  # [keys], summed over heads and rows
        self._values: dict[int, Tensor] = {}  # the same times norms of values
        self._rows: dict[int, int] = defaultdict(int)  # how many were summed

    def see_keys(self, layer: int, name: str, _: Tensor, values: Tensor) -> None:
        """Take values ``[key heads, keys, width]``."""
        self._norms[layer, name] = token_norms(values)

    def see(self, layer: int, name: str, _: int, weights: Tensor, __: Tensor | None) -> None:
        """Take rows ``[heads, rows, keys]``; those over other keys are left out."""
        heads, rows, keys = weights.shape
        if keys != len(self._visual):
            return
        of_heads = weights.double().sum(dim=1)
        self.attention[layer] = self.attention.get(layer, 0) + of_heads.sum(dim=0).cpu()
        self._rows[layer] += heads * rows
        norms = self._norms.get((layer, name))
        if norms is not None and norms.shape[-1] == keys:
            weighted = of_heads * norms.double().repeat_interleave(heads // len(norms), dim=0)
            self._values[layer] = self._values.get(layer, 0) + weighted.sum(dim=0).cpu()

    def found(self) -> tuple[dict[int, Array], dict[int, Array]]:
        """Attention by layer, and shares of what values add; ``[visual tokens]`` each."""
        visual = self._visual
        attention = {n: (of[visual] / self._rows[n]).numpy() for n, of in self.attention.items()}
        values = {n: (of[visual] / of.sum()).numpy() for n, of in self._values.items()}
        return attention, values


# --- tokens of a sample --------------------------------------------------------------------------


def rank_correlation_of(first: Array, second: Array) -> float:
    """Spearman's over the tokens that have both numbers; NaN of fewer than three."""
    both = np.isfinite(first) & np.isfinite(second)
    return spearman(first[both], second[both]) if both.sum() > 2 else np.nan


def rows(seen: FollowedTokens, sample_ids: Sequence[str] | None) -> pd.DataFrame:
    """A row a stage, layer and group."""
    (sample_id,) = sample_ids or ["0"]
    made = (
        [*_rows_of(seen)]
        if not seen.left_out
        else [{"stage": DECODER, "layer": 0, "group": VISUAL}]
    )
    columns = ["stage", "layer", "group", "tokens", "norm", *NORM_RANKS, *RECEIVED_RANKS]
    columns += [f"{of}{name}" for name in RECEIVED for of in ("", OF_REST, OF_TWINS)]
    table = pd.DataFrame(made).reindex(columns=columns)
    counts = table["tokens"].fillna(0).astype(int)
    return table.assign(sample_id=sample_id, left_out=seen.left_out, tokens=counts)


def _rows_of(seen: FollowedTokens) -> Iterator[dict[str, Any]]:
    loud = seen.before.read
    classes = loud_classes(loud)
    twins = {name: twins_of(chosen, loud, seen.images) for name, chosen in classes.items()}
    quiet = np.unique(np.concatenate([*twins.values()][-1]))
    groups = {VISUAL: np.arange(len(loud)), **classes, QUIET: quiet}
    stages: _Places = {(TOWER, number): of for number, of in seen.before.tower.items()}
    if seen.before.projector is not None:
        stages[PROJECTOR, 0] = seen.before.projector
    stages |= {(DECODER, layer): of for layer, of in seen.norms.items()}
    compared = zip(NORM_RANKS, (loud, seen.before.projector, seen.norms[0]), strict=True)
    known = {name: norms for name, norms in compared if norms is not None}
    received = dict(zip(RECEIVED, (seen.attention, seen.values), strict=True))
    for (stage, layer), norms in stages.items():
        here = {"stage": stage, "layer": layer}
        got = {n: of[layer] for n, of in received.items() if stage == DECODER and layer in of}
        for group, chosen in groups.items():
            row = {**here, "group": group, "tokens": len(chosen), "norm": norms[chosen].mean()}
            row |= {name: of[chosen].mean() for name, of in got.items()}
            if group == VISUAL:
                row |= {name: rank_correlation_of(norms, of) for name, of in known.items()}
                row |= _ranks_received(got, loud, seen.norms.get(layer - 1))
            elif group in LOUDEST:
                row |= _beside(got, chosen, twins[group])
            yield row
        if stage == DECODER and np.isfinite(seen.text[layer]):
            yield {**here, "group": TEXT, "norm": seen.text[layer]}


def _ranks_received(
    got: Mapping[str, Array], loud: Array, entering: Array | None
) -> dict[str, float]:
    """Of what tokens get with how loud they were behind the tower, and are as they enter."""
    found = {}
    if "attention" in got:
        found["attention_tower_norm"] = rank_correlation_of(got["attention"], loud)
        if entering is not None:
            found["attention_norm"] = rank_correlation_of(got["attention"], entering)
    if "value_share" in got:
        found["value_tower_norm"] = rank_correlation_of(got["value_share"], loud)
    return found


def _beside(
    got: Mapping[str, Array], chosen: NDArray[np.int_], twins: Sequence[NDArray[np.int_]]
) -> dict[str, float]:
    """What all other tokens get in the mean, and what the twins do, as often as they are some."""
    found = {}
    for name, of in got.items():
        rest = np.delete(of, chosen)
        beside = [of[each].mean() for each in twins if len(each)]
        found[OF_REST + name] = float(rest.mean()) if len(rest) else np.nan
        found[OF_TWINS + name] = float(np.mean(beside)) if beside else np.nan
    return found
