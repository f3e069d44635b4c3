"""How large the tokens of each decoder layer are, and how far it turns them (Figures 2-5).

Hooks on the layers reduce each hidden state to a few numbers a token while it is there. No state
outlives its layer. When the forward has been asked for, one copy to the CPU follows it: the host
waits for it where the rows are made, and not before.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normprobe.errors import NormprobeError
from normprobe.hooks import attached, observing, on_input, on_output, run_until
from normprobe.inputs.on_device import moved_to
from normprobe.inputs.pixels import pixel_inputs
from normprobe.measurements.layers.table import layers_table
from normprobe.model.find.overrides import CROSS_ATTENTION
from normprobe.model.measured_model import MeasuredBatch, MeasuredModel
from normprobe.model.tracing.find_or_trace import find_or_trace
from normprobe.model.vision_stages import StageNorms, VisionStages
from normprobe.schema import (
    IMAGE,
    IMAGE_NUMBERS,
    INJECTION,
    NON_VISUAL,
    PADDING,
    PAIR,
    PAIR_METRICS,
    POOLED_METRIC,
    SPECIAL,
    TEXT,
    TOKEN_GROUPS,
    TOKEN_METRICS,
    VISUAL,
)
from normprobe.statistics.co_moments import co_moments
from normprobe.statistics.sample_statistics import statistics_by_layer, statistics_of
from normprobe.statistics.token_metrics import (
    POOLED_GROUPS,
    cross_modal_cosine,
    group_masks,
    pooled_metrics,
    token_metrics,
    token_norms,
)
from normprobe.transfers import to_host


def probe_layers(
    model: nn.Module,
    inputs: Mapping[str, Any],
    *,
    named: Mapping[str, Any] | None = None,
    special_token_ids: Iterable[int] | None = None,
) -> pd.DataFrame:
    """Measure every decoder layer on one batch of a model in memory.

    ``Probe`` does the same repeatedly, and finds the parts once. Where the structure of the model
    does not tell its parts, a trace of three more forwards finds them.

    Args:
        model: a transformers vision-language or language model.
        inputs: what its processor returned, on the model's device.
        named: parts named by hand, as ``find_parts`` takes them.
        special_token_ids: ids to report as ``special`` rather than ``text``,
            usually ``tokenizer.all_special_ids``.

    Returns:
        The rows of layers.csv without intervals: one row a layer (0 is the decoder input) and
        token group.

    Raises:
        NormprobeError: when the parts are not found, or the batch does not fit the model.
    """
    parts, found_by = find_or_trace(model, named or {}, lambda: inputs)
    measured = MeasuredModel(model, parts, [*(special_token_ids or ())], found_by=found_by)
    return layers_table(rows(observe(measured, inputs), None))


@dataclass(frozen=True)
class Seen:
    """What one forward leaves, on its way to the CPU."""

    batch: MeasuredBatch
    hidden_size: int
    dtype: str
    layers: list[int]  # from 1 on
    # Groups, both metrics of layer 0, then of every layer metrics, injection and pooled metrics.
    arrived: Callable[[], list[NDArray[Any]]]
    attended: StageNorms | None  # of the states that text attends to


def observe(model: MeasuredModel, inputs: Mapping[str, Any]) -> Seen:
    """One forward up to the last decoder layer.

    Args:
        model: on any device.
        inputs: what the processor returned.

    Raises:
        NormprobeError: the model has no decoder layers, or the batch does not fit the model.
    """
    layers = model.decoder_layers
    batch = model.batch(inputs)
    reader = _LayerReader(batch)
    handles = [on_input(layers[0], reader.read_decoder_input)]
    stages = VisionStages(model.parts)
    attends = model.parts.fusion == CROSS_ATTENTION
    if attends:
        handles.extend(stages.handles())
    for number, layer in enumerate(layers, start=1):
        handles.append(on_input(layer, partial(reader.read_input, number)))
        handles.append(on_output(layer, partial(reader.read_output, number)))
    with observing(model.model), attached(*handles):
        run_until(model.model, moved_to(model.model, inputs), leaving=layers[-1])
        attended = stages.norms() if attends and pixel_inputs(inputs) else None
        return reader.seen(attended)


def rows(seen: Seen, sample_ids: Sequence[str] | None) -> pd.DataFrame:
    """One row a (sample, layer, token group).

    Args:
        seen: of ``observe``.
        sample_ids: one a sample of the batch; None: their numbers from 0.

    Returns:
        Sample rows; merge them with ``layers_table``. A sample that is known to have several
        images also has rows for the visual tokens of each.
    """
    names = sample_ids or [str(number) for number in range(len(seen.batch.prompt_groups))]
    found = _rows(seen, names)
    if seen.attended is not None:
        numbers = seen.batch.inputs.get(IMAGE_NUMBERS)
        images = [1] * len(names) if numbers is None else numbers.amax(dim=-1).tolist()
        attended = _attended_rows(found, seen.attended.attended(images), names)
        found = pd.concat([found, attended], ignore_index=True)
    return found


class _LayerReader:
    """Keeps a few numbers a token and layer on the device while the forward runs."""

    def __init__(self, batch: MeasuredBatch) -> None:
        self.groups = batch.prompt_groups
        self.hidden_size = 0
        self.dtype = torch.float32
        self.metrics: dict[int, Tensor] = {}  # [metrics, batch, seq]
        self.pooled: dict[int, Tensor] = {}  # [batch, pooled groups + pair metrics]
        self.injection: dict[int, Tensor] = {}  # [batch, seq]
        self._batch = batch
        self._read = batch.model.read_stream
        self._input: Tensor | None = None
        self._last_output: Tensor | None = None
        self._version = 0

    def read_decoder_input(self, state: Tensor) -> None:
        x = self._read(state)
        self.hidden_size, self.dtype = x.shape[-1], x.dtype
        self.groups = self._batch.groups_at(x)
        self.masks = group_masks(self.groups)
        self.metrics[0] = token_norms(x).unsqueeze(0)
        self.pooled[0] = cross_modal_cosine(x, self.masks).unsqueeze(-1)
        self.injection[0] = torch.zeros_like(self.metrics[0][0])

    def read_input(self, number: int, state: Tensor) -> None:
        before, self._last_output = self._last_output, None
        self._input, self._version = state, state._version
        # Mostly the state is the very tensor that the layer before returned. DeepStack adds visual
        # features to it, cross-attention between the layers changes the text.
        if before is None or before is state:
            self.injection[number] = torch.zeros_like(self.injection[0])
        else:
            change = self._read(state).float() - self._read(before).to(state.device).float()
            self.injection[number] = token_norms(change)

    def read_output(self, number: int, output: Tensor) -> None:
        state, self._input = self._input, None
        assert state is not None
        if state._version != self._version:
            raise NormprobeError(
                f"decoder layer {number} overwrites its input in place, so its update is lost",
                "open an issue with the model type",
            )
        self._last_output = output
        # Under accelerate dispatch neighbouring layers live on different devices.
        x, h = self._read(state).to(output.device).float(), self._read(output).float()
        metrics, perpendicular = token_metrics(x, h)
        self.metrics[number] = metrics
        self.pooled[number] = pooled_metrics(x, h, perpendicular, self.masks.to(h.device))

    def seen(self, attended: StageNorms | None) -> Seen:
        """Everything that was kept. The host does not wait for it."""
        layers = sorted(self.injection)[1:]
        later = [part[n] for part in (self.metrics, self.injection, self.pooled) for n in layers]
        return Seen(
            self._batch,
            self.hidden_size,
            str(self.dtype).removeprefix("torch."),
            layers,
            to_host([self.groups, self.metrics[0], self.pooled[0], *later]),
            attended,
        )


@dataclass(frozen=True)
class _MetricsOnCpu:
    """The metrics of one forward, on the CPU."""

    groups: NDArray[np.int8]  # [batch, seq]
    images: NDArray[np.int64] | None  # [batch, seq], of ``MeasuredBatch.images_at``
    layers: list[int]  # from 1 on
    norms: NDArray[np.float32]  # [1, 1, batch, seq], layer 0
    cross_modal_cosine: NDArray[np.float32]  # [batch], layer 0
    metrics: NDArray[np.float32]  # [layers, token metrics and injection, batch, seq]
    pooled: NDArray[np.float32]  # [layers, batch, pooled groups and pair metrics]


def _on_cpu(seen: Seen) -> _MetricsOnCpu:
    """Wait for what one forward left."""
    groups, norms, cosine, *later = seen.arrived()
    depth = len(seen.layers)
    metrics, injection, pooled = (np.stack(later[n * depth : (n + 1) * depth]) for n in range(3))
    images = seen.batch.images_at(torch.from_numpy(groups))
    return _MetricsOnCpu(
        groups=groups,
        images=None if images is None else images.numpy(),
        layers=seen.layers,
        norms=norms[None],
        cross_modal_cosine=cosine[:, 0],
        metrics=np.concatenate([metrics, injection[:, None]], axis=1),
        pooled=pooled,
    )


def _rows(observed: Seen, sample_ids: Sequence[str]) -> pd.DataFrame:
    """One block of rows, layer 0 to the last, for each sample and group."""
    seen = _on_cpu(observed)
    masks = {name: seen.groups == code for code, name in enumerate(TOKEN_GROUPS)}
    masks[NON_VISUAL] = masks[TEXT] | masks[SPECIAL]
    common = {"hidden_size": observed.hidden_size, "dtype": observed.dtype}
    blocks: list[dict[str, Sequence[Any]]] = []
    for index, sample_id in enumerate(sample_ids):
        for group, mask in masks.items():
            if mask[index].any():
                named = {"sample_id": sample_id, **common, "group": group}
                blocks.extend(
                    {**_repeated(named, len(block["layer"])), **block}
                    for block in _group_blocks(seen, index, group, mask[index])
                )
        for number, mask_of_image in _several_images(seen, index).items():
            named = {"sample_id": sample_id, **common, "group": IMAGE, IMAGE: number}
            blocks.extend(
                {**_repeated(named, len(block["layer"])), **block}
                for block in _token_blocks(seen, index, mask_of_image)
            )
        if masks[VISUAL][index].any() and masks[TEXT][index].any():
            pair = _pair_block(seen, index)
            named = {"sample_id": sample_id, **common, "group": PAIR}
            blocks.append({**_repeated(named, len(pair["layer"])), **pair})
    return _stacked(blocks)


def _group_blocks(
    seen: _MetricsOnCpu, index: int, group: str, mask: NDArray[np.bool_]
) -> list[dict[str, Sequence[Any]]]:
    """Statistics of one group of a sample: layer 0, which has norms alone, and the rest."""
    pooled = seen.pooled[:, index, POOLED_GROUPS.index(group)]
    first, rest = _token_blocks(seen, index, mask)
    # The theory speaks of visual and text tokens alone.
    moments = co_moments(seen.metrics[:, :, index, mask]) if group in (VISUAL, TEXT) else {}
    return [first, {**rest, POOLED_METRIC: pooled.tolist(), **moments}]


def _token_blocks(
    seen: _MetricsOnCpu, index: int, mask: NDArray[np.bool_]
) -> tuple[dict[str, Sequence[Any]], dict[str, Sequence[Any]]]:
    """Statistics over some tokens of a sample: layer 0, and the rest."""
    norms, metrics = seen.norms[:, :, index, mask], seen.metrics[:, :, index, mask]
    return (
        {"layer": [0], **statistics_by_layer(norms, TOKEN_METRICS[:1])},
        {"layer": seen.layers, **statistics_by_layer(metrics, (*TOKEN_METRICS, INJECTION))},
    )


def _several_images(seen: _MetricsOnCpu, index: int) -> dict[int, NDArray[np.bool_]]:
    """The visual tokens of each image, by its number, where a sample has several."""
    last = 0 if seen.images is None else int(seen.images[index].max())
    if seen.images is None or last < 2:
        return {}
    return {number: seen.images[index] == number for number in range(1, last + 1)}


def _pair_block(seen: _MetricsOnCpu, index: int) -> dict[str, Sequence[Any]]:
    """Quantities of a sample's (visual, text) pairs, layer by layer."""
    columns = seen.pooled[:, index, -len(PAIR_METRICS) :].T.tolist()
    # Layer 0 has a cosine but turns nothing.
    first = [float(seen.cross_modal_cosine[index])] + [np.nan] * (len(PAIR_METRICS) - 1)
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
    rows: pd.DataFrame, attended: Sequence[Sequence[NDArray[Any]]], sample_ids: Sequence[str]
) -> pd.DataFrame:
    """Layer 0 of the visual states that text attends to: no decoder layer changes them."""
    common = rows.loc[0, ["layer", "hidden_size", "dtype"]].to_dict()
    found: list[dict[Any, Any]] = []
    for sample_id, images in zip(sample_ids, attended, strict=True):
        named = {"sample_id": sample_id, **common}
        if images:
            norms = np.concatenate(images)[None]
            found.append({**named, "group": VISUAL, **statistics_of(norms, TOKEN_METRICS[:1])})
        if len(images) > 1:
            found += [
                {**named, "group": IMAGE, IMAGE: number, **statistics_of(norms[None], ["norm"])}
                for number, norms in enumerate(images, start=1)
            ]
    return pd.DataFrame(found)
