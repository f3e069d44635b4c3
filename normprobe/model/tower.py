"""A vision or audio tower as a model whose layers are its blocks, and whose rows run through them.

Towers bring their rows in many ways: ``[images, rows, hidden]``, tiles of all pictures one after
the other, or the patches of a whole batch in one strip. Here they become ``[samples, rows,
hidden]``. Rows that other pixels leave as they are before the first block are special (CLS,
registers), and padding where they are zero.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from inspect import signature
from itertools import accumulate, pairwise
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from normprobe.errors import NormprobeError
from normprobe.failures import is_native
from normprobe.hooks import (
    attached,
    before_call,
    in_full_precision,
    observing,
    on_input,
    on_output,
    run_until,
)
from normprobe.inputs.on_device import dtype_of, moved_to, pixel_inputs, with_other_pixels
from normprobe.model.find.norms import THEORY_APPLIES, norm_placement
from normprobe.model.find.parts import Part, Parts, size_of
from normprobe.model.measured_model import MeasuredBatch, MeasuredModel
from normprobe.model.provenance import text_ids
from normprobe.model.stage_states import counted_rows
from normprobe.model.tracing.recording import tensors
from normprobe.schema import (
    AUDIO,
    IMAGE_NUMBERS,
    PADDING,
    SPECIAL,
    TOKEN_GROUPS,
    VIDEO,
    VISUAL,
)

#: What ``--tower`` names, and the token group of its rows.
GROUP_OF = {"vision": VISUAL, "audio": AUDIO}

#: What a row is called that is neither special nor padding, of pictures and of sounds.
_ROW = TOKEN_GROUPS.index(VISUAL)

#: How far the sum of squares of the same numbers may be apart, added in another order.
_SAME_SUM = 1e-6

_ONE_BY_ONE = "measure with --batch-size 1"
_INTERFACE = "measure what the tower hands over: normprobe interface"


def tower_parts(parts: Parts, modality: str) -> tuple[Part | None, Part | None]:
    """The tower of a model and its projector, each None where there is none."""
    if modality == "audio":
        return parts.audio_encoder, parts.audio_projector
    return parts.vision_encoder, parts.projector


def blocks_of(encoder: Part, projector: Part | None = None) -> Part | None:
    """The transformer blocks of a tower: the largest list of modules of one class that attend.

    None where it has no such list.
    """
    inside = set(projector.module.modules()) if projector is not None else set()
    lists = [
        Part(".".join(filter(None, [encoder.name, name])), module)
        for name, module in encoder.module.named_modules()
        if isinstance(module, nn.ModuleList | nn.Sequential)
        and module not in inside
        and len(set(map(type, module))) == 1
        and all(map(_attends, module.children()))
    ]
    return max(lists, key=lambda part: size_of(part.module), default=None)


def _attends(block: nn.Module) -> bool:
    return any(
        "att" in name.rpartition(".")[2].lower() or "attention" in type(module).__name__.lower()
        for name, module in block.named_modules()
        if name
    )


@dataclass(frozen=True)
class SampleRows:
    """Where the rows of each sample lie in a state of a tower."""

    samples: int
    index: Tensor | None  # ``[samples, rows]``, -1: there is none; None: as they lie
    images: list[int]  # how many pictures or tiles each sample has

    def read(self, state: Tensor) -> Tensor:
        """A state as ``[samples, rows, hidden]``."""
        rows = state.reshape(-1, state.shape[-1])
        if self.index is None:
            return rows.reshape(self.samples, -1, rows.shape[-1])
        return rows[self.index.clamp(min=0).to(rows.device)]

    def spread(self, of_rows: Tensor, missing: float) -> Tensor:
        """A number a row of the state as ``[samples, rows]``."""
        if self.index is None:
            return of_rows.reshape(self.samples, -1)
        index = self.index.to(of_rows.device)
        return torch.where(index < 0, missing, of_rows[index.clamp(min=0)])


class TowerModel(MeasuredModel):
    """A model of which the blocks of a tower are measured as decoder layers are."""

    def __init__(self, measured: MeasuredModel, modality: str) -> None:
        encoder, self.projector = tower_parts(measured.parts, modality)
        if encoder is None or isinstance(encoder.module, nn.ModuleList):
            raise NormprobeError(
                f"{measured} has no {modality} tower that was found",
                f"name it: --part {'audio' if modality == 'audio' else 'vision'}_encoder=NAME, or "
                "leave --tower out",
            )
        blocks = blocks_of(encoder, self.projector)
        if blocks is None:
            raise _without_blocks(measured, modality, encoder)
        self.whole, self.modality, self.encoder, self.blocks = measured, modality, encoder, blocks
        self.group = GROUP_OF[modality]
        super().__init__(
            measured.model,
            replace(measured.parts, decoder_layers=blocks),
            found_by=measured.found_by,
        )
        self._rows: SampleRows | None = None
        self._shape: torch.Size | None = None  # of what enters the first block
        self._placement = ""
        self.read: list[int] = []  # blocks whose states the projector reads, of ``facts``

    @property
    def norm_placement(self) -> str:
        """Where the norms of a block stand; empty before ``facts``."""
        return self._placement

    def read_stream(self, state: Tensor) -> Tensor:
        """What a block takes or returns as ``[samples, rows, hidden]``, of the last batch.

        Raises:
            NormprobeError: the rows are others than those that entered the first block.
        """
        assert self._rows is not None and self._shape is not None
        if state.shape != self._shape:
            raise NormprobeError(
                f"the blocks of {self.blocks.name} pass on {list(state.shape)}, and "
                f"{list(self._shape)} entered the first: rows are merged or widened on the way",
                _INTERFACE,
            )
        return self._rows.read(state)

    def spread(self, of_rows: Tensor) -> Tensor | None:
        """A number a row of a state, ``[rows]``, as ``[samples, rows]``; None: of other rows."""
        assert self._rows is not None and self._shape is not None
        if of_rows.numel() != self._shape[:-1].numel():
            return None
        return self._rows.spread(of_rows.flatten(), torch.nan)

    def reads(self, inputs: Mapping[str, Any]) -> str:
        """The group of ``inputs`` that the tower reads; empty: they bring it nothing.

        Raises:
            NormprobeError: pictures and videos are there, which pass through it one by one.
        """
        groups = (AUDIO,) if self.group == AUDIO else (VISUAL, VIDEO)
        held = [group for group in groups if pixel_inputs(inputs, group)]
        if len(held) > 1:
            raise NormprobeError(
                f"a sample holds pictures and videos, and the {self.modality} tower of {self} "
                "reads them one after the other",
                "measure data that hold one of both",
            )
        return held[0] if held else ""

    def batch(self, inputs: Mapping[str, Any]) -> "TowerBatch":
        """Tell whose the rows are, and which of them are special or padding."""
        state, given = self._entering(with_other_pixels(inputs, self.reads(inputs)))
        self._refuse_part(inputs, given)
        self._rows, self._shape = self._rows_of(inputs, state), state.shape
        rows = self._rows
        counted = counted_rows(state, given)
        counted &= _unpadded_rows(inputs, state) if self.group == AUDIO else True
        codes = torch.where(counted, _ROW, PADDING).to(torch.int8)
        groups = rows.spread(codes, PADDING)
        return TowerBatch(self, inputs, groups, None, None, rows.read(state), rows.images)

    def run(self, inputs: Mapping[str, Any], **until: nn.Module) -> None:
        """Run the model up to a module; text embeddings that were not loaded are left out."""
        module = self.model if self.whole.has_decoder else self.encoder.module
        with _without_text(self.whole):
            run_until(module, moved_to(self.model, inputs), **until)

    def facts(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """What one batch tells of a tower: where norms stand, and which blocks are read."""
        layers = self.decoder_layers
        middle = layers[len(layers) // 2]
        with observing(self.model):
            try:
                word = norm_placement(middle, lambda: self.run(inputs, leaving=middle))
            except NormprobeError:
                word = ""
        if word and word != "multi-stream":
            applies = word in THEORY_APPLIES
            self._placement = f"{word}: the paper's theory " + (
                "applies" if applies else "is about pre-norm"
            )
        self.read = self._read_blocks(inputs)
        return {
            "modality": self.modality,
            "name": self.encoder.name,
            "blocks": self.blocks.name,
            "depth": len(layers),
            "norm_placement": self._placement,
            "read": self.read,  # none: what is read is no state of a block
        }

    def _entering(self, inputs: Mapping[str, Any]) -> tuple[Tensor, dict[Any, Any]]:
        """What enters the first block, and what the tower is given, by name."""
        first, names = (
            self.decoder_layers[0],
            tuple(signature(self.encoder.module.forward).parameters),
        )
        states: list[Tensor] = []
        given: dict[Any, Any] = {}

        def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given.update(kwargs, **dict(zip(names, args, strict=False)))

        with (
            observing(self.model),
            attached(before_call(self.encoder.module, keep), on_input(first, states.append)),
        ):
            try:
                self.run(inputs, entering=first)
            except NormprobeError as failure:
                if "ends without a call" not in failure.problem:
                    raise
                raise _without_blocks(self.whole, self.modality, self.encoder) from failure
        return states[0], given

    def _refuse_part(self, inputs: Mapping[str, Any], given: Mapping[Any, Any]) -> None:
        """Refuse code of a repository that runs the tower picture by picture: one would be seen."""
        if is_native(self.model):
            return
        read = self.reads(inputs)
        held = [t for name in pixel_inputs(inputs, read) for t in tensors(inputs[name])]
        taken = [t for t in tensors(dict(given)) if t.is_floating_point() and t.dim() > 1]
        pixels = sum(int((t.flatten(-3) != 0).any(-1).sum()) for t in held if t.dim() > 3)
        seen = sum(int((t.flatten(-3) != 0).any(-1).sum()) for t in taken if t.dim() > 3)
        if 0 < seen < pixels:
            raise NormprobeError(
                f"the {self.modality} tower of {self} is given {seen} of {pixels} pictures at a "
                "time: it runs several times in one forward",
                "measure samples with one picture, and --batch-size 1",
            )

    def _rows_of(self, inputs: Mapping[str, Any], state: Tensor) -> SampleRows:
        """Which rows each sample has.

        Raises:
            NormprobeError: nothing tells it.
        """
        lengths = _lengths(inputs, state)
        ids, _ = text_ids(inputs, self.whole.parts) if self.whole.has_decoder else (None, None)
        samples = len(lengths) if ids is None else len(ids)
        of_each = [len(lengths)] if samples == 1 else self._images_of(inputs, lengths, samples)
        if of_each is None:
            raise NormprobeError(
                f"the {self.modality} tower of {self} reads {list(state.shape[:-1])} rows of "
                f"{samples} samples, and nothing tells whose they are",
                _ONE_BY_ONE,
            )
        ends = [0, *accumulate(of_each)]
        sizes = [sum(lengths[a:b]) for a, b in pairwise(ends)]
        if len(set(sizes)) == 1:
            return SampleRows(samples, None, of_each)
        index = torch.full((samples, max(sizes)), -1, dtype=torch.long)
        first = 0
        for place, size in enumerate(sizes):
            index[place, :size] = torch.arange(first, first + size)
            first += size
        return SampleRows(samples, index, of_each)

    def _images_of(
        self, inputs: Mapping[str, Any], lengths: Sequence[int], samples: int
    ) -> list[int] | None:
        """How many pictures or tiles of a tower each of several samples has; None: unknown."""
        numbers = inputs.get(IMAGE_NUMBERS)
        told = [1] * samples if numbers is None else numbers.amax(dim=-1).tolist()
        tiles = _tiles(inputs, len(lengths), self.reads(inputs))
        if tiles is not None:  # of each picture, or of each sample
            if len(tiles) == samples:
                return tiles
            if len(tiles) == sum(told):
                ends = [0, *accumulate(told)]
                return [sum(tiles[a:b]) for a, b in pairwise(ends)]
        if sum(told) == len(lengths):
            return [*map(int, told)]
        return self._by_placeholders(inputs, lengths)

    def _by_placeholders(
        self, inputs: Mapping[str, Any], lengths: Sequence[int]
    ) -> list[int] | None:
        """By the share of the placeholders of a batch that each sample has."""
        ids, mask = text_ids(inputs, self.whole.parts)
        parts = self.whole.parts
        known = parts.audio_token_ids if self.group == AUDIO else parts.image_token_ids
        if ids is None or not known:
            return None
        held = torch.isin(ids, torch.tensor(known, device=ids.device))
        if mask is not None and mask.shape == held.shape:
            held &= mask.bool()
        shares = held.sum(-1).tolist()
        places = {end: number for number, end in enumerate([0, *accumulate(lengths)])}
        whole, rows = sum(shares), sum(lengths)
        cuts = [0, *(end * rows for end in accumulate(shares))]
        if not whole or any(cut % whole or cut // whole not in places for cut in cuts):
            return None
        ends = [cut // whole for cut in cuts]
        return [places[b] - places[a] for a, b in pairwise(ends)]

    def _read_blocks(self, inputs: Mapping[str, Any]) -> list[int]:
        """The blocks whose states the projector reads; none where other modules stand between.

        Numbers are told by the sum of their squares, which neither another order nor patches that
        are put side by side change.
        """
        layers, batch = self.decoder_layers, self.batch(inputs)
        projector = self.projector
        sums: list[list[float]] = []
        taken: list[float] = []
        groups: list[Tensor] = []

        @in_full_precision
        def keep(state: Tensor) -> None:
            x = self.read_stream(state)
            if not groups:
                groups.append(batch.groups_at(x))
            squares = x.double().square().sum(-1)
            chosen = (groups[0] == _ROW, groups[0] != PADDING)
            whole = state.double().square().sum()
            sums.append([*(float(squares[each].sum()) for each in chosen), float(whole)])

        def take(state: Tensor) -> None:
            taken.append(float(state.double().square().sum()))

        handles = [on_input(layers[0], keep), *(on_output(layer, keep) for layer in layers)]
        stops: dict[str, nn.Module] = {"leaving": layers[-1]}
        if projector is not None and not isinstance(projector.module, nn.ModuleList):
            handles.append(on_input(projector.module, take))
            stops = {"entering": projector.module}
        with observing(self.model), attached(*handles):
            self.run(inputs, **stops)
        return _matching(sums, taken, _declared_layers(self.model, len(layers)))


@dataclass(frozen=True)
class TowerBatch(MeasuredBatch):
    """The inputs of one forward of a tower, and which group its rows belong to."""

    other: Tensor | None = None  # what enters the first block of other pixels
    images: Sequence[int] = ()  # how many pictures or tiles each sample has

    def groups_at(self, decoder_input: Tensor) -> Tensor:
        """The groups of what enters the first block, ``[samples, rows]``."""
        assert self.other is not None
        groups = self.prompt_groups.to(decoder_input.device)
        same = (decoder_input == self.other.to(decoder_input.device)).all(-1) & (groups != PADDING)
        empty = same & (decoder_input == 0).all(-1)
        special = torch.where(same, TOKEN_GROUPS.index(SPECIAL), groups)
        return torch.where(empty, PADDING, special).to(torch.int8)

    def images_at(self, groups: Tensor) -> None:
        """Pictures are not told apart."""

    def turns_at(self, groups: Tensor) -> None:
        """Nor is what a conversation says of them."""


def _without_blocks(measured: MeasuredModel, modality: str, encoder: Part) -> NormprobeError:
    name = encoder.name or type(encoder.module).__name__
    return NormprobeError(
        f"the {modality} tower of {measured}, {name}, has no transformer blocks that it calls",
        _INTERFACE,
    )


@contextmanager
def _without_text(measured: MeasuredModel) -> Iterator[None]:
    """Zeros for text whose table was not loaded; the tower does not read them."""
    embedding, dtype = measured.parts.text_embedding, dtype_of(measured.model)
    with ExitStack() as stack:
        if embedding is not None:
            table = next(embedding.module.parameters())
            if table.is_meta:

                def zeros(ids: Tensor, *_: Any, **__: Any) -> Tensor:
                    return torch.zeros(*ids.shape, table.shape[-1], dtype=dtype, device=ids.device)

                stack.enter_context(patch.object(embedding.module, "forward", zeros))
        yield


def _lengths(inputs: Mapping[str, Any], state: Tensor) -> list[int]:
    """How many rows each picture or tile has, in the order of a state.

    A stack of pictures says it itself; a strip of patches is cut by the grid of each picture.
    """
    rows = state.shape[:-1].numel()
    if state.dim() > 2 and len(state) > 1:
        return [rows // len(state)] * len(state)
    for name, value in inputs.items():
        sizes = value if isinstance(value, Tensor) else None
        if sizes is None or sizes.dim() != 2 or sizes.is_floating_point():
            continue
        if not any(word in name for word in ("grid", "sizes", "shapes", "_hw")):
            continue
        areas = sizes.long().prod(dim=-1).tolist()
        whole = sum(areas)
        if whole and all(area * rows % whole == 0 for area in areas):
            return [area * rows // whole for area in areas]
    return [rows]


def _tiles(inputs: Mapping[str, Any], items: int, group: str) -> list[int] | None:
    """How many tiles each picture has, where pixels are ``[pictures, tiles, ...]`` and fit."""
    for name in pixel_inputs(inputs, group):
        for pixels in tensors(inputs[name]):
            if pixels.dim() < 5 or not pixels.is_floating_point():
                continue
            if pixels.shape[:2].numel() == items:
                return [pixels.shape[1]] * len(pixels)
            there = (pixels.flatten(2) != 0).any(-1).sum(-1).tolist()
            if sum(there) == items:
                return [*map(int, there)]
    return None


def _unpadded_rows(inputs: Mapping[str, Any], state: Tensor) -> Tensor:
    """Which rows of a sound are no padding, by the mask of its frames."""
    rows = state.shape[:-1].numel()
    for name, mask in inputs.items():
        named = "mask" in name and any(word in name for word in ("feature", "audio"))
        if not named or not isinstance(mask, Tensor) or mask.dim() != 2 or bool(mask.all()):
            continue
        step, rest = divmod(mask.numel(), rows)
        if state.dim() < 3 or len(mask) != len(state) or rest or not step:
            if int(mask.sum()) % rows == 0 and state.dim() < 3:  # packed, without padding
                continue
            raise NormprobeError(
                f"{name} {list(mask.shape)} does not tell which of {list(state.shape[:-1])} rows "
                "of the audio tower are padding",
                _ONE_BY_ONE,
            )
        return mask[:, ::step].reshape(-1).bool().to(state.device)
    return torch.ones(rows, dtype=torch.bool, device=state.device)


def _declared_layers(model: nn.Module, depth: int) -> list[int]:
    """The layers that a config says are put side by side for the projector; none: it does not."""
    told = getattr(getattr(model, "config", None), "vision_feature_layer", None)
    several = isinstance(told, list | tuple) and all(isinstance(each, int) for each in told)
    return [each % (depth + 1) for each in told or ()] if several else []


def _matching(
    sums: Sequence[Sequence[float]], taken: Sequence[float], told: list[int]
) -> list[int]:
    """The layers whose sums of squares are what was taken; none: nothing fits."""
    if len(taken) != 1:
        return []
    for choice in range(len(sums[0]) if sums else 0):
        for layers in [*([layer] for layer in range(len(sums))), told]:
            found = sum(sums[layer][choice] for layer in layers)
            if layers and abs(found - taken[0]) <= _SAME_SUM * taken[0]:
                return sorted(layers)
    return []
