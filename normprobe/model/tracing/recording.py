"""Run a model once and keep sketches of what every module takes and returns."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normprobe.hooks import after_call, attached, before_call, observing, run_until
from normprobe.model.tracing.sketches import Sketch, sketch
from normprobe.nested import unflattened

#: A list of this many modules of one class holds blocks. The blocks are watched, the modules inside
#: them are not: there are hundreds, and no part of a model is inside a block.
_BLOCKS = 3


@dataclass
class Call:
    """One run of one module.

    Attributes:
        name: of the module, dotted.
        began: the time; a clock that ticks whenever a module begins or ends.
        ended: likewise.
        inputs: the floating-point tensors that the module took.
        outputs: those that it returned.
        reads_ids: names of the model's inputs of token ids that the module took unchanged.
    """

    name: str
    began: int
    ended: int = -1
    inputs: list[Sketch] = field(default_factory=list)
    outputs: list[Sketch] = field(default_factory=list)
    reads_ids: tuple[str, ...] = ()


#: Calls by module and how often it had run before: the same key is the same step in every forward.
Recording = dict[tuple[str, int], Call]


def record(model: nn.Module, inputs: Mapping[str, Any]) -> Recording:
    """Run the model without gradients, dropout and cache.

    Inputs inside dicts have dotted names, of ``nested.flattened``. Random numbers that the model
    draws are the same in every recording. The hooks are removed however the forward ends.
    """
    recorder = _Recorder({name: t for name, t in inputs.items() if is_ids(t)})
    handles = [
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
        run_until(model, unflattened(inputs))
    return recorder.recording


def watched(model: nn.Module) -> dict[str, nn.Module]:
    """All modules but those inside a block of a longer list."""
    inside: set[nn.Module] = set()
    for module in model.modules():
        if isinstance(module, nn.ModuleList | nn.Sequential):
            classes = Counter(type(block) for block in module)
            blocks = [block for block in module if classes[type(block)] >= _BLOCKS]
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

        Models may put another id in the place of a placeholder.
        """
        for name, ids in self._ids.items():
            for tensor in arriving:
                if is_ids(tensor) and tensor.shape == ids.shape:
                    agree = ids.to(tensor.device) == tensor
                    if len(set(tensor[agree].tolist())) > 1:
                        yield name


def is_ids(value: Any) -> bool:
    """Whether a value may hold token ids: whole numbers, ``[batch, seq]``."""
    return (
        isinstance(value, Tensor) and value.dim() == 2 and value.dtype in (torch.int64, torch.int32)
    )


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
        yield from tensors(vars(value))


def _sketches(values: Any) -> list[Sketch]:
    return [sketch(t) for t in values if t.is_floating_point() and t.dim() and t.numel()]
