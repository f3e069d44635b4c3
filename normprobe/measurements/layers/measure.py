"""How large the tokens of each decoder layer are, and how far it turns them (Figures 2-5).

Hooks on the layers reduce each hidden state to a few numbers a token while it is there. No state
outlives its layer. When the forward has been asked for, one copy to the CPU follows it: the host
waits for it where the rows are made, and not before.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from normprobe.errors import NormprobeError
from normprobe.hooks import attached, observing, on_call, on_input, on_output, run_until
from normprobe.inputs.on_device import moved_to, pixel_inputs
from normprobe.measurements.layers.watchers import GroupWatcher, Watcher
from normprobe.model.find.norms import WITHOUT_INPUT_NORM
from normprobe.model.find.overrides import CROSS_ATTENTION
from normprobe.model.first_forward import check_forward
from normprobe.model.measured_model import MeasuredBatch, MeasuredModel
from normprobe.model.vision_stages import StageNorms, VisionStages
from normprobe.schema import (
    ATTENTION_INPUT,
    AUDIO,
    IMAGE,
    IMAGE_NUMBERS,
    INJECTION,
    MODALITIES,
    NO_ID,
    OF_GROUP,
    OTHER_TOKEN_METRICS,
    PADDING,
    PAIR,
    PAIR_METRICS,
    SAMPLE_METRICS,
    TEXT,
    TOKEN_METRICS,
    TURN,
    VIDEO,
    VISUAL,
)
from normprobe.statistics.loud_tokens import loudest_token
from normprobe.statistics.sample_statistics import (
    co_moments,
    finite_tokens,
    statistics_by_layer,
    statistics_of,
)
from normprobe.statistics.token_metrics import (
    POOLED_GROUPS,
    Directions,
    centered_cross_modal_cosine,
    cross_modal_cosine,
    directions,
    group_masks,
    masks_of,
    pooled_cosine,
    token_metrics,
    token_norms,
    turn_cosines,
    widened,
    within_modal_cosine,
)
from normprobe.tensors import to_host

#: What is kept of a token, and of a sample: a metric and the group that it is of, if of one.
_TOKEN_NUMBERS = (*TOKEN_METRICS, *OTHER_TOKEN_METRICS)
_MEASURED = _TOKEN_NUMBERS.index(ATTENTION_INPUT)  # those before it every decoder has
_SAMPLE_NUMBERS = [
    *((SAMPLE_METRICS[0], group) for group in POOLED_GROUPS),
    *((SAMPLE_METRICS[1], group) for group in MODALITIES),
    *((name, "") for name in PAIR_METRICS),
]


@dataclass(frozen=True)
class SeenLayers:
    """What one forward leaves, on its way to the CPU."""

    batch: MeasuredBatch
    hidden_size: int
    dtype: str
    layers: list[int]  # from 1 on
    watched: list[str]  # metrics of the watchers
    group_watchers: Sequence[GroupWatcher]
    # Groups; then of layer 0 and of every other what ``_LayerReader`` keeps of tokens, of samples
    # and, for each watcher of groups, of groups.
    arrived: Callable[[], list[NDArray[Any]]]
    attended: StageNorms | None  # of the states that text attends to


def observe(
    model: MeasuredModel, inputs: Mapping[str, Any], watchers: Sequence[Watcher] = ()
) -> SeenLayers:
    """One forward up to the last decoder layer."""
    layers = model.decoder_layers
    check_forward(model, inputs)
    batch = model.batch(inputs)
    reader = _LayerReader(batch, watchers)
    handles = [on_input(layers[0], reader.read_decoder_input)]
    stages = VisionStages(model.parts)
    attends = model.parts.fusion == CROSS_ATTENTION
    if attends:
        handles.extend(stages.handles())
    for number, (layer, norms) in enumerate(zip(layers, model.layer_norms, strict=True), start=1):
        handles.append(on_input(layer, partial(reader.read_input, number)))
        handles.extend(on_call(norm, reader.read_norm) for norm in norms)
        handles.append(on_output(layer, partial(reader.read_output, number)))
    with observing(model.model), attached(*handles), ExitStack() as watching:
        for watcher in watchers:
            watching.enter_context(watcher.watching(layers))
        run_until(model.model, moved_to(model.model, inputs), leaving=layers[-1])
        attended = stages.norms() if attends and pixel_inputs(inputs) else None
        return reader.seen(attended)


def rows(seen: SeenLayers, sample_ids: Sequence[str] | None) -> pd.DataFrame:
    """One row a (sample, layer, token group)."""
    names = sample_ids or [str(number) for number in range(len(seen.batch.prompt_groups))]
    found = _rows(seen, names)
    if seen.attended is not None:
        numbers = seen.batch.inputs.get(IMAGE_NUMBERS)
        images = [1] * len(names) if numbers is None else numbers.amax(dim=-1).tolist()
        attended = _attended_rows(found, seen.attended.attended(images), names)
        found = pd.concat([found, attended], ignore_index=True)
    return found


class _State(NamedTuple):
    """A state between two layers, and what is known of it."""

    tensor: Tensor  # as the model passes it on
    version: int  # of the tensor: it grows when the model writes into it
    norms: Tensor  # [batch, seq]
    directions: Directions


class _LayerReader:
    """Keeps a few numbers a token, and a few a sample, of each layer while the forward runs.

    Attributes:
        tokens: by layer ``[metrics, batch, seq]``, on the device: ``_TOKEN_NUMBERS``, then those
            of each watcher.
        samples: by layer ``[batch, _SAMPLE_NUMBERS]``, on the device.
        grouped: for each watcher of groups, by layer, its ``see_groups``.
    """

    def __init__(self, batch: MeasuredBatch, watchers: Sequence[Watcher]) -> None:
        self.watchers = watchers
        self.groups = batch.prompt_groups
        self.hidden_size = 0
        self.dtype = torch.float32
        self.tokens: dict[int, Tensor] = {}
        self.samples: dict[int, Tensor] = {}
        self.group_watchers = [each for each in watchers if isinstance(each, GroupWatcher)]
        self.grouped: list[dict[int, Tensor]] = [{} for _ in self.group_watchers]
        self._batch = batch
        self._read = batch.model.read_stream
        # Asked now: while the forward runs, no other can be made to find it out.
        placement = batch.model.norm_placement.partition(":")[0]
        self._reads_input = placement in WITHOUT_INPUT_NORM
        self._injection: Tensor | None = None
        self._entered: _State | None = None
        self._left: _State | None = None
        self._attended: tuple[Tensor, Tensor] | None = None  # its norms, and its cosine

    def read_decoder_input(self, tensor: Tensor) -> None:
        x = self._read(tensor)
        self.hidden_size, self.dtype = x.shape[-1], x.dtype
        self.groups = self._batch.groups_at(x)
        self.masks = group_masks(self.groups)
        self._left = state = self._state(tensor, x)
        unknown = state.norms.new_full((len(_TOKEN_NUMBERS) - 1, *state.norms.shape), torch.nan)
        watched = self._watched(0, x, x, self.masks)
        self.tokens[0] = torch.cat([state.norms.unsqueeze(0), unknown, *watched])
        empty = state.norms.new_full((len(x), 1), torch.nan)
        self.samples[0] = torch.cat(
            [
                empty.expand(-1, len(POOLED_GROUPS)),
                within_modal_cosine(state.directions),
                *self._crossed(state, x),
                empty.expand(-1, len(PAIR_METRICS) - 2),  # layer 0 turns nothing
            ],
            dim=1,
        )

    def read_input(self, number: int, tensor: Tensor) -> None:
        before, self._left, self._attended = self._left, None, None
        assert before is not None
        # Mostly the state is the very tensor that the layer before returned. DeepStack adds visual
        # features to it, cross-attention between the layers changes the text.
        if before.tensor is tensor and before.version == tensor._version:
            self._entered = before
            self._injection = torch.zeros_like(before.norms)
        else:
            x = widened(self._read(tensor))
            self._entered = self._state(tensor, x)
            if before.tensor is tensor:  # written in place: what it was is known by its norm alone
                self._injection = (self._entered.norms - before.norms).abs()
            else:
                self._injection = token_norms(x - widened(self._read(before.tensor).to(x.device)))

    def read_norm(self, tensor: Tensor, normed: Tensor, _: object) -> None:
        """A norm has run. The first that reads what enters the layer opens its attention."""
        entered = self._entered
        if entered is None or self._attended is not None:
            return
        if tensor.data_ptr() == entered.tensor.data_ptr() and tensor.shape == entered.tensor.shape:
            norms = token_norms(normed)
            read = directions(normed, norms, self.masks.to(normed.device))
            self._attended = norms, cross_modal_cosine(read)

    def read_output(self, number: int, output: Tensor) -> None:
        entered, self._entered = self._entered, None
        assert entered is not None and self._injection is not None
        if entered.tensor._version != entered.version:
            raise NormprobeError(
                f"decoder layer {number} overwrites its input in place, so its update is lost",
                "open an issue with the model type",
            )
        norms, cosine = self._attention_input(entered)
        # Under accelerate dispatch neighbouring layers live on different devices.
        x, h = widened(self._read(entered.tensor).to(output.device)), widened(self._read(output))
        before, injection, norms = (
            part.to(h.device) for part in (entered.norms, self._injection, norms)
        )
        self._left = left = self._state(output, h)
        moved = token_metrics(x, h, before, left.norms)
        masks, directions_before = self.masks.to(h.device), entered.directions.to(h.device)
        watched = self._watched(number, x, h, masks)
        self.tokens[number] = torch.cat([moved.metrics, torch.stack([injection, norms]), *watched])
        self.samples[number] = torch.cat(
            [
                pooled_cosine(directions_before, left.directions),
                within_modal_cosine(left.directions),
                *self._crossed(left, h),
                cosine.to(h.device).unsqueeze(-1),
                turn_cosines(moved.perpendicular, moved.turned, masks, directions_before),
            ],
            dim=1,
        )

    def _state(self, tensor: Tensor, hidden: Tensor) -> _State:
        norms = token_norms(hidden)
        of_state = directions(hidden, norms, self.masks.to(hidden.device))
        return _State(tensor, tensor._version, norms, of_state)

    def _watched(self, number: int, x: Tensor, h: Tensor, masks: Tensor) -> list[Tensor]:
        """What each watcher says of the tokens; what it says of groups is kept."""
        for watcher, kept in zip(self.group_watchers, self.grouped, strict=True):
            kept[number] = watcher.see_groups(number, h, masks)
        return [watcher.see(number, x, h) for watcher in self.watchers]

    def _crossed(self, state: _State, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The cross-modal cosines of a state, each ``[batch, 1]``."""
        masks = self.masks.to(hidden.device)
        centered = centered_cross_modal_cosine(hidden, state.norms, masks, state.directions)
        return cross_modal_cosine(state.directions).unsqueeze(-1), centered.unsqueeze(-1)

    def _attention_input(self, entered: _State) -> tuple[Tensor, Tensor]:
        """Norms of what attention reads, and its cross-modal cosine; NaN where it is not known."""
        if self._attended is not None:
            return self._attended
        norms, cosine = entered.norms, cross_modal_cosine(entered.directions)
        if self._reads_input:
            return norms, cosine
        return torch.full_like(norms, torch.nan), torch.full_like(cosine, torch.nan)

    def seen(self, attended: StageNorms | None) -> SeenLayers:
        """Everything that was kept. The host does not wait for it."""
        parts = (self.tokens, self.samples, *self.grouped)
        numbers = [part[layer] for part in parts for layer in sorted(part)]
        return SeenLayers(
            self._batch,
            self.hidden_size,
            str(self.dtype).removeprefix("torch."),
            sorted(self.tokens)[1:],
            [name for watcher in self.watchers for name in watcher.metrics],
            self.group_watchers,
            to_host([self.groups, *numbers]),
            attended,
        )


@dataclass(frozen=True)
class _NumbersOnCpu:
    """What ``_LayerReader`` kept of one forward, on the CPU. Layer 0 is the first."""

    groups: NDArray[np.int8]  # [batch, seq]
    images: NDArray[np.int64] | None  # [batch, seq], of ``MeasuredBatch.images_at``
    turns: NDArray[np.int64] | None  # likewise, of ``turns_at``
    ids: NDArray[np.int64] | None  # [batch, seq] token ids, where each has a state of its own
    layers: list[int]  # from 1 on
    watched: list[str]  # metrics of the watchers
    group_watchers: Sequence[GroupWatcher]
    tokens: NDArray[np.float32]  # [layers, _TOKEN_NUMBERS and watched, batch, seq]
    samples: NDArray[np.float32]  # [layers, batch, _SAMPLE_NUMBERS]
    grouped: Sequence[NDArray[np.float32]]  # a watcher: [layers, batch, POOLED_GROUPS, numbers]

    def of_sample(self, index: int, name: str, group: str = "") -> list[float]:
        """A number of a sample, one entry a layer, the first of layer 0."""
        column: list[float] = self.samples[:, index, _SAMPLE_NUMBERS.index((name, group))].tolist()
        return column


def _on_cpu(seen: SeenLayers) -> _NumbersOnCpu:
    """Wait for what one forward left."""
    groups, *numbers = seen.arrived()
    depth = 1 + len(seen.layers)
    images = seen.batch.images_at(torch.from_numpy(groups))
    turns = seen.batch.turns_at(torch.from_numpy(groups))
    ids = seen.batch.ids
    parts = (numbers[first : first + depth] for first in range(0, len(numbers), depth))
    tokens, samples, *grouped = (np.stack(part) for part in parts)
    return _NumbersOnCpu(
        groups=groups,
        images=None if images is None else images.numpy(),
        turns=None if turns is None else turns.numpy(),
        ids=None if ids is None or ids.shape != groups.shape else ids.cpu().numpy(),
        layers=seen.layers,
        watched=seen.watched,
        group_watchers=seen.group_watchers,
        tokens=tokens,
        samples=samples,
        grouped=grouped,
    )


def _rows(observed: SeenLayers, sample_ids: Sequence[str]) -> pd.DataFrame:
    """One block of rows, layer 0 to the last, for each sample and group."""
    seen = _on_cpu(observed)
    common = {"hidden_size": observed.hidden_size, "dtype": observed.dtype}
    blocks: list[dict[str, Sequence[Any]]] = []
    for index, sample_id in enumerate(sample_ids):
        masks = masks_of(seen.groups[index])
        for group, mask in masks.items():
            named = {"sample_id": sample_id, **common, "group": group}
            blocks.extend(
                {**_repeated(named, len(block["layer"])), **block}
                for block in _group_blocks(seen, index, group, mask)
            )
        for part, mask_of_part in (*_several_images(seen, index), *_several_turns(seen, index)):
            named = {"sample_id": sample_id, **common, **part}
            blocks.extend(
                {**_repeated(named, len(block["layer"])), **block}
                for block in _token_blocks(seen, index, mask_of_part)
            )
        if {*MODALITIES} <= masks.keys():
            pair = _pair_block(seen, index)
            named = {"sample_id": sample_id, **common, "group": PAIR}
            blocks.append({**_repeated(named, len(pair["layer"])), **pair})
    return _stacked(blocks)


def _group_blocks(
    seen: _NumbersOnCpu, index: int, group: str, mask: NDArray[np.bool_]
) -> list[dict[str, Sequence[Any]]]:
    """Statistics of one group of a sample: layer 0, which has norms alone, and the rest."""
    blocks = _token_blocks(seen, index, mask)
    for name in SAMPLE_METRICS:
        known = (name, group) in _SAMPLE_NUMBERS
        column = seen.of_sample(index, name, group) if known else [np.nan] * len(seen.samples)
        blocks[0][name], blocks[1][name] = column[:1], column[1:]
    positions = (np.cumsum(seen.groups[index] != PADDING) - 1)[mask]
    ids = None if seen.ids is None else seen.ids[index, mask]
    loudest = loudest_token(seen.tokens[:, 0, index, mask], positions, ids)
    for name, of_loudest in loudest.items():
        blocks[0][name], blocks[1][name] = of_loudest[:1], of_loudest[1:]
    for name, watched in _watched_columns(seen, index, group, mask, positions):
        blocks[0][name], blocks[1][name] = watched[:1], watched[1:]
    if group in MODALITIES:  # the theory speaks of these alone
        blocks[1].update(co_moments(seen.tokens[1:, : len(TOKEN_METRICS), index, mask]))
    return blocks


def _watched_columns(
    seen: _NumbersOnCpu,
    index: int,
    group: str,
    mask: NDArray[np.bool_],
    positions: NDArray[np.int64],
) -> Iterator[tuple[str, Sequence[Any]]]:
    """What the watchers say of one group of a sample, one entry a layer from 0 on."""
    if not seen.group_watchers or group not in POOLED_GROUPS:
        return
    names = (*_TOKEN_NUMBERS, *seen.watched)
    tokens = dict(zip(names, seen.tokens[:, :, index, mask].swapaxes(0, 1), strict=True))
    ids = np.full(len(positions), NO_ID) if seen.ids is None else seen.ids[index, mask]
    for name, of_tokens in (("position", positions), ("id", np.where(ids == NO_ID, np.nan, ids))):
        tokens[name] = np.broadcast_to(of_tokens, tokens["norm"].shape)
    place = POOLED_GROUPS.index(group)
    for watcher, numbers in zip(seen.group_watchers, seen.grouped, strict=True):
        yield from watcher.columns(tokens, numbers[:, index, place]).items()


def _token_blocks(
    seen: _NumbersOnCpu, index: int, mask: NDArray[np.bool_]
) -> list[dict[str, Sequence[Any]]]:
    """Statistics over some tokens of a sample: layer 0, and the rest."""
    tokens = seen.tokens[:, :, index, mask]
    norms, measured = tokens[:1, :1], tokens[1:, :_MEASURED]
    others = (ATTENTION_INPUT, *seen.watched)
    return [
        {
            "layer": [0],
            **statistics_by_layer(norms, TOKEN_METRICS[:1]),
            **_moments(tokens[:1, _MEASURED:], norms, others),
        },
        {
            "layer": seen.layers,
            **statistics_by_layer(measured, _TOKEN_NUMBERS[:_MEASURED]),
            **_moments(tokens[1:, _MEASURED:], measured, others),
        },
    ]


def _moments(
    values: NDArray[np.float32], measured: NDArray[np.float32], names: Sequence[str]
) -> dict[str, Sequence[Any]]:
    """Mean and M2 of numbers that not every decoder has: each by itself, over the same tokens."""
    finite = finite_tokens(measured, _TOKEN_NUMBERS[: measured.shape[1]])
    columns: dict[str, Sequence[Any]] = {}
    for place, name in enumerate(names):
        alone = np.where(finite, values[:, place], np.nan)[:, None]
        found = statistics_by_layer(alone, (name,))
        columns |= {part: found[part] for part in found if part.startswith(name)}
    return columns


_Part = tuple[dict[str, Any], NDArray[np.bool_]]  # what its rows are called, and its tokens


def _several_images(seen: _NumbersOnCpu, index: int) -> Iterator[_Part]:
    """The visual tokens of each image, where a sample has several."""
    last = 0 if seen.images is None else int(seen.images[index].max())
    if seen.images is not None and last > 1:
        for number in range(1, last + 1):
            yield {"group": IMAGE, IMAGE: number}, seen.images[index] == number


def _several_turns(seen: _NumbersOnCpu, index: int) -> Iterator[_Part]:
    """The tokens of each turn by their group, where a sample has several."""
    last = 0 if seen.turns is None else int(seen.turns[index].max())
    if seen.turns is None or last < 2:
        return
    for number in range(1, last + 1):
        masks = masks_of(np.where(seen.turns[index] == number, seen.groups[index], PADDING))
        for group, mask in masks.items():
            if group in (VISUAL, TEXT, VIDEO, AUDIO):
                yield {"group": TURN, TURN: number, OF_GROUP: group}, mask


def _pair_block(seen: _NumbersOnCpu, index: int) -> dict[str, Sequence[Any]]:
    """Quantities of a sample's (visual, text) pairs, layer by layer."""
    counted = seen.groups[index] != PADDING
    injection = seen.tokens[1:, _TOKEN_NUMBERS.index(INJECTION), index, counted]
    return {
        "layer": [0, *seen.layers],
        **{name: seen.of_sample(index, name) for name in PAIR_METRICS},
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
