"""Tensors in dicts, lists and tuples, and their way between host and device."""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from copy import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

#: What nothing is written into, or what is no data.
_AS_IT_IS = str | bytes | bool | int | float | complex | torch.dtype | torch.device | nn.Module


def with_tensors(
    value: Any,
    change: Callable[[Tensor], Tensor],
    otherwise: Callable[[Any], Any] = lambda other: other,
) -> Any:
    """The same value with other tensors in it. The value itself stays as it is.

    ``otherwise`` changes objects that are neither tensors nor hold them in dicts, lists and tuples.
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return like(value, {k: with_tensors(item, change, otherwise) for k, item in value.items()})
    if isinstance(value, list | tuple):
        items = [with_tensors(item, change, otherwise) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value if value is None or isinstance(value, _AS_IT_IS) else otherwise(value)


def like(kind: Mapping[str, Any], items: dict[str, Any]) -> Mapping[str, Any]:
    """The items in a mapping of the same kind: a processor's has its keys as attributes, too."""
    if type(kind) is dict or not isinstance(kind, MutableMapping):
        return items
    again = copy(kind)
    for name, item in items.items():
        again[name] = item
    return again


def arrays_as_tensors(value: Any, change: Callable[[Tensor], Tensor] = lambda t: t) -> Any:
    """The same value with its arrays of numbers as tensors, each as ``change`` returns it."""
    if isinstance(value, np.ndarray):
        return change(torch.tensor(value)) if value.dtype.kind in "biuf" else value
    if isinstance(value, Mapping):
        return like(value, {name: arrays_as_tensors(item, change) for name, item in value.items()})
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(arrays_as_tensors(item, change) for item in value)
    return value


def whole(tensor: Tensor) -> Tensor:
    """The tensor itself, where processes share it: each of them has to ask."""
    gathered: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return gathered


def find_named(inputs: Mapping[str, Any], name: str) -> Any:
    """The value of an input, wherever it lies."""
    if inputs.get(name) is not None:
        return inputs[name]
    inside = (find_named(inner, name) for inner in inputs.values() if isinstance(inner, Mapping))
    return next((value for value in inside if value is not None), None)


def flattened(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The same values without dicts, by dotted names; ``unflattened`` puts them back.

    >>> flattened({"data": {"ids": 1}, "mask": 2})
    {'data.ids': 1, 'mask': 2}
    """
    flat: dict[str, Any] = {}
    for name, value in inputs.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": item for inner, item in flattened(value).items()}
        else:
            flat[name] = value
    return flat


def unflattened(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs that ``flattened`` gave these names.

    >>> unflattened({"data.ids": 1, "mask": 2})
    {'data': {'ids': 1}, 'mask': 2}
    """
    inputs: dict[str, Any] = {}
    for path, value in flat.items():
        *outer, name = path.split(".")
        holder = inputs
        for each in outer:
            holder = holder.setdefault(each, {})
        holder[name] = value
    return inputs


Arrays = list[NDArray[Any]]


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device; itself where it is there already."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        # Pinned memory is not used again before the device has read it: torch sees to that.
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def to_host(tensors: Sequence[Tensor]) -> Callable[[], Arrays]:
    """Start copying tensors to the CPU.

    Those of one device and dtype travel as one copy.
    """
    together: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for index, tensor in enumerate(tensors):
        together.setdefault((tensor.device, tensor.dtype), []).append(index)
    started = [
        (indices, _start(torch.cat([tensors[index].flatten() for index in indices])))
        for indices in together.values()
    ]
    shapes = [tensor.shape for tensor in tensors]

    def arrived() -> Arrays:
        arrays: dict[int, NDArray[Any]] = {}
        for indices, wait in started:
            ends = np.cumsum([shapes[index].numel() for index in indices])
            flat = wait()
            flat = flat.float() if flat.dtype is torch.bfloat16 else flat
            for index, piece in zip(indices, np.split(flat.numpy(), ends[:-1]), strict=True):
                arrays[index] = piece.reshape(shapes[index])
        return [arrays[index] for index in range(len(shapes))]

    return arrived


def _start(tensor: Tensor) -> Callable[[], Tensor]:
    """Start one copy; the function that is returned waits for it."""
    if not tensor.is_cuda:
        return tensor.cpu
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    copy.copy_(tensor, non_blocking=True)
    copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # its waiter sleeps
    copied.record(torch.cuda.current_stream(tensor.device))

    def wait() -> Tensor:
        copied.synchronize()
        return copy

    return wait
