"""The tensors of a checkpoint by key: which file holds each, its shape and type, its values.

Of a checkpoint on the hub, as little is fetched as the question needs: first the index alone, then
the headers of the files that hold a wanted tensor, then those files, or with range reads the wanted
bytes.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any

from normprobe.errors import NormprobeError, first_line, visible
from normprobe.model.config import ADAPTER_WEIGHTS
from normprobe.model.load.repository import FETCH_AGAIN, Repository

#: What an index of another shape raises; its size may be infinite, its JSON nested very deeply.
_NO_INDEX = (
    ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError,
)  # fmt: skip

_LONGEST_NAME = 255
_LFS_POINTER = b"version https://git-lfs"


@cache
def torch_dtypes() -> dict[str, Any]:
    """Types of tensors by the names of safetensors; rotary tables may be complex (SetCon)."""
    import torch
    from transformers.modeling_utils import str_to_torch_dtype

    return {**str_to_torch_dtype, "C64": torch.complex64, "C128": torch.complex128}


@dataclass(frozen=True)
class TensorHeader:
    """What the header of a weight file says of one tensor."""

    shape: tuple[int, ...]
    dtype: str  # as safetensors names it, such as BF16
    offset: int | None = None  # bytes behind the file's header; known for files on the hub
    # where the values are made of blocks: how they are stored, such as Q4_1, in how many bytes
    blocks: tuple[str, int] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        if self.blocks is not None:
            return self.blocks[1]
        known = torch_dtypes().get(self.dtype)
        return prod(self.shape) * (known.itemsize if known else 1)


class WeightFiles:
    """The weight files of one checkpoint, in the formats that transformers loads."""

    def __init__(
        self, repository: Repository, *, explicit: str | None = None, range_reads: bool = False
    ) -> None:
        self.repository = repository
        self.range_reads = range_reads and not repository.is_local
        if explicit is not None:
            self._refuse_outside(explicit, "config.json")
        self._explicit = explicit
        self._headers: dict[str, dict[str, TensorHeader]] = {}
        self._opened: dict[str, Any] = {}
        self._total_size = 0  # as the index says
        self._lock = Lock()  # the loader reads in threads

    @cached_property
    def file_of(self) -> dict[str, str]:
        """The file of every tensor, by the tensor's key."""
        from huggingface_hub import constants
        from transformers.utils import (
            SAFE_WEIGHTS_INDEX_NAME,
            SAFE_WEIGHTS_NAME,
            WEIGHTS_INDEX_NAME,
            WEIGHTS_NAME,
        )

        repository = self.repository
        formats = (
            (self._explicit or SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME),
            (WEIGHTS_NAME, WEIGHTS_INDEX_NAME),
        )
        for whole, index in formats:
            # On the hub the index comes first: it is small, and asking for it is cached.
            if repository.path_here(whole) is None and (path := repository.fetch_if_any(index)):
                return self._weight_map(path)
            if repository.holds(whole):
                return dict.fromkeys(self.headers(whole), whole)
        if constants.HF_HUB_OFFLINE and not repository.is_local:
            raise repository.not_cached(formats[0][0])
        raise NormprobeError(
            f"{repository.name} holds no weights: looked for {formats[0][0]} and "
            f"{WEIGHTS_NAME}, whole or with an index",
            self._held_otherwise() or FETCH_AGAIN,
        )

    def _held_otherwise(self) -> str:
        """What to do where an adapter in a local folder, or folders inside it, hold weights."""
        root = Path(self.repository.source)
        if not self.repository.is_local:
            return ""
        if any(root.glob("adapter_model.*")):  # LLaVA-Rad
            return (
                "it holds an adapter beside a whole config: merge it into its base as its README "
                "does, save that, and pass its folder"
            )
        folders = sorted({file.parent.name for file in root.glob("*/*.safetensors")})
        if not folders:
            return ""
        return (
            f"weights lie in {', '.join(folders)}, which the model's code reads itself: make the "
            "model as its code does, and pass it as Probe(model)"
        )

    @property
    def headers_are_here(self) -> bool:
        """Whether the headers of all files can be read on this machine, and no hub is asked.

        ``.bin`` files have none.
        """
        from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

        here = self.repository.path_here
        whole, index = self._explicit or SAFE_WEIGHTS_NAME, here(SAFE_WEIGHTS_INDEX_NAME)
        if here(whole) is not None or index is None:
            return here(whole) is not None and whole.endswith(".safetensors")
        return all(here(file) is not None for file in set(self._weight_map(index).values()))

    @property
    def stored_as(self) -> dict[str, int]:
        """How many tensors are stored how; empty where they are stored as they are read."""
        return {}

    @property
    def files(self) -> list[str]:
        """The names of all weight files."""
        return sorted(set(self.file_of.values()))

    def size_of(self, files: Iterable[str]) -> int | None:
        """Bytes of some of the files together; None where that is unknown, such as offline."""
        asked = list(files)
        sizes = self.repository.sizes(asked)
        known = [size for size in sizes.values() if size is not None]
        if len(known) == len(sizes):
            return sum(known)
        return (self._total_size or None) if len(asked) == len(self.files) else None

    def header(self, key: str) -> TensorHeader:
        """Shape and type of a tensor, from the header of its file."""
        file = self.file_of[key]
        if key not in self.headers(file):
            raise NormprobeError(
                f"{file} of {self.repository.name} lacks {key}, which the index says it holds",
                FETCH_AGAIN,
            )
        return self.headers(file)[key]

    def headers(self, file: str) -> dict[str, TensorHeader]:
        """The headers of all tensors in a file."""
        with self._lock:
            return self._headers_once(file)

    def _headers_once(self, file: str) -> dict[str, TensorHeader]:
        if file not in self._headers:
            here = self.repository.path_here(file) is not None
            remote = not here and file.endswith(".safetensors") and not self.repository.is_local
            self._headers[file] = self._remote_headers(file) if remote else self._read_headers(file)
        return self._headers[file]

    def tensors(self, keys: Iterable[str]) -> dict[str, Any]:
        """Lazy tensors by key: ``tensor[...]`` reads one. Fetches the files that hold them."""
        found: dict[str, Any] = {}
        by_file: dict[str, list[str]] = {}
        for key in keys:
            by_file.setdefault(self.file_of[key], []).append(key)
        for file, inside in sorted(by_file.items()):
            if self.range_reads and self.repository.path_here(file) is None:
                found |= self._ranges(file, inside)
            else:
                opened = self._open(file)
                for key in inside:
                    self.header(key)  # or the error that names it
                    found[key] = opened[key] if isinstance(opened, dict) else opened.get_slice(key)
        return found

    def _ranges(self, file: str, keys: list[str]) -> dict[str, Any]:
        """Tensors by key, fetched by byte ranges; neighbouring tensors come in one range."""
        import torch

        data_size = max(
            (header.offset or 0) + header.nbytes for header in self.headers(file).values()
        )
        headers = {key: self.header(key) for key in keys}
        spans: list[list[int]] = []
        for header in sorted(headers.values(), key=lambda header: header.offset or 0):
            start = (header.offset or 0) - data_size  # from the end: the header's length is unknown
            if spans and spans[-1][1] == start:
                spans[-1][1] += header.nbytes
            else:
                spans.append([start, start + header.nbytes])
        found: dict[str, Any] = {}
        for begin, data in self.repository.read_spans(file, [(a, b) for a, b in spans]):
            for key, header in headers.items():
                at = (header.offset or 0) - data_size - begin
                if 0 <= at < len(data):
                    found[key] = torch.frombuffer(
                        data,
                        dtype=torch_dtypes()[header.dtype],
                        count=prod(header.shape),
                        offset=at,
                    ).reshape(header.shape)
        return found

    def _remote_headers(self, file: str) -> dict[str, TensorHeader]:
        return {
            key: TensorHeader(tuple(info.shape), info.dtype, info.data_offsets[0])
            for key, info in self.repository.remote_header(file).items()
        }

    def _read_headers(self, file: str) -> dict[str, TensorHeader]:
        opened = self._open(file)
        if isinstance(opened, dict):
            names = {dtype: name for name, dtype in torch_dtypes().items()}
            return {key: TensorHeader(tuple(t.shape), names[t.dtype]) for key, t in opened.items()}
        slices = {key: opened.get_slice(key) for key in opened.keys()}  # noqa: SIM118
        return {key: TensorHeader(tuple(s.get_shape()), s.get_dtype()) for key, s in slices.items()}

    def _open(self, file: str) -> Any:
        """A memory-mapped file: of safetensors an open handle, of .bin tensors by key."""
        if file not in self._opened:
            from safetensors import safe_open
            from transformers.modeling_utils import load_state_dict

            path = self.repository.fetch(file)
            with self._reading(path):
                if file.endswith(".safetensors"):
                    self._opened[file] = safe_open(path, framework="pt")
                else:  # weights only: a pickle's code is never run
                    self._opened[file] = load_state_dict(str(path))
        return self._opened[file]

    def _weight_map(self, index: Path) -> dict[str, str]:
        """The files by key that an index lists; none may lie outside the checkpoint."""
        try:
            found = json.loads(index.read_text(encoding="utf-8"))
            weight_map = {str(key): str(file) for key, file in found["weight_map"].items()}
            self._total_size = int((found.get("metadata") or {}).get("total_size") or 0)
        except _NO_INDEX as error:
            raise NormprobeError(
                f"{index.name} of {self.repository.name} is no index: expected JSON with a "
                "weight_map",
                FETCH_AGAIN,
            ) from error
        for file in set(weight_map.values()):
            self._refuse_outside(file, index.name)
        return weight_map

    def _refuse_outside(self, file: str, named_by: str) -> None:
        parts = PurePosixPath(file).parts
        if any(len(part) > _LONGEST_NAME or visible(part) != part for part in parts):
            raise NormprobeError(
                f"{named_by} of {self.repository.name} names {file[:60]!r}, which is no file name",
                FETCH_AGAIN,
            )
        if PurePosixPath(file).is_absolute() or ".." in parts or self._leads_outside(file):
            raise NormprobeError(
                f"{named_by} of {self.repository.name} names {file}, outside the checkpoint",
                "do not use this checkpoint",
            )

    def _leads_outside(self, file: str) -> bool:
        """Whether a name in a local folder is a link out of it, but for the store of a hub's cache.

        What a cached snapshot holds are links to ``blobs`` beside ``snapshots``.
        """
        if not self.repository.is_local:
            return False
        folder = Path(self.repository.source).resolve()
        snapshot = folder.parent.name == "snapshots"
        homes = [folder, folder.parent.parent / "blobs"] if snapshot else [folder]
        target = (folder / file).resolve()
        return not any(target.is_relative_to(home) for home in homes)

    @contextmanager
    def _reading(self, path: Path) -> Iterator[None]:
        """Refuse a file that holds no weights, and name one that cannot be read."""
        from pickle import UnpicklingError

        from safetensors import SafetensorError

        name = f"{path.name} of {self.repository.name}"
        with path.open("rb") as file:
            start = file.read(len(_LFS_POINTER))
        if not start:
            raise NormprobeError(f"{name} is empty", FETCH_AGAIN)
        if start == _LFS_POINTER:
            raise NormprobeError(
                f"{name} is a git-lfs pointer, not the weights",
                "run `git lfs pull` in the checkpoint, or fetch it with `hf download`",
            )
        refusals = (SafetensorError, UnpicklingError, OSError, ValueError, EOFError, RuntimeError)
        try:
            yield
        except refusals as error:
            raise NormprobeError(
                f"{name} cannot be read: {first_line(error)}", FETCH_AGAIN
            ) from error


def adapter_files(folder: Path) -> WeightFiles:
    """The weight file of an adapter that ``normprobe align`` wrote."""
    return WeightFiles(Repository(str(folder), str(folder), None), explicit=ADAPTER_WEIGHTS)
