"""``layers``: how loud each decoder layer's tokens are, and how far it turns them (Figures 2-5).

Hooks on the layers reduce each hidden state to a few numbers a token while it is there. No state
outlives its layer, and the numbers reach the host once, when the forward has ended.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import BatchFeature

from normprobe.analyses.inputs import inputs_for
from normprobe.analyses.token_rows import (
    constant_rows,
    first_layer,
    groups_of,
    pixel_tensors,
    place_groups,
    read_stream,
)
from normprobe.analyses.vision_stages import VisionStages
from normprobe.errors import NormprobeError
from normprobe.hooks import attached, observing, on_input, on_output, run_until
from normprobe.model.overrides import CROSS_ATTENTION
from normprobe.model.parts import Parts, find_parts
from normprobe.probes.co_moments import co_moments
from normprobe.probes.sample_statistics import merge, statistics_by_layer
from normprobe.probes.token_metrics import (
    POOLED_GROUPS,
    cross_modal_cosine,
    group_masks,
    pooled_metrics,
    token_metrics,
    token_norms,
)
from normprobe.schema import (
    INJECTION,
    NON_VISUAL,
    PADDING,
    PAIR,
    PAIR_METRICS,
    POOLED_METRIC,
    QUANTILES,
    SPECIAL,
    TEXT,
    TOKEN_GROUPS,
    TOKEN_METRICS,
    VISUAL,
)

#: Below this angle the rounding of the stored states, not the layer, sets the value (radians).
ANGLE_RESOLUTION = {torch.bfloat16: 3e-3, torch.float16: 4e-4, torch.float32: 0.0}


def probe_layers(
    model: nn.Module,
    inputs: Mapping[str, Any],
    *,
    special_token_ids: Iterable[int] | None = None,
) -> pd.DataFrame:
    """Measure every decoder layer on one batch of a model in memory.

    Args:
        model: a transformers vision-language or language model.
        inputs: what its processor returned, on the model's device.
        special_token_ids: ids to report as ``special`` rather than ``text``,
            usually ``tokenizer.all_special_ids``.

    Returns:
        The rows and columns of layers.csv: one row a layer (0 is the decoder input) and group.

    Raises:
        NormprobeError: when the parts are not found, or the batch does not fit the model.
    """
    parts = find_parts(model)
    groups = groups_of(model, parts, inputs, special_token_ids)
    constants = constant_rows(model, parts, inputs, groups)
    names = [str(number) for number in range(len(groups))]
    return layers_table(layer_rows(model, parts, inputs, groups, names, constants))


def measure_layers(
    model: nn.Module,
    parts: Parts,
    batches: Iterable[tuple[Sequence[str], BatchFeature]],
    special_token_ids: Iterable[int],
) -> Iterator[pd.DataFrame]:
    """Sample rows, batch by batch.

    Args:
        model: on its device.
        parts: of ``find_parts(model)``.
        batches: sample ids and what the processor returned for them.
        special_token_ids: ids that count as special.

    Yields:
        The rows of ``layer_rows``.
    """
    special = list(special_token_ids)
    constants = None
    for sample_ids, batch in batches:
        inputs = inputs_for(model, batch)
        groups = groups_of(model, parts, inputs, special)
        if constants is None:
            constants = constant_rows(model, parts, inputs, groups)
        yield layer_rows(model, parts, inputs, groups, sample_ids, constants)


def layer_rows(
    model: nn.Module,
    parts: Parts,
    inputs: Mapping[str, Any],
    groups: Tensor,
    sample_ids: Sequence[str],
    constants: Tensor | None = None,
) -> pd.DataFrame:
    """One forward, one row a (sample, layer, group).

    Args:
        model: on the device of ``inputs``.
        parts: of ``find_parts(model)``.
        inputs: what the processor returned.
        groups: ``[batch, seq]`` of ``groups_of``.
        sample_ids: one a row of the batch.
        constants: structural rows, of ``constant_rows``.

    Returns:
        Sample rows; merge them with ``layers_table``.
    """
    if parts.decoder_layers is None:
        raise NormprobeError(
            f"{type(model).__name__} has no decoder layers to measure",
            "use `normprobe interface` for a bare vision encoder",
        )
    layers = list(parts.decoder_layers.module.children())
    reader = _LayerReader(model, parts, groups, constants)
    handles = [on_input(first_layer(parts), reader.read_decoder_input)]
    stages = VisionStages(parts)
    if parts.fusion == CROSS_ATTENTION:
        handles.extend(stages.handles())
    for number, layer in enumerate(layers, start=1):
        handles.append(on_input(layer, partial(reader.enter, number)))
        handles.append(on_output(layer, partial(reader.leave, number)))
    with observing(model), attached(*handles):
        run_until(model, inputs, leaving=layers[-1])
    rows = _rows(reader, sample_ids)
    if parts.fusion == CROSS_ATTENTION and pixel_tensors(inputs):
        rows = pd.concat([rows, _attended_rows(rows, stages, sample_ids)], ignore_index=True)
    return rows


class _LayerReader:
    """Keeps a few numbers a token and layer on the device while the forward runs."""

    def __init__(
        self, model: nn.Module, parts: Parts, groups: Tensor, constants: Tensor | None
    ) -> None:
        self.groups = groups
        self.hidden_size = 0
        self.dtype = torch.float32
        self.metrics: dict[int, Tensor] = {}  # [metrics, batch, seq]
        self.pooled: dict[int, Tensor] = {}  # [batch, pooled groups + pair metrics]
        self.injection: dict[int, Tensor] = {}  # [batch, seq]
        self._place = partial(place_groups, parts=parts, constants=constants)
        self._read = read_stream(model, parts)
        self._entered: Tensor | None = None
        self._left: Tensor | None = None
        self._version = 0

    def read_decoder_input(self, state: Tensor) -> None:
        x = self._read(state)
        self.hidden_size, self.dtype = x.shape[-1], x.dtype
        self.groups = self._place(self.groups, x)
        self.masks = group_masks(self.groups)
        self.metrics[0] = token_norms(x).unsqueeze(0)
        self.pooled[0] = cross_modal_cosine(x, self.masks).unsqueeze(-1)
        self.injection[0] = torch.zeros_like(self.metrics[0][0])

    def enter(self, number: int, state: Tensor) -> None:
        left, self._left = self._left, None
        self._entered, self._version = state, state._version
        # Mostly the state is the very tensor that left the layer before. DeepStack adds visual
        # features to it, cross-attention between the layers changes the text.
        if left is None or left is state:
            self.injection[number] = torch.zeros_like(self.injection[0])
        else:
            change = self._read(state).float() - self._read(left).to(state.device).float()
            self.injection[number] = token_norms(change)

    def leave(self, number: int, left: Tensor) -> None:
        state, self._entered = self._entered, None
        assert state is not None
        if state._version != self._version:
            raise NormprobeError(
                f"decoder layer {number} overwrites its input in place, so its update is lost",
                "open an issue with the model type",
            )
        self._left = left
        # Under accelerate dispatch neighbouring layers live on different devices.
        x, h = self._read(state).to(left.device).float(), self._read(left).float()
        metrics, perpendicular = token_metrics(x, h)
        self.metrics[number] = metrics
        self.pooled[number] = pooled_metrics(x, h, perpendicular, self.masks.to(h.device))

    def on_host(self) -> "_OnHost":
        """Everything that was kept, after one copy to the host."""
        layers = sorted(self.injection)[1:]
        entry = [self.metrics[0], self.pooled[0]]
        later = [[part[n] for n in layers] for part in (self.metrics, self.injection, self.pooled)]
        kept = [*entry, *chain.from_iterable(later)]
        flat = torch.cat([part.flatten().to(kept[0].device) for part in kept]).cpu().numpy()
        pieces = np.split(flat, np.cumsum([sum(map(Tensor.numel, p)) for p in (entry, *later)]))
        batch, positions = self.groups.shape
        norms, cosine = np.split(pieces[0], [batch * positions])
        metrics, injection = (p.reshape(len(layers), -1, batch, positions) for p in pieces[1:3])
        return _OnHost(
            groups=self.groups.cpu().numpy(),
            layers=layers,
            norms=norms.reshape(1, 1, batch, positions),
            cross_modal_cosine=cosine,
            metrics=np.concatenate([metrics, injection], axis=1),
            pooled=pieces[3].reshape(len(layers), batch, -1),
        )


@dataclass(frozen=True)
class _OnHost:
    """What a forward leaves behind."""

    groups: NDArray[np.int8]  # [batch, seq]
    layers: list[int]  # from 1 on
    norms: NDArray[np.float32]  # [1, 1, batch, seq], layer 0
    cross_modal_cosine: NDArray[np.float32]  # [batch], layer 0
    metrics: NDArray[np.float32]  # [layers, token metrics and injection, batch, seq]
    pooled: NDArray[np.float32]  # [layers, batch, pooled groups and pair metrics]


def _rows(reader: _LayerReader, sample_ids: Sequence[str]) -> pd.DataFrame:
    """One block of rows, layer 0 to the last, for each sample and group."""
    seen = reader.on_host()
    masks = {name: seen.groups == code for code, name in enumerate(TOKEN_GROUPS)}
    masks[NON_VISUAL] = masks[TEXT] | masks[SPECIAL]
    common = {"hidden_size": reader.hidden_size, "dtype": str(reader.dtype).removeprefix("torch.")}
    blocks: list[dict[str, Sequence[Any]]] = []
    for index, sample_id in enumerate(sample_ids):
        for group, mask in masks.items():
            if mask[index].any():
                named = {"sample_id": sample_id, **common, "group": group}
                blocks.extend(
                    {**_repeated(named, len(block["layer"])), **block}
                    for block in _group_blocks(seen, index, group, mask[index])
                )
        if masks[VISUAL][index].any() and masks[TEXT][index].any():
            pair = _pair_block(seen, index)
            named = {"sample_id": sample_id, **common, "group": PAIR}
            blocks.append({**_repeated(named, len(pair["layer"])), **pair})
    return _stacked(blocks)


def _group_blocks(
    seen: _OnHost, index: int, group: str, mask: NDArray[np.bool_]
) -> list[dict[str, Sequence[Any]]]:
    """Statistics of one group of a sample: layer 0, which has norms alone, and the rest."""
    pooled = seen.pooled[:, index, POOLED_GROUPS.index(group)]
    return [
        {"layer": [0], **statistics_by_layer(seen.norms[:, :, index, mask], TOKEN_METRICS[:1])},
        {
            "layer": seen.layers,
            **statistics_by_layer(seen.metrics[:, :, index, mask], (*TOKEN_METRICS, INJECTION)),
            POOLED_METRIC: pooled.tolist(),
            **co_moments(seen.metrics[:, :, index, mask]),
        },
    ]


def _pair_block(seen: _OnHost, index: int) -> dict[str, Sequence[Any]]:
    """Quantities of a sample's (visual, text) pairs, layer by layer."""
    columns = seen.pooled[:, index, -len(PAIR_METRICS) :].T.tolist()
    # Layer 0 has a cosine but turns nothing.
    first = [float(seen.cross_modal_cosine[index]), np.nan, np.nan]
    pairs = {
        name: [at_entry, *column]
        for name, at_entry, column in zip(PAIR_METRICS, first, columns, strict=True)
    }
    injection = seen.metrics[:, -1, index, seen.groups[index] != PADDING]
    return {
        "layer": [0, *seen.layers],
        **pairs,
        "injected": [False, *(injection != 0).any(axis=-1).tolist()],
    }


def _repeated(named: Mapping[str, Any], rows: int) -> dict[str, Sequence[Any]]:
    return {name: [value] * rows for name, value in named.items()}


def _stacked(blocks: Sequence[Mapping[str, Sequence[Any]]]) -> pd.DataFrame:
    """Blocks of columns below each other; what a block lacks is NaN."""
    sizes = [len(block["layer"]) for block in blocks]
    columns: dict[str, list[Any]] = {name: [] for block in blocks for name in block}
    for name in columns:
        for block, size in zip(blocks, sizes, strict=True):
            columns[name].extend(block.get(name, [np.nan] * size))
    return pd.DataFrame(columns)


def _attended_rows(
    rows: pd.DataFrame, stages: VisionStages, sample_ids: Sequence[str]
) -> pd.DataFrame:
    """Layer 0 of the visual states that text attends to: no decoder layer changes them."""
    common = rows.loc[0, ["layer", "hidden_size", "dtype"]].to_dict()
    return pd.DataFrame(
        {"sample_id": sample_id, **common, "group": VISUAL, **statistics}
        for sample_id, statistics in zip(sample_ids, stages.attended(len(sample_ids)), strict=True)
    )


def layers_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Sample rows of any number of batches to layers.csv.

    Args:
        rows: of ``layer_rows``.

    Returns:
        One row a layer and group. ``_mean`` and ``_std`` are over tokens, ``_sample_mean`` and
        ``_sample_std`` over per-sample means; ``_q05`` to ``_q95`` are quantiles over tokens,
        those of the cosine taken from the angle. ``rms_mean`` is norm / sqrt(hidden_size).
        ``injection_norm`` is what was added between the layer before and this one.
    """
    rows = rows[rows["group"] != PAIR]
    by = ["layer", "group", "hidden_size", "dtype"]
    table = merge(rows, by, (*TOKEN_METRICS, INJECTION))
    table["rms_mean"] = table["norm_mean"] / np.sqrt(table["hidden_size"])
    for name, probability in QUANTILES.items():
        mirrored = next(other for other, p in QUANTILES.items() if np.isclose(p, 1 - probability))
        table[f"cosine_{name}"] = np.cos(table[f"angle_{mirrored}"])
    pooled = rows.groupby(by, sort=False)[POOLED_METRIC]
    table = table.merge(
        pd.DataFrame(
            {f"{POOLED_METRIC}_mean": pooled.mean(), f"{POOLED_METRIC}_std": pooled.std(ddof=0)}
        ).reset_index(),
        on=by,
    )
    resolution = {str(d).removeprefix("torch."): a for d, a in ANGLE_RESOLUTION.items()}
    table["angle_below_resolution"] = table["angle_mean"] < table["dtype"].map(resolution)
    order = {group: place for place, group in enumerate((*TOKEN_GROUPS, NON_VISUAL))}
    table = table.sort_values(
        ["layer", "group"], key=lambda c: c.map(order) if c.name == "group" else c
    )
    return table.drop(columns="dtype").reset_index(drop=True)
