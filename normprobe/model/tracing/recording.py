"""Run a model once and keep sketches of what every module takes and returns."""

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from normprobe.errors import NormprobeError
from normprobe.hooks import after_call, attached, before_call, observing, run_until
from normprobe.model.find.parts import head_of
from normprobe.tensors import unflattened

#: Random projections kept of each vector. Two unrelated vectors agree by chance once in 1e13.
PROJECTIONS = 8

#: Narrower axes are joined with the one before, so that a sketch is smaller than what it replaces.
NARROWEST_VECTOR = 16

#: Vectors that point the same way: the bound on 1 - cos^2, above what bfloat16 rounds.
SAME_DIRECTION = 2e-4

#: Moments that agree, relative.
_SAME_MOMENT = 1e-4

#: At most this many vectors are looked for: a sample tells the share that is found.
_SAMPLED_VECTORS = 512

#: Larger numbers are no activations but masks or infinities; they would drown the others.
_LARGEST = 1e9

#: Numbers converted to float32 at a time.
_CHUNK = 2**22


@dataclass(frozen=True)
class Sketch:
    """What is kept of one tensor."""

    shape: tuple[int, ...]  # the leading axes; the tensor is ``[*shape, width]``
    width: int  # how many numbers a vector has
    # random projections of each vector, ``[vectors, PROJECTIONS]`` float32 on the CPU; their norm
    # is near that of the vector
    vectors: Tensor
    moments: Tensor  # ``[vectors, 3]``: sums of absolute values, squares and fourth powers
    resolution: float  # relative changes below this are rounding


def sketch(tensor: Tensor) -> Sketch:
    """Sketch a floating-point tensor of at least one axis."""
    shape = tuple(tensor.shape)
    leading = max(len(shape) - 1, 0)
    while leading and prod(shape[leading:]) < NARROWEST_VECTOR:
        leading -= 1
    width = prod(shape[leading:])
    vectors = tensor.detach().reshape(prod(shape[:leading]), width)
    directions = _directions(width).to(tensor.device)
    at_once = max(1, _CHUNK // max(width, 1))
    parts = [
        _reduced(vectors[start : start + at_once].float(), directions)
        for start in range(0, len(vectors), at_once)
    ]
    numbers = torch.cat(parts).cpu() if parts else torch.zeros(0, PROJECTIONS + 3)
    return Sketch(
        shape[:leading],
        width,
        numbers[:, :PROJECTIONS],
        numbers[:, PROJECTIONS:],
        resolution=max(1e-5, torch.finfo(tensor.dtype).eps / 8),
    )


def _reduced(vectors: Tensor, directions: Tensor) -> Tensor:
    """Projections and moments side by side, ``[vectors, PROJECTIONS + 3]``."""
    vectors = torch.where(vectors.abs() < _LARGEST, vectors, 0.0)
    moments = [vectors.abs().sum(1), vectors.square().sum(1), vectors.pow(4).sum(1)]
    return torch.cat([vectors @ directions, torch.stack(moments, 1)], dim=1)


def _directions(width: int) -> Tensor:
    """Random directions, ``[width, PROJECTIONS]``: the same for a width in every forward."""
    generator = torch.Generator().manual_seed(width)
    deviation = torch.full((width, PROJECTIONS), PROJECTIONS**-0.5, dtype=torch.float32)
    return torch.normal(0.0, deviation, generator=generator)


def differs(first: Sketch, second: Sketch) -> Tensor:
    """Which vectors of two tensors of one shape differ: ``[*shape]`` bool."""
    norm = partial(torch.linalg.vector_norm, dim=1)
    distance = norm(first.vectors - second.vectors)
    size = torch.maximum(norm(first.vectors), norm(second.vectors))
    differing: Tensor = distance > first.resolution * size
    return differing.reshape(first.shape)


def share_among(wanted: Tensor, among: Tensor) -> float:
    """The share of vectors that are among others; each may be scaled.

    Args:
        wanted: ``[vectors, PROJECTIONS]``, none of them zero.
        among: ``[others, PROJECTIONS]``.
    """
    misfits = _misfits(wanted, among)
    return float((misfits < SAME_DIRECTION).float().mean()) if len(misfits) else 0.0


def misfit(wanted: Tensor, among: Tensor) -> float:
    """How far vectors are from the nearest of others: the median of 1 - cos^2.

    Infinite where there are no vectors or no others.
    """
    misfits = _misfits(wanted, among)
    return float(misfits.median()) if len(misfits) else float("inf")


def _misfits(wanted: Tensor, among: Tensor) -> Tensor:
    if not len(wanted) or not len(among):
        return torch.zeros(0)
    step = -(-len(wanted) // _SAMPLED_VECTORS)
    unit_among = torch.nn.functional.normalize(among.double(), dim=1)
    unit_wanted = torch.nn.functional.normalize(wanted[::step].double(), dim=1)
    return torch.stack([1 - (unit_among @ vector).square().max() for vector in unit_wanted])


def same_numbers(first: Tensor, second: Tensor) -> bool:
    """Whether two sets of vectors hold the same numbers in any grouping, up to one factor.

    Args:
        first: moments of vectors, ``[vectors, 3]``.
        second: ``[others, 3]``, of as many numbers; their vectors may have another width.
    """
    ratios = []
    for moments in (first, second):
        absolute, square, fourth = moments.double().sum(0).tolist()
        if not square > 0:
            return False
        ratios.append((absolute / square**0.5, fourth / square**2))
    return all(abs(a - b) <= _SAME_MOMENT * abs(a) for a, b in zip(*ratios, strict=True))


#: A list of this many modules of one class holds blocks. The blocks are watched, the modules inside
#: them are not: there are hundreds, and no part of a model is inside a block.
_BLOCKS = 3


@dataclass
class Call:
    """One run of one module."""

    name: str  # of the module, dotted
    began: int  # the time; a clock that ticks whenever a module begins or ends
    ended: int = -1  # likewise
    # the floating-point tensors that the module took
    inputs: list[Sketch] = field(default_factory=list)
    outputs: list[Sketch] = field(default_factory=list)  # those that it returned
    # names of the model's inputs of token ids that the module took, or some of them
    reads_ids: tuple[str, ...] = ()
    ids_read: int = 0  # how many ids it took so


#: Calls by module and how often it had run before: the same key is the same step in every forward.
Recording = dict[tuple[str, int], Call]


def record(
    model: nn.Module, inputs: Mapping[str, Any], *, blurred: Collection[str] = ()
) -> Recording:
    """Run the model without gradients, dropout and cache.

    Inputs inside dicts have dotted names, of ``nested.flattened``. Random numbers that the model
    draws are the same in every recording. The hooks are removed however the forward ends. What the
    modules ``blurred`` return gets noise.
    """
    recorder = _Recorder({name: t for name, t in inputs.items() if is_ids(t)})
    handles = [after_call(model.get_submodule(name), _blur) for name in blurred]
    handles += [
        handle
        for name, module in watched(model).items()
        for handle in (
            before_call(module, recorder.at_begin_of(name)),
            after_call(module, recorder.at_end_of(name)),
        )
    ]
    devices = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
    with observing(model), attached(*handles), torch.random.fork_rng(devices):
        torch.manual_seed(0)
        try:
            run_until(model, unflattened(inputs))
        except NormprobeError:
            # Behind the logits a loss is made, and no part of a model is.
            if not {name for name, _ in recorder.recording} & _heads(model):
                raise
    return recorder.recording


def _heads(model: nn.Module) -> set[str]:
    """The names of what makes logits, of the model and of those inside."""
    heads = set[Any]()
    for module in model.modules():
        with suppress(Exception):  # code of anyone
            heads.add(head_of(module))
    return {name for name, module in model.named_modules() if module in heads}


def _blur(_: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
    """A hook that adds noise to what a table returns, a half of its size."""
    if not isinstance(output, Tensor):
        return None
    generator = torch.Generator().manual_seed(output.numel())
    noise = torch.randn(output.shape, generator=generator).to(output)
    return output + 0.5 * output.float().std().to(output.dtype) * noise


def watched(model: nn.Module) -> dict[str, nn.Module]:
    """All modules but those inside a block of a longer list."""
    inside: set[nn.Module] = set()
    for module in model.modules():
        if isinstance(module, nn.ModuleList | nn.Sequential):
            classes = Counter(map(type, module.children()))  # a place may hold none
            blocks = [block for block in module.children() if classes[type(block)] >= _BLOCKS]
            inside.update(inner for block in blocks for inner in block.modules())
            inside.difference_update(blocks)
    return {name: module for name, module in model.named_modules() if module not in inside}


class _Recorder:
    """Hooks that keep sketches. A stack of open calls pairs the begin of a call with its end."""

    def __init__(self, ids: Mapping[str, Tensor]) -> None:
        self.recording: Recording = {}
        self._ids = ids
        self._open: list[Call] = []
        self._runs: Counter[str] = Counter()
        self._clock = 0

    def at_begin_of(self, name: str) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            arriving = list(tensors((args, kwargs)))
            call = Call(name, self._tick(), inputs=_sketches(arriving))
            if not call.inputs:
                call.reads_ids = tuple(self._names_of(arriving))
                if call.reads_ids:
                    call.ids_read = max(t.numel() for t in arriving if _are_ids(t))
            self._open.append(call)

        return hook

    def at_end_of(self, name: str) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            # Calls above this one on the stack raised, and the model caught it.
            while (call := self._open.pop()).name != name:
                pass
            call.ended = self._tick()
            call.outputs = _sketches(tensors(output))
            self.recording[name, self._runs[name]] = call
            self._runs[name] += 1

        return hook

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _names_of(self, arriving: list[Tensor]) -> Iterator[str]:
        """Inputs of ids that arrive at a module; two equal words are enough to recognise one.

        Models may put another id in the place of a placeholder, or look a prompt up in pieces.
        """
        for name, ids in self._ids.items():
            for tensor in arriving:
                if is_ids(tensor) and tensor.shape == ids.shape:
                    agree = ids.to(tensor.device) == tensor
                    if len(set(tensor[agree].tolist())) > 1:
                        yield name
                elif _are_ids(tensor) and _is_piece(tensor.flatten(), ids):
                    yield name


def is_ids(value: Any) -> bool:
    """Whether a value may hold token ids: whole numbers, ``[batch, seq]``."""
    return (
        isinstance(value, Tensor) and value.dim() == 2 and value.dtype in (torch.int64, torch.int32)
    )


def _are_ids(value: Tensor) -> bool:
    return value.dtype in (torch.int64, torch.int32) and value.dim() in (1, 2)


def _is_piece(piece: Tensor, ids: Tensor) -> bool:
    """Whether ids are words of one prompt in their order, without some; positions are none."""
    wanted = piece.tolist()
    if len(set(wanted)) < 2 or bool((piece.diff() == 1).all()):
        return False
    if len(piece) == ids.shape[1]:  # all of it, with others in the place of some (Ovis 1.6)
        agree = (ids.to(piece.device) == piece).sum(1).max()
        if 2 * int(agree) > len(piece):
            return True
    for row in ids.tolist():
        rest = iter(row)
        if all(word in rest for word in wanted):
            return True
    return False


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor in what a module takes or returns."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from tensors(tuple(value.values()))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from tensors([getattr(value, each.name, None) for each in dataclasses.fields(value)])


def _sketches(values: Any) -> list[Sketch]:
    return [sketch(t) for t in values if t.is_floating_point() and t.dim() and t.numel()]
