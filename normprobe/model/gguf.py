"""A GGUF file as a checkpoint folder: its config, its tokenizer, and where its tensors lie.

transformers reads the config and the tokenizer of a language model from the metadata of the file.
Here both are saved once into a folder, so that a GGUF file is opened like any other checkpoint. The
file may be a stranger's: the helper of ``normprobe.sandbox`` reads its metadata, this process
reads what the helper wrote.
"""

import atexit
import json
import shutil
import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from normprobe.errors import NormprobeError, first_line
from normprobe.sandbox import READERS, try_in_sandbox

#: In the folder: where the tensors lie, and why the file could not be read.
_TENSORS, _FAILURE = "gguf_tensors.json", "gguf_failure.txt"

#: Metadata are read three times, a hundred thousand pieces of a vocabulary each.
_TIMES = 4


class StoredTensor(NamedTuple):
    """What the file says of a tensor."""

    name: str  # such as ``blk.0.attn_q.weight``
    stored: str  # how its numbers are stored, such as ``Q4_1``
    shape: tuple[int, ...]  # as in torch
    begins: int  # its first byte in the file
    nbytes: int


def is_gguf(model: str) -> bool:
    """Whether what a user names as MODEL is a GGUF file."""
    return model.lower().endswith(".gguf") and Path(model).is_file()


def checkpoint_folder(file: str) -> Path:
    """A folder with the config and the tokenizer of a GGUF file, which lasts as this process does.

    Raises:
        NormprobeError: transformers cannot read the file, or the package gguf is not installed.
    """
    path = Path(file).absolute()
    return _folder(path, path.stat().st_mtime_ns)


@cache
def _folder(file: Path, _: int) -> Path:
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise NormprobeError(
            f"{file.name} is a GGUF file, and gguf is not installed",
            "pip install 'normprobe[gguf]'",
        ) from error
    folder = Path(tempfile.mkdtemp(prefix="normprobe-gguf-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    what = f"reading the metadata of {file.name}"
    try_in_sandbox(partial(_convert, file, folder), what, modules=[*READERS, "gguf"], times=_TIMES)
    if not (folder / _TENSORS).is_file():
        failure = folder / _FAILURE
        why = failure.read_text(encoding="utf-8") if failure.is_file() else "it is none"
        raise NormprobeError(
            f"{file.name} cannot be read as a GGUF file of a language model: {why}",
            "pass a file of a type that transformers reads, whole and not split, or the "
            "checkpoint that it was made of",
        )
    return folder


def _convert(file: Path, folder: Path) -> None:
    """Save what the metadata say; the tensors last, as a sign that all of it could be read."""
    import gguf
    from transformers import AutoConfig, AutoTokenizer

    library: Any = gguf  # changed in the helper alone: transformers reads the file twice, too
    library.GGUFReader = read = cache(gguf.GGUFReader)
    try:
        config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
        config.save_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        tokenizer.save_pretrained(folder)
        tensors = [
            StoredTensor(
                tensor.name,
                tensor.tensor_type.name,
                tuple(map(int, reversed(tensor.shape))),
                int(tensor.data_offset),
                int(tensor.n_bytes),
            )
            for tensor in read(str(file)).tensors
        ]
    except Exception as error:  # a stranger's file may make the library raise anything
        (folder / _FAILURE).write_text(first_line(error), encoding="utf-8")
        return
    (folder / file.name).symlink_to(file)
    (folder / _TENSORS).write_text(json.dumps(tensors), encoding="utf-8")


def stored_tensors(folder: Path) -> list[StoredTensor]:
    """The tensors of the file that ``checkpoint_folder`` made a folder of."""
    read = json.loads((folder / _TENSORS).read_text(encoding="utf-8"))
    return [StoredTensor(name, how, tuple(shape), *place) for name, how, shape, *place in read]
