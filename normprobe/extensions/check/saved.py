"""States that another engine saved, a file a sample: the layout that is declared, or none.

A ``.safetensors`` or ``.npz`` file holds ``input_ids`` or ``token_ids``, ``[tokens]``, and either
``hidden_states``, ``[layers, tokens, hidden]``, beside ``token_ids`` ``[tokens, layers, hidden]``,
with ``layer_ids``, ``[layers]``: behind how many layers each was taken, 0: none; without them in
order, the decoder input first or left out. Or a tensor a layer, ``[tokens, hidden]``: ``layer_N``,
behind N layers, or ``model.layers.N``, what that module returns, which llama.cpp calls ``l_out-N``.
Another tensor is not read. All layers are there, or ``layer_ids`` says which.

There may be states of the vision encoder's blocks, ``vision_layers.N``, what block N returns, and
of the ``projector``, ``[..., hidden]`` with the rows of all pictures; and no decoder layers then.
"""

import io
import json
import math
import os
import re
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from normprobe.errors import NormprobeError, first_line

_MOST_BYTES = 2**23  # of a header, or of the list of what a zip file holds
_FLOATS = ("F16", "BF16", "F32", "F64")
_INTEGERS = ("I32", "I64")
_DIGEST = re.compile("[0-9a-f]{16}")
_BLOCK = re.compile(r"vision_layers\.[0-9]+(\.output)?")
_MOST_ROWS = 4  # times those of the model: another layout of patches has as many again
#: What holds the layers of a decoder in most models, beside the name that it has in this one.
_DECODERS = ("layers", "model.layers", "language_model.model.layers", "model.language_model.layers")


class _Entry(NamedTuple):
    """A tensor, known by its header."""

    shape: tuple[int, ...]
    kind: str  # as safetensors says it
    read: Callable[[], Tensor]

    def __str__(self) -> str:
        return f"{list(self.shape)} of {self.kind}"


#: Names, and what finds the header of one of them.
_Opened = tuple[Collection[str], Callable[[str], _Entry]]


def saved_states(
    file: Path,
    ids: Sequence[int],
    rows: int,
    sizes: Mapping[int, int],
    decoder: str,
    *,
    beside: bool = False,
) -> dict[int, Tensor]:
    """The states ``[rows, hidden]`` of a file by the number of layers behind them, in order.

    Args:
        file: whatever has such a name; no more of it is read than the states of the model take.
        ids: the prompt.
        rows: tokens of the decoder.
        sizes: hidden sizes by the number of layers, all that the model has.
        decoder: the name of what holds the decoder layers in the model.
        beside: there are states of vision encoder or projector, and may be none of layers.

    Raises:
        NormprobeError: it is not laid out so.
    """
    with _opened(file) as (names, entry):
        found = _states(names, entry, ids, rows, sizes, decoder, beside)
        return {number: found[number] for number in sorted(found)}


def saved_vision(
    file: Path, known: Mapping[str, str], own: Callable[[], Mapping[str, Tensor]]
) -> dict[str, tuple[Tensor, Tensor]]:
    """The states of vision encoder and projector in a file, each with the model's, by stage.

    Args:
        file: as for ``saved_states``.
        known: the stages by the names that a tensor of it may have.
        own: the model's states ``[rows, hidden]`` by stage; asked for where the file holds any.

    Raises:
        NormprobeError: there is no such block, or its state is of another size.
    """
    with _opened(file) as (names, entry):
        there: dict[str, str] = {}
        for name in names:
            block = _BLOCK.fullmatch(name)
            _expect(not block or name in known, name, "a block of the vision encoder", "none")
            if name in known:
                stage = known[name]
                _expect(stage not in there, name, "one tensor a stage", there.get(stage))
                there[stage] = name
        states = own() if there else {}
        return {
            stage: (_rows(name, entry(name), states.get(stage)), states[stage])
            for stage, name in there.items()
        }


def _rows(name: str, held: _Entry, own: Tensor | None) -> Tensor:
    """A state as rows; there may be others than the model has, yet not many more."""
    _expect(own is not None, name, "none, as the prompt has no picture", held)
    assert own is not None
    count, size = own.shape
    fits = len(held.shape) > 1 and held.shape[-1] == size and held.kind in _FLOATS
    fits = fits and 0 < math.prod(held.shape) <= _MOST_ROWS * own.numel()
    _expect(fits, name, f"[{count}, {size}] of {' or '.join(_FLOATS)}", held)
    return held.read().reshape(-1, size)


@contextmanager
def _opened(file: Path) -> Iterator[_Opened]:
    try:
        with _OPENERS[file.suffix](file) as found:
            yield found
    except Exception as error:  # any file may have that name
        raise NormprobeError(
            f"{file} cannot be read as states: {first_line(error)}",
            "docs/how-to/engines.md says what a file holds",
        ) from error


def saved_pixels(file: Path) -> Mapping[str, Any]:
    """What a file of ``normprobe states`` says of the pixels that the engine read; else empty."""
    if file.suffix != ".safetensors":
        return {}
    try:
        with safe_open(file, "pt") as opened:
            told = json.loads((opened.metadata() or {}).get("pixels", "{}"))
        kinds = {"digest": str, "dtype": str, "mean": float, "std": float}
        fits = all(isinstance(told[name], kind) for name, kind in kinds.items())
        return told if fits and _DIGEST.fullmatch(told["digest"]) else {}
    except (KeyError, RecursionError, TypeError, ValueError):
        return {}


def _states(
    names: Collection[str],
    entry: Callable[[str], _Entry],
    ids: Sequence[int],
    rows: int,
    sizes: Mapping[int, int],
    decoder: str,
    beside: bool,
) -> dict[int, Tensor]:
    depth = max(sizes)
    told = [name for name in ("input_ids", "token_ids") if name in names]
    _expect(len(told) == 1, "input_ids", "these or token_ids", "both" if told else "neither")
    given = entry(told[0])
    _expect(
        given.kind in _INTEGERS and given.shape in ((len(ids),), (1, len(ids))),
        *(told[0], f"{[len(ids)]} of {' or '.join(_INTEGERS)}", given),
    )
    _expect(
        given.read().flatten().tolist() == [*ids],
        *(told[0], "those that the processor of the model makes", "other ids"),
    )
    said = None if "layer_ids" not in names else _layer_ids(entry("layer_ids"), depth)
    if "hidden_states" not in names:
        layers = _layers(names, depth, decoder, said, beside)
        return {n: _state(name, entry(name), (rows, sizes[n])) for n, name in layers.items()}
    exchanged = told == ["token_ids"]  # as vLLM saves them
    held = entry("hidden_states")
    layers_held = held.shape[int(exchanged)] if len(held.shape) == 3 else 0
    shape = [layers_held, rows] if not exchanged else [rows, layers_held]
    expected = (depth, depth + 1) if said is None else (len(said),)
    fits = layers_held in expected and held.shape == (*shape, sizes[depth])
    words = f"{['[layers, tokens, hidden]', '[tokens, layers, hidden]'][exchanged]}, layers "
    words += f"{' or '.join(map(str, expected))}, tokens {rows}, hidden {sizes[depth]}"
    _expect(fits and held.kind in _FLOATS, "hidden_states", words, held)
    numbers = said or [*range(depth + 1 - layers_held, depth + 1)]
    states = held.read()
    states = states.transpose(0, 1) if exchanged else states
    return dict(zip(numbers, states, strict=True))


def _layer_ids(given: _Entry, depth: int) -> list[int]:
    """Behind how many layers each state was taken."""
    fits = given.kind in _INTEGERS and len(given.shape) == 1 and 0 < given.shape[0] <= depth + 1
    _expect(fits, "layer_ids", f"1 to {depth + 1} of {' or '.join(_INTEGERS)}", given)
    said: list[int] = given.read().tolist()
    fits = len({*said}) == len(said) and {*said} <= {*range(depth + 1)} and {*said} != {0}
    _expect(fits, "layer_ids", f"some of {[*range(1, depth + 1)]}, and 0, once each", said)
    return said


def _layers(
    names: Collection[str], depth: int, decoder: str, said: Sequence[int] | None, beside: bool
) -> dict[int, str]:
    """The tensors of decoder layers by the number of layers behind them."""
    modules = "|".join(map(re.escape, dict.fromkeys((decoder, *_DECODERS))))
    pattern = re.compile(rf"(layer_|l_out-|(?:{modules})\.)([0-9]{{1,6}})(?:\.output)?")
    found = dict[int, str]()
    for name in names:
        if named := pattern.fullmatch(name):
            number = int(named[2]) + (named[1] != "layer_")
            _expect(number not in found, name, "one tensor a layer", found.get(number))
            _expect(number <= depth, name, f"a layer of {depth}", number)
            found[number] = name
    if beside and said is None and not found:
        return {}
    asked = range(1, depth + 1) if said is None else said
    lacking = [number for number in asked if number not in found]
    expected = f"all of {depth}" if said is None else "those of layer_ids"
    _expect(not lacking, "layers", expected, f"no layer {lacking[:1]}")
    return found if said is None else {number: found[number] for number in said}


def _state(name: str, held: _Entry, shape: tuple[int, int]) -> Tensor:
    fits = held.shape in (shape, (1, *shape)) and held.kind in _FLOATS
    _expect(fits, name, f"{[*shape]} of {' or '.join(_FLOATS)}", held)
    return held.read().reshape(shape)


def _expect(fits: bool, entry: str, expected: str, received: object) -> None:
    if not fits:
        raise ValueError(f"{entry}: expected {expected}, received {received}")


@contextmanager
def _safetensors(file: Path) -> Iterator[_Opened]:
    with file.open("rb") as header:
        size = int.from_bytes(header.read(8), "little")
    _expect(size <= _MOST_BYTES, "the header", f"{_MOST_BYTES} bytes at most", size)
    with safe_open(file, "pt") as opened:

        def entry(name: str) -> _Entry:
            held = opened.get_slice(name)
            return _Entry(
                tuple(held.get_shape()), held.get_dtype(), partial(opened.get_tensor, name)
            )

        yield opened.keys(), entry


class _Bounded(io.FileIO):
    """A file of which nobody reads much at once, as one reads the list of what a zip file holds."""

    def read(self, size: int | None = -1, /) -> bytes:
        rest = os.fstat(self.fileno()).st_size - self.tell()
        asked = rest if size is None or size < 0 else min(size, rest)
        _expect(asked <= _MOST_BYTES, "the list of arrays", f"{_MOST_BYTES} bytes at most", asked)
        return super().read(asked)


@contextmanager
def _npz(file: Path) -> Iterator[_Opened]:
    with _Bounded(file) as opened, zipfile.ZipFile(opened) as archive:
        held = dict[str, zipfile.ZipInfo]()
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            _expect(name not in held, name, "one array of a name", "two")
            held[name] = info
        yield held, lambda name: _array(archive, name, held[name])


def _array(archive: zipfile.ZipFile, name: str, info: zipfile.ZipInfo) -> _Entry:
    """An array by its header, which has to agree with the bytes that the zip file says."""
    fits = info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    _expect(fits, name, "an array as np.savez writes it", "another compression")
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        _expect(version == (1, 0), name, "version 1.0 of its header", version)  # 64 kB at most
        shape, _, dtype = np.lib.format.read_array_header_1_0(member)
        begin = member.tell()
    size = begin + math.prod(shape) * dtype.itemsize
    _expect(info.file_size == size, name, f"{size} bytes", info.file_size)

    def read() -> Tensor:
        with archive.open(info) as member:
            array = np.lib.format.read_array(member, allow_pickle=False)
        return torch.from_numpy(array.astype(dtype.newbyteorder("="), copy=False))

    letter = {"f": "F", "i": "I"}.get(dtype.kind, dtype.kind)
    return _Entry(shape, f"{letter}{8 * dtype.itemsize}", read)


_OPENERS: dict[str, Callable[[Path], AbstractContextManager[_Opened]]] = {
    ".safetensors": _safetensors,
    ".npz": _npz,
}
#: How files of states end.
ENDS = tuple(_OPENERS)
