"""Files of a run: whole or not at all, CSV and strict JSON, and no file that is not its own."""

import contextlib
import csv
import errno
import io
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
from PIL import Image

from normprobe.errors import NormprobeError

if TYPE_CHECKING:
    import pandas as pd

_LARGEST = 2**27  # bytes of a table or record: 100 maps of the largest models
_MOST_PIXELS = 2**26  # of a picture: a figure of a hundred panels


def is_own(file: Path, folder: Path) -> bool:
    """Whether it is a regular file that lies in the folder: no link out of it, no pipe."""
    return file.is_file() and file.resolve().is_relative_to(folder.resolve())


def own_files(folder: Path, pattern: str) -> list[Path]:
    """The files of a folder that match a pattern and are its own, in alphabetical order."""
    return sorted(file for file in folder.glob(pattern) if is_own(file, folder))


def own_bytes(file: Path, folder: Path) -> bytes:
    """The content of a folder's own file."""
    if not is_own(file, folder):
        raise FileNotFoundError("it is no regular file of the folder")
    if (size := file.stat().st_size) > _LARGEST:
        raise OSError(f"expected {_LARGEST / 2**20:.0f} MB at most, received {size / 2**20:.0f}")
    return file.read_bytes()


@contextmanager
def own_picture(file: Path, folder: Path) -> Iterator[Image.Image]:
    """A folder's own PNG, looked at as far as its header."""
    if not is_own(file, folder):
        raise FileNotFoundError("it is no regular file of the folder")
    try:
        with Image.open(file, formats=["PNG"]) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise OSError(
                    f"expected {_MOST_PIXELS:,} pixels at most, received "
                    f"{image.width} x {image.height}"
                )
            yield image
    except (Image.DecompressionBombError, SyntaxError, ValueError) as error:
        raise OSError(str(error)) from error


_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_NOT_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS}


def temporary_name(path: Path) -> Path:
    """The name that ``path`` has while it is written: hidden, and the same at every attempt.

    A killed process cannot clean up. With one fixed name its leftover is overwritten by the next
    attempt instead of piling up.
    """
    return path.with_name(f".{path.name}.tmp")


def is_temporary(path: Path) -> bool:
    """Whether a file is what a killed process has left of one that it was writing."""
    return path.name.startswith(".") and path.name.endswith(".tmp")


def write_by_rename(path: Path, data: bytes) -> None:
    """Write a file so that no reader ever sees half of it."""
    temporary = temporary_name(path)
    with write_failures(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())  # or a power cut may leave an empty file of that name
            temporary.replace(path)
        except BaseException:  # Ctrl-C too must leave no temporary file
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


@contextlib.contextmanager
def write_failures(folder: Path) -> Iterator[None]:
    """Turn the OSError of a write into a NormprobeError that names ``folder``."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise NormprobeError(
                f"no space left in {folder}", f"free some space there{_kept(folder)}"
            ) from error
        if error.errno in _NOT_WRITABLE:
            raise NormprobeError(
                f"{folder} is not writable",
                f"choose another --output or allow writing{_kept(folder)}",
            ) from error
        raise NormprobeError(
            f"cannot write in {folder}: {error.strerror or error}",
            f"check --output{_kept(folder)}",
        ) from error


def _kept(folder: Path) -> str:
    """What is left of a run, where parts of it were written."""
    parts = any(next(at.glob("part-*"), None) for at in (folder, folder / "samples"))
    return "; the complete parts are kept, and --resume goes on from them" if parts else ""


# What a spreadsheet takes for a formula, also in its full-width forms, behind any apostrophes.
_FORMULA = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
_MOST_COLUMNS = 1000

#: Columns of text that may read like numbers: the token "1", the word "nan", layer "1" of "1-3, 6".
_TEXTS = ["token", "query", "run", "sample"]


_TEXTS += ["layers", "holds_in", "fails_in", "open_in", "exempt_in"]


def csv_bytes(table: pd.DataFrame) -> bytes:
    """A table as CSV: floats in full precision, NaN as an empty field, no index.

    Text that a spreadsheet would run as a formula begins with an apostrophe; ``csv_table`` takes
    it away.
    """
    texts = table.select_dtypes(exclude=["number", "bool"])
    safe = table.assign(**{str(name): column.map(_quoted) for name, column in texts.items()})
    text = safe.rename(columns=_quoted).to_csv(
        index=False, lineterminator="\n", quoting=_quoting(texts)
    )
    return text.encode("utf-8", errors="backslashreplace")


def csv_table(data: bytes) -> pd.DataFrame:
    """The table of ``csv_bytes``."""
    for line in data.split(b"\n", 2)[:2]:  # the names, and a row, which may be longer
        if line.count(b",") >= _MOST_COLUMNS:
            raise ValueError(f"expected {_MOST_COLUMNS} columns at most")
    table: pd.DataFrame = pd.read_csv(
        io.BytesIO(data),
        keep_default_na=False,
        na_values=[""],
        dtype=dict.fromkeys(_TEXTS, str),
        **_exactly(data),
    ).rename(columns=_unquoted)
    texts = table.select_dtypes(exclude=["number", "bool"])
    # A column without a text stays one of texts.
    unquoted = {
        str(name): column.map(_unquoted).astype(column.dtype) for name, column in texts.items()
    }
    table = table.assign(**unquoted)
    if "token" in table:
        table["token"] = table["token"].fillna("")
    return table


def _exactly(data: bytes) -> dict[str, Any]:
    """How pandas 2 reads a float to its last bit, and a cell beyond a NUL; 3 does so by itself."""
    if not pd.__version__.startswith("2."):
        return {}
    return {"engine": "python"} if b"\0" in data else {"float_precision": "round_trip"}


def _quoted(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell


def _unquoted(cell: object) -> object:
    quoted = isinstance(cell, str) and cell.startswith("'") and _FORMULA.match(cell)
    return str(cell)[1:] if quoted else cell


def _quoting(texts: pd.DataFrame) -> Literal[0, 2]:
    # The csv module leaves a carriage return bare, and readers take it for the end of a row.
    bare = any(texts[name].astype(str).str.contains("\r", regex=False).any() for name in texts)
    return csv.QUOTE_NONNUMERIC if bare else csv.QUOTE_MINIMAL


def jsonable(value: Any) -> Any:
    """The same value made of dict, list, str, int, float, bool and None.

    NaN and infinities become None because JSON has no word for them. NumPy scalars and arrays
    become Python numbers and lists, a table a list of one object a row; anything unknown (a path,
    a dtype, a time) becomes its text.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, Set):
        return sorted((jsonable(item) for item in value), key=str)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [jsonable(item) for item in value]
    if hasattr(value, "to_dict"):
        return jsonable(value.to_dict("records"))
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return jsonable(value.tolist())
    return str(value)


def json_text(value: Any) -> str:
    """``value`` as indented, strict JSON text that ends with a newline.

    A table is an array of one object a row, NaN as null, floats in full precision.
    """
    return json.dumps(jsonable(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def json_bytes(value: Any) -> bytes:
    """``json_text`` in UTF-8.

    An argument that was no valid UTF-8 reaches Python as lone surrogates. Their backslash form
    is exactly how JSON spells them.
    """
    return json_text(value).encode("utf-8", errors="backslashreplace")
