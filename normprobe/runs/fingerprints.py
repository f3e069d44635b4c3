"""Whether a model and local files are still what they were, told from their content alone.

Weights are told by the tensors of the loaded model, wherever they came from: one file or many, of
any format, merged with an adapter, or a module in memory. Nothing is read twice for it, and what is
told is what is measured. Pictures and prompts are told sample by sample, as they become inputs.
"""

from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xxhash import xxh3_64, xxh3_64_hexdigest, xxh3_128

from normprobe.data.local import SUFFIXES
from normprobe.runs.run_folder import RECORD

if TYPE_CHECKING:
    from torch import Tensor, nn

#: Files that are not hashed: weights and pictures, which are told when they are read.
_TOLD_WHEN_READ = {
    *(".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx"),
    *SUFFIXES,
}

_THREADS = 4  # hashing releases the interpreter's lock; more would wait for the memory


def fingerprints(*sources: str) -> dict[str, str]:
    """A fingerprint of each file, and of each file in or below a folder; nothing of a hub id.

    Files are read whole, but for weights and pictures: these are left out.
    """
    return {
        f"{number}:{file.relative_to(source) if Path(source).is_dir() else file.name}": _of(file)
        for number, source in enumerate(sources)
        for file in _files(Path(source))
    }


def tensor_digests(model: "nn.Module", names: Collection[str]) -> dict[str, str]:
    """A digest of each tensor that a checkpoint of a model holds: 16 hex digits.

    It is of type, shape and every byte. Buffers that a model computes by itself have none.
    """
    from accelerate.utils import align_module_device, has_offloaded_params

    from normprobe.tensors import whole
    from normprobe.versions import tied_weights

    owners = {_owner(name) for name in names}
    tied = tied_weights(model).items()
    again = {name for name, first in tied if {_owner(name), _owner(first)} <= owners}
    made: dict[str, Future[str]] = {}
    with ThreadPoolExecutor(_THREADS) as threads:
        for prefix, module in model.named_modules():
            if prefix not in owners:
                continue
            with align_module_device(module):
                own = {
                    name: threads.submit(_digest, whole(tensor))
                    for name, tensor in _saved(module, prefix).items()
                    if not tensor.is_meta and name not in again
                }
                if has_offloaded_params(module):
                    wait(own.values())
            made |= own
    return {name: digest.result() for name, digest in made.items()}


def one_digest(digests: Mapping[str, Any]) -> str:
    """One of many: 16 hex digits.

    The names are left out: releases of transformers have other ones for the same tensors.
    """
    return xxh3_64_hexdigest(" ".join(sorted(map(str, filter(None, digests.values())))).encode())


def _owner(name: str) -> str:
    """The module that holds a tensor."""
    return name.rpartition(".")[0]


def _saved(module: "nn.Module", prefix: str) -> "dict[str, Tensor]":
    """What a module saves of its own: weights, buffers, and scales where it is quantised."""
    import torch

    saved: dict[str, Any] = {}
    module._save_to_state_dict(saved, f"{prefix}." if prefix else "", keep_vars=True)
    return {name: tensor for name, tensor in saved.items() if isinstance(tensor, torch.Tensor)}


def _digest(tensor: "Tensor") -> str:
    import torch

    digest = xxh3_64(f"{tensor.dtype} {list(tensor.shape)}".encode())
    if hasattr(tensor, "__tensor_flatten__"):  # several tensors in one, such as values and scales
        for name in tensor.__tensor_flatten__()[0]:
            digest.update(_digest(getattr(tensor, name)).encode())
    else:
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _files(source: Path) -> list[Path]:
    if not source.is_dir():
        return [source] if source.is_file() else []
    below = [file for file in sorted(source.rglob("*")) if file.is_file()]
    runs = {file.parent for file in below if file.name == RECORD} - {source}
    return [
        file
        for file in below
        if file.suffix.lower() not in _TOLD_WHEN_READ
        and not any(
            part.startswith((".", "__pycache__")) for part in file.relative_to(source).parts
        )
        and runs.isdisjoint(file.parents)
    ]


def _of(file: Path) -> str:
    with file.open("rb") as content:
        return file_digest(content, xxh3_128).hexdigest()
