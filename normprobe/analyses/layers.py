"""``layers``: how loud each decoder layer's tokens are, and how far it turns them (Figures 2-5).

Hooks on the layers reduce each hidden state to a few numbers a token while it is there. No state
outlives its layer, and the numbers reach the host once, when the forward has ended.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
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
from normprobe.probes.sample_statistics import merge, statistics_of
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

    def on_host(self) -> Iterator[tuple[int, NDArray[Any], NDArray[Any]]]:
        """Layer by layer its metrics, injection last, and pooled metrics, after one copy of all."""
        layers = sorted(self.metrics)
        kept = [
            part[layer] for layer in layers for part in (self.metrics, self.injection, self.pooled)
        ]
        flat = torch.cat([part.flatten().to(kept[0].device) for part in kept]).cpu().numpy()
        ends = np.cumsum([part.numel() for part in kept])
        pieces = (
            piece.reshape(part.shape)
            for piece, part in zip(np.split(flat, ends[:-1]), kept, strict=True)
        )
        for layer in layers:
            metrics, injection, pooled = next(pieces), next(pieces), next(pieces)
            yield layer, np.concatenate([metrics, injection[None]]) if layer else metrics, pooled


def _rows(reader: _LayerReader, sample_ids: Sequence[str]) -> pd.DataFrame:
    groups = reader.groups.cpu().numpy()
    masks = {name: groups == code for code, name in enumerate(TOKEN_GROUPS)}
    masks[NON_VISUAL] = masks[TEXT] | masks[SPECIAL]
    dtype = str(reader.dtype).removeprefix("torch.")
    rows: list[dict[str, Any]] = []
    for layer, metrics, pooled in reader.on_host():
        names = (*TOKEN_METRICS, INJECTION)[: len(metrics)]
        for index, sample_id in enumerate(sample_ids):
            common = {
                "sample_id": sample_id,
                "layer": layer,
                "hidden_size": reader.hidden_size,
                "dtype": dtype,
            }
            for group, mask in masks.items():
                if mask[index].any():
                    row = statistics_of(metrics[:, index, mask[index]], names)
                    if layer:
                        row[POOLED_METRIC] = float(pooled[index, POOLED_GROUPS.index(group)])
                        moments = co_moments(metrics[None, :, index, mask[index]])
                        row |= {name: column[0] for name, column in moments.items()}
                    rows.append({**common, "group": group, **row})
            if masks[VISUAL][index].any() and masks[TEXT][index].any():
                pair_names = PAIR_METRICS[: 1 if layer == 0 else None]
                values = map(float, pooled[index, -len(pair_names) :])
                pair = dict(zip(pair_names, values, strict=True))
                injection = metrics[-1, index, groups[index] != PADDING]
                pair["injected"] = layer > 0 and bool(injection.any())
                rows.append({**common, "group": PAIR, **pair})
    return pd.DataFrame(rows)


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
