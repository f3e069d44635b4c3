"""How much memory operators of torch ask for."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from normprobe.model.tracing.recording import tensors


class Allocations(TorchDispatchMode):
    """The bytes of all storages that operators made and that are still alive, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        given = {tensor.untyped_storage()._cdata for tensor in tensors((args, kwargs))}
        for tensor in tensors(result):
            storage = tensor.untyped_storage()
            if storage._cdata not in given:  # a view of a weight is no allocation
                self.alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.peak = max(self.peak, self.held())
        return result

    def held(self) -> int:
        return sum(size for storage, size in self.alive.values() if not storage.expired())


@contextmanager
def allocations() -> Iterator[Allocations]:
    with torch.no_grad(), Allocations() as mode:
        yield mode
