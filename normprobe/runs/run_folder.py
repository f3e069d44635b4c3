"""What a run holds, in memory or in a folder: its record, sample rows, tables and images."""

import contextlib
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
from numpy.typing import NDArray
from PIL import Image
from pyarrow.dataset import ParquetFileFormat, dataset

from normprobe.errors import NormprobeError, did_you_mean, first_line
from normprobe.runs.files import (
    csv_bytes,
    csv_table,
    is_own,
    json_bytes,
    own_bytes,
    own_files,
    own_picture,
    temporary_name,
    write_by_rename,
    write_failures,
)
from normprobe.runs.folder_lock import FolderLock, holds_files
from normprobe.schema import IMAGE, OF_GROUP, SCHEMA_VERSION, TURN

PARTIAL = "partial"
COMPLETE = "complete"

PARTS_FOLDER = "samples/part-*.parquet"
MERGED_FILE = "samples/samples.parquet"

#: What a part that cannot be read is renamed to.
_DAMAGED = "damaged-"

#: What is one row: no two rows of a run agree in all of these that it has.
ROW_KEYS = (
    *("sample_id", "intervention", "dose", "layer", "stage", "group"),
    *("head", IMAGE, TURN, OF_GROUP, "rank"),
)

#: What reading a file that is no Parquet file raises; pyarrow's own errors are among them.
_UNREADABLE = (OSError, ValueError, pyarrow.ArrowException)

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

_MACHINE_NAMED = (PARTS_FOLDER, MERGED_FILE, "plots/*.png", "plots/*.pdf")
_LARGEST_IMAGE = 1024  # pixels of the longer side
_LONGEST_NAME = 100  # file systems allow 255 bytes; a letter may take four in UTF-8

_DEEPEST = 4  # folders below the one that is named: runs/<model>/<demo>/<run>


def image_name(number: int) -> str:
    """What an image of the sample is called in a run, by its number from 1."""
    return "image" if number == 1 else f"image_{number}"


class RunStore:
    """A run in memory.

    Attributes:
        record: the content of ``run.json``; change it through ``note``.
        path: the run folder; None: there is none.
        writer: 0 for the process that writes everything; others only append sample rows.
        kept_on_failure: what fails stays: others add rows at the moment, or bad rows are listed.
    """

    path: Path | None = None
    writer = 0
    kept_on_failure = False

    def __init__(self, record: dict[str, Any]) -> None:
        self.record = {**record, "status": PARTIAL, "warnings": [], "files": []}
        self._rows: list[pd.DataFrame] = []
        self._tables: dict[str, pd.DataFrame] = {}
        self._images: dict[str, Image.Image] = {}
        self._later: list[Callable[[], None]] = []

    @property
    def name(self) -> str:
        """What to call the run where its model has no name."""
        return str(self.record.get("command", "run"))

    @property
    def command(self) -> str:
        """Which measurement it is a run of."""
        return str(self.record.get("command", ""))

    @property
    def table_names(self) -> list[str]:
        """The tables that it holds, in alphabetical order."""
        self._run_deferred()
        return sorted(self._tables)

    def has_table(self, name: str) -> bool:
        """Whether it holds a table, with or without rows."""
        return name in self.table_names

    def defer(self, write: Callable[[], None]) -> None:
        """Put off writing tables until somebody asks for one."""
        self._later.append(write)

    def _run_deferred(self) -> None:
        later, self._later = self._later, []
        try:
            for write in later:
                write()
        except BaseException:
            self._later = later  # whoever asks next is told the same
            raise

    def table(self, name: str) -> pd.DataFrame:
        """A table by name."""
        if not self.has_table(name):
            raise NormprobeError(
                f"the run of {self.command} holds no table {name}",
                did_you_mean(
                    name, self.table_names, f"it holds {', '.join(self.table_names) or 'none'}"
                ),
            )
        return self._tables[name]

    def rows_of(self, name: str) -> pd.DataFrame | None:
        """A table by name; None where there is none (yet), or it has no row."""
        table = self.table(name) if self.has_table(name) else None
        return None if table is None or table.empty else table

    def image(self, name: str) -> NDArray[np.uint8]:
        """An image by name, ``[height, width, 3]``."""
        if name not in self._images:
            raise NormprobeError(
                f"the run of {self.command} holds no image {name}", "run the command again"
            )
        return np.asarray(self._images[name].convert("RGB"))

    def sample_ids(self) -> set[str]:
        """The samples whose rows are there."""
        return {sample_id for rows in self._rows for sample_id in rows["sample_id"].unique()}

    def rows(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """All sample rows in the order they were appended; empty where there are none."""
        rows = pd.concat(self._rows, ignore_index=True) if self._rows else pd.DataFrame()
        return rows if columns is None else rows[[name for name in rows if name in columns]]

    def append(self, rows: pd.DataFrame) -> None:
        """Add sample rows; an empty frame adds nothing."""
        if not rows.empty:
            self._rows.append(rows)

    def write_table(self, name: str, table: pd.DataFrame) -> None:
        """Add a table."""
        self._tables[name] = table

    def write_image(self, name: str, image: Image.Image) -> None:
        """Add an image."""
        self._images[name] = image

    def note(self, **facts: object) -> None:
        """Add facts to the record."""
        self.record.update(facts)

    def add_warning(self, text: str) -> None:
        """Keep a warning in the record, once however often it is given."""
        if text not in self.record["warnings"]:
            self.note(warnings=[*self.record["warnings"], text])

    def finish(self, **facts: object) -> None:
        """Call the run complete."""
        self.note(status=COMPLETE, **facts)

    def discarded_on_failure(self) -> contextlib.AbstractContextManager[None]:
        """Leave nothing behind when the block fails; in memory nothing is left anyway."""
        return contextlib.nullcontext()

    def images(self) -> Iterator[tuple[str, Image.Image]]:
        """Names and images."""
        yield from self._images.items()


class SampleParts:
    """The files of sample rows below a run folder."""

    def __init__(self, folder: Path, writer: int = 0) -> None:
        self._folder = folder
        self._prefix = f"part-{writer}-" if writer else "part-"

    def exist(self) -> bool:
        """Whether any rows were kept."""
        return bool(self._files())

    def append(self, rows: pd.DataFrame) -> None:
        """Add rows as one more part."""
        table = pyarrow.Table.from_pandas(rows, preserve_index=False)
        taken = [part.stem.removeprefix(self._prefix) for part in self._parts()]
        number = max((int(part) for part in taken if part.isdigit()), default=-1) + 1
        self._write(f"samples/{self._prefix}{number:05d}.parquet", table)

    def sample_ids(self) -> set[str]:
        """The samples whose rows are there."""
        table = self._table(["sample_id"])
        return set() if table is None else set(table["sample_id"].unique().to_pylist())

    def rows(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """All rows in the order they were appended; empty where there are none."""
        table = self._table(columns)
        if table is None:
            return pd.DataFrame()
        if columns is None:
            _refuse_doubles(table, self._folder)
        rows: pd.DataFrame = table.to_pandas()
        return rows

    def set_unreadable_aside(self) -> list[str]:
        """Before more rows are added: rename what cannot be read, so that it is measured again.

        The one file that older versions made of all parts becomes the first part.
        """
        merged = self._folder / MERGED_FILE
        damaged = list(self._damaged())
        with write_failures(self._folder):
            for file, _ in damaged:
                file.rename(file.with_name(f"{_DAMAGED}{file.name}"))
            if merged.exists():
                for leftover in self._parts():
                    leftover.unlink()
                merged.rename(merged.with_name("part-00000.parquet"))
        return [f"{file.name}: {first_line(error)}" for file, error in damaged]

    def _table(self, columns: Sequence[str] | None) -> pyarrow.Table | None:
        """The parts as one data set, read where they lie."""
        files = self._files()
        if not files:
            return None
        try:
            # Permissive: a column that is empty in one part takes its type from the others.
            schema = pyarrow.unify_schemas(map(_schema, files), promote_options="permissive")
            wanted = [name for name in schema.names if columns is None or name in columns]
            # Else a bit that a disk turned round would be another number.
            held = ParquetFileFormat(page_checksum_verification=True)
            return dataset(files, schema=schema, format=held).to_table(wanted)
        except _UNREADABLE:
            for file, error in self._damaged():
                raise NormprobeError(
                    f"{file} is damaged: {first_line(error)}", "--resume measures its samples again"
                ) from error
            raise

    def _damaged(self) -> Iterator[tuple[Path, Exception]]:
        """The files that cannot be read, and why."""
        for file in self._files():
            try:
                _schema(file)
                pyarrow.parquet.read_table(file, page_checksum_verification=True)
            except _UNREADABLE as error:
                yield file, error

    def _parts(self) -> list[Path]:
        return sorted(self._folder.glob(PARTS_FOLDER))

    def _files(self) -> list[Path]:
        # A merged file holds every row: parts beside it are left from an interrupted merge.
        merged = self._folder / MERGED_FILE
        return [merged] if merged.exists() else self._parts()

    def _write(self, name: str, table: pyarrow.Table) -> None:
        # Serialised in memory, so that every refusal of the disk comes from one place.
        buffer = io.BytesIO()
        pyarrow.parquet.write_table(table, buffer, write_page_checksum=True)
        write_by_rename(self._folder / name, buffer.getvalue())


def _schema(file: Path) -> pyarrow.Schema:
    """The columns of a part."""
    if not file.is_file():  # reading a pipe would wait forever
        raise OSError("no regular file")
    schema = pyarrow.parquet.read_schema(file)
    if "sample_id" not in schema.names:
        raise ValueError("it holds no sample_id")
    return schema


def _refuse_doubles(table: pyarrow.Table, folder: Path) -> None:
    """Refuse rows that are there twice: a mean over them would be of samples that are not there."""
    keys = [name for name in ROW_KEYS if name in table.column_names]
    known = table.select(keys).to_pandas()
    doubled = known[known.duplicated()]
    if len(doubled):
        first = ", ".join(f"{name} {value}" for name, value in doubled.iloc[0].items())
        raise NormprobeError(
            f"{folder} holds {len(doubled)} rows twice ({first}): two processes wrote into it",
            "measure again with --overwrite, or with another --output",
        )


class RunFolder(RunStore):
    """A run in a folder.

    Attributes:
        path: the folder.
        record: the content of ``run.json``; change it through ``note`` so that the file follows.
        writer: 0 for the process that writes everything; others only append parts, each with a
            number of its own.
        replaces: whether an older run still lies in the folder, which this one deletes.
    """

    path: Path

    def __init__(self, path: Path, record: dict[str, Any], writer: int = 0) -> None:
        super().__init__({})
        self.path = path
        self.record = record
        self.writer = writer
        self._parts = SampleParts(path, writer)
        self._lock = FolderLock(path)
        self.replaces = False

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.path.resolve().name

    @property
    def table_names(self) -> list[str]:
        """The tables that lie in the folder, in alphabetical order."""
        self.replace_older()
        return [file.stem for file in own_files(self.path, "*.csv")]

    def has_table(self, name: str) -> bool:
        """Whether the folder holds ``<name>.csv``."""
        self.replace_older()
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
    def create(
        cls, path: Path, *, overwrite: bool, record: dict[str, Any], later: bool = False
    ) -> "RunFolder":
        """Start a run in a new or empty folder, or in place of an older run.

        ``later``: the older run stays until this one has something to hold, so that what fails
        before, such as loading a model, leaves it as it was.
        """
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
                    _require_run(path)
                    run.replaces = True
            except BaseException:
                run.unlock()
                raise
            if not later:
                run.replace_older()
        run.note()
        return run

    def replace_older(self) -> None:
        """Delete the run that this one replaces, where it is still there."""
        if self.replaces:
            self._lock.check()
            _delete_run(self.path)
            self.replaces = False
            self.note()

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
        if (written := record.get("schema_version")) != SCHEMA_VERSION:
            raise NormprobeError(
                f"the tables of {path} have another form: expected schema version "
                f"{SCHEMA_VERSION}, received {written}",
                "measure again, or read it with the version of normprobe that run.json names",
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
            if self.replaces:
                self.unlock()
                raise
            kept = self.kept_on_failure or self._parts.exist()
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
        self.replace_older()
        self._lock.check()
        if self.record["status"] == COMPLETE:
            self.note(status=PARTIAL)
        self._parts.append(rows)

    def set_unreadable_aside(self) -> list[str]:
        """As ``SampleParts.set_unreadable_aside``."""
        return self._parts.set_unreadable_aside()

    def sample_ids(self) -> set[str]:
        """The samples whose rows are there."""
        self.replace_older()
        return self._parts.sample_ids()

    def rows(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """All per-sample rows in the order they were appended; empty where there are none."""
        self.replace_older()
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
        if self.writer == 0 and not self.replaces:
            self._lock.check()
            write_by_rename(self.path / RECORD, json_bytes(self.record))

    def finish(self, **facts: object) -> None:
        """Call the run complete."""
        self.replace_older()
        self.note(status=COMPLETE, **facts)
        self.unlock()

    def _write_file(self, name: str, data: bytes) -> None:
        if name == RECORD or Path(name).name != name:
            raise ValueError(f"expected a plain file name other than {RECORD}, got {name!r}")
        self.replace_older()
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


def _require_run(path: Path) -> dict[str, Any]:
    """The record of a folder that ``--overwrite`` may delete."""
    record = read_record(path)
    if record is None:
        raise NormprobeError(
            f"{path} exists and is not a run folder: --overwrite deletes nothing else",
            "choose another --output",
        )
    return record


def _delete_run(path: Path) -> None:
    record = _require_run(path)
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


def runs_below(folder: Path) -> list[Path]:
    """The run folders of a folder, in the order in which they were begun."""
    if os.path.lexists(folder / RECORD) or not folder.is_dir():
        return [folder]  # whatever is wrong with it is told where it is opened
    found = []
    for place, below, files in os.walk(folder):
        path = Path(place)
        if RECORD in files:
            found.append(path)
        if RECORD in files or len(path.relative_to(folder).parts) == _DEEPEST:
            below.clear()
    if not found:
        raise NormprobeError(
            f"{folder} holds no run folder", "give the folder that a normprobe command printed"
        )
    return sorted(found, key=lambda path: (_created_at(path), path))


def _created_at(path: Path) -> str:
    return str((read_record(path) or {}).get("created", ""))
