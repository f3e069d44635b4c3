"""Tensors on their way between host and device, without the host waiting for the device.

A CUDA device works through what the host asked for. A copy through pinned memory is one more such
task; a plain copy would make the host wait until all that it asked for before is done.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
