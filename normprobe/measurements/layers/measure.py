"""How large the tokens of each decoder layer are, and how far it turns them (Figures 2-5).

Hooks on the layers reduce each hidden state to a few numbers a token, and to the mean directions of
its groups, while it is there. No state outlives its layer. What needs no state is computed when the
forward has been asked for, of all layers at once: on an accelerator each operation costs the host
as much as one of the model. One copy to the CPU follows: the host waits for it where the rows are
made, and not before.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

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
from normprobe.model.stage_norms import StageNorms
from normprobe.model.vision_stages import VisionStages
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
    ScaledState,
    cross_modal_cosine,
    directions,
    group_masks,
    lengths_of,
    masks_of,
    mean_of,
    metrics_of,
    moved,
    pooled_cosine,
    state_of,
    token_norms,
    turn_cosines,
    turns_of,
    units_of,
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


_P = TypeVar("_P", bound=tuple[Tensor, ...])


@dataclass(frozen=True)
class SeenLayers:
    """What one forward leaves, on its way to the CPU."""

    batch: MeasuredBatch
    hidden_size: int
    dtype: str
    layers: list[int]  # from 1 on
    watched: list[str]  # metrics of the watchers
    group_watchers: Sequence[GroupWatcher]
    # Groups; then, layer 0 first, ``[layers, _TOKEN_NUMBERS and watched, batch, seq]``, ``[layers,
    # batch, _SAMPLE_NUMBERS]`` and for each watcher of groups its ``see_groups``.
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


class _Passed(NamedTuple):
    """A state between two layers, and what is known of it."""

    tensor: Tensor  # as the model passes it on
    version: int  # of the tensor: it grows when the model writes into it
    state: ScaledState
    directions: Directions


class _Turned(NamedTuple):
    """What is kept of a decoder layer beside the states around it."""

    entered: Directions
    lengths: Tensor  # ``lengths_of``
    injection: Tensor  # ``[batch, seq]``
    turns: tuple[Tensor, Tensor]  # ``turns_of``
    attended: tuple[Tensor, Tensor, Tensor]  # of what attention reads, norms and ``units_of``


class _LayerReader:
    """Keeps a few numbers a token, and mean directions, of each layer while the forward runs.

    Attributes:
        norms: ``[batch, seq]`` of the decoder input.
        directions: by layer, layer 0 first.
        turned: by layer from 1 on.
        watched: for each watcher, by layer, its ``see``.
        grouped: for each watcher of groups, by layer, its ``see_groups``.
    """

    def __init__(self, batch: MeasuredBatch, watchers: Sequence[Watcher]) -> None:
        self.watchers = watchers
        self.groups = batch.prompt_groups
        self.hidden_size = 0
        self.dtype = torch.float32
        self.directions: list[Directions] = []
        self.turned: list[_Turned] = []
        self.watched: list[list[Tensor]] = [[] for _ in watchers]
        self.group_watchers = [each for each in watchers if isinstance(each, GroupWatcher)]
        self.grouped: list[list[Tensor]] = [[] for _ in self.group_watchers]
        self._batch = batch
        self._read = batch.model.read_stream
        # Asked now: while the forward runs, no other can be made to find it out.
        placement = batch.model.norm_placement.partition(":")[0]
        self._reads_input = placement in WITHOUT_INPUT_NORM
        self._injection: Tensor | None = None
        self._entered: _Passed | None = None
        self._left: _Passed | None = None
        self._attended: tuple[Tensor, Tensor, Tensor] | None = None

    def read_decoder_input(self, tensor: Tensor) -> None:
        x = self._read(tensor)
        self.hidden_size, self.dtype = x.shape[-1], x.dtype
        self.groups = self._batch.groups_at(x)
        self._masks = {x.device: group_masks(self.groups)}
        self._left = self._passed(tensor, x)
        self.norms = self._left.state.norms
        self._keep(0, self._left, x, x)

    def read_input(self, number: int, tensor: Tensor) -> None:
        before, self._left, self._attended = self._left, None, None
        assert before is not None
        # Mostly the state is the very tensor that the layer before returned. DeepStack adds visual
        # features to it, cross-attention between the layers changes the text.
        if before.tensor is tensor and before.version == tensor._version:
            self._entered, self._injection = before, torch.zeros_like(before.state.norms)
            return
        x = widened(self._read(tensor))
        self._entered = self._passed(tensor, x)
        if before.tensor is tensor:  # written in place: what it was is known by its norm alone
            self._injection = (self._entered.state.norms - before.state.norms).abs()
        else:
            self._injection = token_norms(x - widened(self._read(before.tensor).to(x.device)))

    def read_norm(self, tensor: Tensor, normed: Tensor, _: object) -> None:
        """A norm has run. The first that reads what enters the layer opens its attention."""
        entered = self._entered
        if entered is None or self._attended is not None:
            return
        if tensor.data_ptr() == entered.tensor.data_ptr() and tensor.shape == entered.tensor.shape:
            state = state_of(normed)
            self._attended = state.norms, *units_of(state, self._masks_on(normed.device))

    def read_output(self, number: int, output: Tensor) -> None:
        entered, self._entered = self._entered, None
        assert entered is not None and self._injection is not None
        if entered.tensor._version != entered.version:
            raise NormprobeError(
                f"decoder layer {number} overwrites its input in place, so its update is lost",
                "open an issue with the model type",
            )
        h = self._read(output)
        self._left = left = self._passed(output, h)
        # Under accelerate dispatch neighbouring layers live on different devices.
        x = entered.state.to(h.device)
        turn = moved(x, left.state)
        self.turned.append(
            _Turned(
                entered.directions,
                lengths_of(x, left.state, turn),
                self._injection,
                turns_of(turn, self._masks_on(h.device)),
                self._attention_input(entered),
            )
        )
        self._keep(number, left, self._read(entered.tensor), h)

    def _passed(self, tensor: Tensor, hidden: Tensor) -> _Passed:
        state = state_of(hidden)
        of_state = directions(state, self._masks_on(hidden.device))
        return _Passed(tensor, tensor._version, state, of_state)

    def _masks_on(self, device: torch.device) -> Tensor:
        if device not in self._masks:
            self._masks[device] = next(iter(self._masks.values())).to(device)
        return self._masks[device]

    def _keep(self, number: int, passed: _Passed, x: Tensor, h: Tensor) -> None:
        """What is kept of a state that leaves a layer, and what the watchers say of it."""
        self.directions.append(passed.directions)
        if not self.watchers:
            return
        x, h = widened(x.to(h.device)), widened(h)
        for watcher, kept in zip(self.group_watchers, self.grouped, strict=True):
            kept.append(watcher.see_groups(number, h, self._masks_on(h.device)))
        for each, kept in zip(self.watchers, self.watched, strict=True):
            kept.append(each.see(number, x, h))

    def _attention_input(self, entered: _Passed) -> tuple[Tensor, Tensor, Tensor]:
        """Norms of what attention reads, and its ``units_of``; NaN where it is not known."""
        if self._attended is not None:
            return self._attended
        norms, read = entered.state.norms, entered.directions
        if not self._reads_input:
            norms = torch.full_like(norms, torch.nan)
            read = read._replace(units=torch.full_like(read.units, torch.nan))
        return norms, read.units, read.tokens

    def seen(self, attended: StageNorms | None) -> SeenLayers:
        """Everything that was kept. The host does not wait for it."""
        grouped = [_together(kept) for kept in self.grouped]
        return SeenLayers(
            self._batch,
            self.hidden_size,
            str(self.dtype).removeprefix("torch."),
            [*range(1, len(self.directions))],
            [name for watcher in self.watchers for name in watcher.metrics],
            self.group_watchers,
            to_host([self.groups, self._token_numbers(), self._sample_numbers(), *grouped]),
            attended,
        )

    def _token_numbers(self) -> Tensor:
        """``[layers, _TOKEN_NUMBERS and watched, batch, seq]``."""
        lengths = _together([each.lengths for each in self.turned])
        injection = _together([each.injection for each in self.turned])
        attended = _together([each.attended[0] for each in self.turned])
        others = torch.stack([injection, attended])  # ``OTHER_TOKEN_METRICS``
        numbers = torch.cat([metrics_of(lengths.movedim(1, 0)), others])
        first = numbers[:, :1] * torch.nan  # layer 0 has norms alone
        first[0, 0] = self.norms
        numbers = torch.cat([first, numbers], dim=1).movedim(0, 1)
        return torch.cat([numbers, *map(_together, self.watched)], dim=1)

    def _sample_numbers(self) -> Tensor:
        """``[layers, batch, _SAMPLE_NUMBERS]``."""
        left = _all_layers(self.directions)
        entered = _all_layers([each.entered for each in self.turned])
        units, centered = (mean_of(sums, left.tokens) for sums in (left.units, left.centered))
        attended = mean_of(*_all_layers([each.attended[1:] for each in self.turned]))
        turns = mean_of(*_all_layers([each.turns for each in self.turned]))
        pooled, *paired = (
            torch.cat([each[:1] * torch.nan, each])  # layer 0 turns nothing
            for each in (
                pooled_cosine(entered.groups, left.groups[1:]),
                cross_modal_cosine(attended).unsqueeze(-1),
                turn_cosines(turns, mean_of(entered.units, entered.tokens)),
            )
        )
        crossed = [cross_modal_cosine(each).unsqueeze(-1) for each in (units, centered)]
        return torch.cat([pooled, within_modal_cosine(left), *crossed, *paired], dim=-1)


def _all_layers(parts: Sequence[_P]) -> _P:
    """Tuples of numbers, one a layer, as one tuple of ``_together``."""
    together: Any = [_together(of_layers) for of_layers in zip(*parts, strict=True)]
    kind: Any = type(parts[0])
    return kind(*together) if hasattr(kind, "_fields") else kind(together)  # type: ignore[no-any-return]


def _together(of_layers: Sequence[Tensor]) -> Tensor:
    """Numbers of all layers, on the device of the first."""
    return torch.stack([each.to(of_layers[0].device) for each in of_layers])


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
    groups, tokens, samples, *grouped = seen.arrived()
    images = seen.batch.images_at(torch.from_numpy(groups))
    turns = seen.batch.turns_at(torch.from_numpy(groups))
    ids = seen.batch.ids
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
