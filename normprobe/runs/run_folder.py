"""The run folder: per-sample rows in parts, tables as CSV, and ``run.json`` beside them.

- ``default_run_path``: where a run goes when ``--output`` is absent
- ``RunFolder.create`` / ``RunFolder.open``: a fresh folder / one that is there
- ``append``, ``write_table``, ``write_image``, ``note``, ``finish``: filling it
- ``rows``, ``table``, ``image``, ``read_record``: reading it back

Every file appears by rename. Several processes may append parts; one writes everything else.
"""

import contextlib
import io
import json
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image

from normprobe.errors import NormprobeError, first_line
from normprobe.runs.atomic import temporary_name, write_by_rename, write_failures
from normprobe.runs.csv_text import csv_bytes, csv_table
from normprobe.runs.folder_lock import FolderLock, holds_files
from normprobe.runs.json_text import json_bytes
from normprobe.runs.own_files import is_own, own_bytes, own_files, own_picture
from normprobe.runs.run_store import COMPLETE, PARTIAL, RunStore
from normprobe.runs.sample_parts import MERGED, PARTS, SampleParts

RECORD = "run.json"

#: What every record holds, and what it holds if it is there.
_ALWAYS = {"status", "warnings", "files"}
_KINDS = {
    "status": str,
    "warnings": list,
    "files": list,
    "command": str,
    "argv": list,
    "sample_ids": list,
    "options": dict,
    "versions": dict,
}

_MACHINE_NAMED = (PARTS, MERGED, "plots/*.png", "plots/*.pdf")
_LARGEST_IMAGE = 1024  # pixels of the longer side
_LONGEST_NAME = 100  # file systems allow 255 bytes; a letter may take four in UTF-8


class RunFolder(RunStore):
    """A run in a folder.

    Attributes:
        path: the folder.
        record: the content of ``run.json``; change it through ``note`` so that the file follows.
        writer: 0 for the process that writes everything; others only append parts, each with a
            number of its own.
    """

    path: Path

    def __init__(self, path: Path, record: dict[str, Any], writer: int = 0) -> None:
        super().__init__({})
        self.path = path
        self.record = record
        self.writer = writer
        self._parts = SampleParts(path, writer)
        self._lock = FolderLock(path)

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.path.resolve().name

    @property
    def table_names(self) -> list[str]:
        """The tables that lie in the folder, in alphabetical order."""
        return [file.stem for file in own_files(self.path, "*.csv")]

    def has_table(self, name: str) -> bool:
        """Whether the folder holds ``<name>.csv``."""
        return is_own(self.path / f"{name}.csv", self.path)

    def table(self, name: str) -> pd.DataFrame:
        """``<name>.csv``, read once."""
        if name not in self._tables:
            self._tables[name] = read_table(self.path, name)
        return self._tables[name]

    def image(self, name: str) -> NDArray[np.uint8]:
        """``<name>.png``, ``[height, width, 3]``."""
        return read_image(self.path, name)

    @classmethod
    def create(cls, path: Path, *, overwrite: bool, record: dict[str, Any]) -> "RunFolder":
        """Start a run in a new or empty folder, or in place of an older run."""
        with write_failures(path):
            if path.exists() and not path.is_dir():
                raise NormprobeError(f"{path} exists and is a file", "choose another --output")
            path.mkdir(parents=True, exist_ok=True)
            run = cls(path, RunStore(record).record)
            run.lock()  # before looking: another process may be filling the folder
            try:
                if holds_files(path):
                    if not overwrite:
                        raise NormprobeError(
                            f"{path} exists", "choose another --output or pass --overwrite"
                        )
                    _delete_run(path)
            except BaseException:
                run.unlock()
                raise
        run.note()
        return run

    def lock(self) -> None:
        """Keep other processes from writing into the folder until the run ends."""
        self._lock.acquire()

    def unlock(self) -> None:
        """Let others write into the folder."""
        self._lock.release()

    @classmethod
    def open(cls, path: Path, writer: int = 0) -> "RunFolder":
        """Open a run folder that is there, to read it or to go on with it."""
        record, fault = _record_or_fault(path)
        if fault:
            raise NormprobeError(
                f"{path} is not a run folder: {fault}",
                "give the folder that an earlier normprobe command printed",
            )
        return cls(path, record, writer)

    def images(self) -> Iterator[tuple[str, Image.Image]]:
        """Names and images of ``write_image``."""
        for file in self.record["files"]:
            if str(file).endswith(".png"):
                name = str(file).removesuffix(".png")
                yield name, Image.fromarray(self.image(name))

    @contextlib.contextmanager
    def discarded_on_failure(self) -> Iterator[None]:
        """Take the folder back when the block fails and nothing was measured yet."""
        try:
            yield
        except BaseException:
            if self.writer > 0:
                raise
            kept = self._parts.exist()
            if not kept and (self.path / RECORD).exists():  # nobody has deleted it meanwhile
                _delete_run(self.path)
            self.unlock()
            if not kept:
                with contextlib.suppress(OSError):  # holds foreign files, or another run by now
                    self.path.rmdir()
            raise

    def append(self, rows: pd.DataFrame) -> None:
        """Add per-sample rows as one more part; an empty frame adds nothing."""
        if rows.empty:
            return
        self._lock.check()
        self.reopen()
        self._parts.append(rows)

    def reopen(self) -> None:
        """Make a complete run ready for more parts."""
        if self.record["status"] == COMPLETE:
            self.note(status=PARTIAL)
        self._parts.unmerge()

    def set_damaged_aside(self) -> list[str]:
        """As ``SampleParts.set_damaged_aside``."""
        return self._parts.set_damaged_aside()

    def sample_ids(self) -> set[str]:
        """The samples whose rows are there."""
        return self._parts.sample_ids()

    def rows(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """All per-sample rows in the order they were appended; empty where there are none."""
        return self._parts.rows(columns)

    def write_table(self, name: str, table: pd.DataFrame) -> None:
        """Write ``<name>.csv``: floats in full precision, NaN as an empty field, no index."""
        self._write_file(f"{name}.csv", csv_bytes(table))
        self._tables[name] = table

    def write_image(self, name: str, image: Image.Image) -> None:
        """Write ``<name>.png``, no larger than figures need it."""
        small = image.copy()
        small.thumbnail((_LARGEST_IMAGE, _LARGEST_IMAGE))
        buffer = io.BytesIO()
        small.save(buffer, format="PNG")
        self._write_file(f"{name}.png", buffer.getvalue())

    def note(self, **facts: object) -> None:
        """Add facts to ``run.json``; only the main process writes the file."""
        self.record.update(facts)
        if self.writer == 0:
            self._lock.check()
            write_by_rename(self.path / RECORD, json_bytes(self.record))

    def finish(self, **facts: object) -> None:
        """Merge the parts into ``samples/samples.parquet`` and call the run complete."""
        self._parts.merge()
        self.note(status=COMPLETE, **facts)
        self.unlock()

    def _write_file(self, name: str, data: bytes) -> None:
        if name == RECORD or Path(name).name != name:
            raise ValueError(f"expected a plain file name other than {RECORD}, got {name!r}")
        # Listed before it is written: --overwrite deletes only what is listed.
        if name not in self.record["files"]:
            self.note(files=[*self.record["files"], name])
        write_by_rename(self.path / name, data)


def default_run_path(
    model_name: str, command: str, data_name: str | None, now: datetime | None = None
) -> Path:
    """``runs/<org>--<model>/<command>-<data>-<UTC time>``."""
    time = (now or datetime.now(UTC)).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    data = [] if data_name is None else [plain_name(_last_name(data_name), "data")]
    return Path("runs") / _model_folder(model_name) / "-".join([command, *data, time])


def read_record(path: Path) -> dict[str, Any] | None:
    """The content of ``run.json``, None where ``path`` is no run folder of normprobe."""
    record, fault = _record_or_fault(path)
    return None if fault else record


def _record_or_fault(path: Path) -> tuple[dict[str, Any], str]:
    """The content of ``run.json``, and what is wrong with it; empty where nothing is."""
    file = path / RECORD
    if not is_own(file, path):
        return {}, f"it holds no {RECORD}"
    try:
        record = json.loads(own_bytes(file, path).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        return {}, f"{RECORD} cannot be read ({first_line(error)})"
    if not isinstance(record, dict) or not record.keys() >= _ALWAYS:
        return {}, f"{RECORD} was not written by normprobe"
    for name, kind in _KINDS.items():
        if name in record and not isinstance(record[name], kind):
            found = type(record[name]).__name__
            return (
                {},
                f"{name} of {RECORD} is of the wrong type (expected {kind.__name__}, {found})",
            )
    return record, ""


def read_table(path: Path, name: str) -> pd.DataFrame:
    """Read ``<name>.csv`` of a run folder."""
    file = path / f"{name}.csv"
    if not is_own(file, path):
        raise NormprobeError(
            f"{path} holds no {file.name}", "give a run folder of the command that writes it"
        )
    try:
        return csv_table(own_bytes(file, path))
    except (OSError, ValueError) as error:
        raise NormprobeError(
            f"cannot read {file}: {first_line(error)}", "run the command again"
        ) from error


def read_image(path: Path, name: str) -> NDArray[np.uint8]:
    """Read ``<name>.png`` of a run folder, ``[height, width, 3]``."""
    file = path / f"{name}.png"
    try:
        with own_picture(file, path) as image:
            return np.asarray(image.convert("RGB"))
    except OSError as error:
        raise NormprobeError(
            f"cannot read {file}: {first_line(error)}", "run the command again"
        ) from error


def _model_folder(model_name: str) -> str:
    organisation, _, model = model_name.partition("/")
    is_hub_id = bool(organisation and model) and "/" not in model and organisation[0] not in ".~"
    if is_hub_id and not Path(model_name).is_dir():
        return f"{plain_name(organisation, 'org')}--{plain_name(model, 'model')}"
    return plain_name(_last_name(model_name), "model")


def _last_name(name: str) -> str:
    """The last component of a path; ``.`` and ``..`` stand for the folder they lead to."""
    path = Path(name.replace("\\", "/")).expanduser()
    return path.name if path.name not in ("", "..") else path.resolve().name


def plain_name(name: str, fallback: str) -> str:
    """Letters, digits, dot, dash and underscore only; never hidden, empty or very long."""
    plain = re.sub(r"[^\w.-]+", "-", name).strip("-.")
    while len(plain.encode()) > _LONGEST_NAME:
        plain = plain[:-1]
    return plain or fallback


def _delete_run(path: Path) -> None:
    record = read_record(path)
    if record is None:
        raise NormprobeError(
            f"{path} exists and is not a run folder: --overwrite deletes nothing else",
            "choose another --output",
        )
    listed = [path / name for name in record["files"] if Path(str(name)).name == name]
    # A linked samples/ or plots/ is somebody else's folder.
    made = [
        file
        for pattern in _MACHINE_NAMED
        if not (path / pattern).parent.is_symlink()
        for file in path.glob(pattern)
    ]
    # run.json goes last: interrupted here, the folder is still known as a run folder.
    _delete(*listed, *made)
    for folder in ("samples", "plots"):
        with contextlib.suppress(OSError):  # absent, or holds foreign files
            (path / folder).rmdir()
    _delete(path / RECORD)


def _delete(*files: Path) -> None:
    for file in files:
        file.unlink(missing_ok=True)
        temporary_name(file).unlink(missing_ok=True)
