"""What a script's model runs on: this machine, with its widths, beams and random draws."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, wraps
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import GenerationMixin, PreTrainedModel

from normprobe.hooks import same_random_numbers
from normprobe.model.tracing.recording import tensors
from normprobe.tensors import with_tensors

#: What autocast computes in the narrower type, and what in the wider one.
_NARROWED = (
    *("conv1d", "conv2d", "conv3d", "linear", "matmul", "__matmul__", "bmm", "einsum"),
    "scaled_dot_product_attention",
)
_WIDENED = ("layer_norm", "group_norm", "cat", "stack")
_AS_AUTOCAST = "autocast of a GPU"

_BEGIN: Any = getattr(torch.distributed, "init_process_group", None)
_AUTOCAST, _LOAD, _DEVICE = torch.autocast.__init__, torch.load, torch.device


class OnThisMachine(TorchFunctionMode):
    """Leaves on the CPU what a script puts on a GPU, on a machine that has none.

    ``noted`` gets the name of what is computed as autocast of a GPU would.
    """

    def __init__(self, noted: list[str] | None = None) -> None:
        super().__init__()
        self._noted = [] if noted is None else noted

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        more = dict(kwargs or {})
        if "device" in more:
            more["device"] = _on_the_cpu(more["device"])
        if getattr(func, "__name__", "") == "cuda":
            return args[0]
        if getattr(func, "__name__", "") == "to":
            args = (args[0], *map(_on_the_cpu, args[1:]))
        try:
            return func(*args, **more)
        except RuntimeError:
            if (made := _of_one_width(func, args, more)) is None:
                raise
            if _AS_AUTOCAST not in self._noted:
                self._noted.append(_AS_AUTOCAST)
            return made


def _of_one_width(func: Any, args: Any, named: Mapping[str, Any]) -> Any:
    """What autocast of a GPU makes of floats of several widths; None: it makes nothing of them.

    Code that asks for it by the device of its model does without on a CPU (BLIP-2, MiniGPT-4).
    """
    name = getattr(func, "__name__", "")
    widths = {each.dtype for each in tensors([args, named]) if each.is_floating_point()}
    if len(widths) < 2 or name not in (*_NARROWED, *_WIDENED):
        return None
    pick = min if name in _NARROWED else max
    width = pick(widths, key=lambda each: each.itemsize)
    cast = partial(with_tensors, change=lambda each: _as_float(each, width))
    with torch.autocast("cpu", enabled=False):
        return func(*cast(list(args)), **cast(dict(named)))


def _as_float(tensor: Tensor, width: torch.dtype) -> Tensor:
    return tensor.to(width) if tensor.is_floating_point() else tensor


def on_this_machine(noted: list[str] | None = None) -> AbstractContextManager[object]:
    """Where there is no GPU, leave on the CPU what code of the block puts on one."""
    return nullcontext() if torch.cuda.is_available() else _on_the_processor(noted)


@contextmanager
def without_inference_mode() -> Iterator[None]:
    """Inside the block it computes no gradients, as ever, and its tensors are any others.

    Those of inference mode do not tell whether a layer writes into them.
    """
    held: list[Any] = []

    def enter(self: torch.inference_mode) -> None:
        held.append(torch.no_grad() if self.mode else torch.enable_grad())
        held[-1].__enter__()

    def leave(_: torch.inference_mode, *error: Any) -> None:
        held.pop().__exit__(*error)

    kind = torch.inference_mode
    with patch.object(kind, "__enter__", enter), patch.object(kind, "__exit__", leave):
        yield


@contextmanager
def of_one_beam() -> Iterator[None]:
    """Inside the block an answer is looked for once: beams read copies of one prompt."""
    generate = GenerationMixin.generate

    def once(self: Any, *given: Any, **named: Any) -> Any:
        asked = {"num_beams": 1, "num_return_sequences": 1}
        return generate(self, *given, **(named | asked))

    with patch.object(GenerationMixin, "generate", wraps(generate)(once)):
        yield


@contextmanager
def _on_the_processor(noted: list[str] | None) -> Iterator[None]:
    load = vars(PreTrainedModel)["from_pretrained"].__func__

    def load_here(kind: Any, *given: Any, **named: Any) -> Any:
        named.pop("max_memory", None)
        if "device_map" in named:
            named["device_map"] = _placed_here(named["device_map"])
        return load(kind, *given, **named)

    move = nn.Module.to

    def move_here(self: nn.Module, *given: Any, **named: Any) -> nn.Module:
        here = {name: _on_the_cpu(v) if name == "device" else v for name, v in named.items()}
        return move(self, *map(_on_the_cpu, given), **here)

    with (
        OnThisMachine(noted),
        patch.object(nn.Module, "to", move_here),
        patch.object(torch.autocast, "__init__", _narrow_on_the_cpu),
        patch.object(PreTrainedModel, "from_pretrained", classmethod(load_here)),
        patch.object(torch, "set_default_tensor_type", _as_wide),
        patch.object(torch, "device", _Device),
        patch.object(torch, "load", _load_here),
        patch.object(torch.cuda, "current_device", lambda: 0),
        patch.object(torch.cuda, "set_device", lambda _: None),
        patch.object(torch.cuda, "device_count", lambda: 1),  # over which code spreads its layers
        patch.object(torch.cuda, "synchronize", lambda *_: None),
        patch.object(torch.distributed, "init_process_group", _begin_alone, create=True),
    ):
        yield


def _begin_alone(*_: Any, **__: Any) -> None:
    """Of the processes that a launcher would start, one: what it asks of others comes back."""
    if not torch.distributed.is_initialized():
        alone: Any = torch.distributed
        _BEGIN("gloo", store=alone.HashStore(), rank=0, world_size=1)


class _DeviceKind(type):
    def __call__(cls, *given: Any, **named: Any) -> torch.device:
        """``torch.device(0)`` is one of a GPU, too."""
        return _DEVICE("cpu") if given and isinstance(given[0], int) else _DEVICE(*given, **named)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _DEVICE)


class _Device(metaclass=_DeviceKind):
    """Stands for ``torch.device``."""


def _load_here(file: Any, map_location: Any = None, *given: Any, **named: Any) -> Any:
    place = "cpu" if map_location is None else _on_the_cpu(map_location)
    return _LOAD(file, place, *given, **named)


def _as_wide(kind: Any) -> None:
    """Of tensors that are made on a GPU, their dtype."""
    found = getattr(torch, kind.rpartition(".")[2]) if isinstance(kind, str) else kind
    torch.set_default_dtype(found.dtype)


def _placed_here(device_map: Any) -> Any:
    """Where parts of a model lie, without a GPU, of which a number names one."""
    if isinstance(device_map, Mapping):
        return {name: _placed_here(place) for name, place in device_map.items()}
    return _on_the_cpu(device_map)


def _narrow_on_the_cpu(
    self: Any, device_type: str, dtype: torch.dtype | None = None, *given: Any, **named: Any
) -> None:
    """``torch.autocast("cuda")`` computes as wide on a CPU as it would have on a GPU."""
    here = _on_the_cpu(device_type)
    if dtype is None and here != device_type:
        dtype = torch.float16
    _AUTOCAST(self, here, dtype, *given, **named)


def _on_the_cpu(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return "cpu"  # the number of a GPU
    named = value if isinstance(value, str | _DEVICE) else ""
    return "cpu" if str(named).partition(":")[0] == "cuda" else value


def drawing() -> tuple[Any, ...]:
    """The states of all that draws at random."""
    there = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    on_gpus = torch.cuda.get_rng_state_all() if there else []
    return torch.get_rng_state(), on_gpus, random.getstate(), np.random.get_state()


@contextmanager
def drawing_as(states: tuple[Any, ...]) -> Iterator[None]:
    """Inside the block what is drawn at random is what was drawn from such states on."""
    on_cpu, on_gpus, of_python, of_numpy = states
    with same_random_numbers():
        torch.set_rng_state(on_cpu)
        if on_gpus:
            torch.cuda.set_rng_state_all(on_gpus)
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        yield
