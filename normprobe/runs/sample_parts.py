"""The sample rows of a run folder: in parts while it is measured, in one file when it is complete.

Each part appears by rename, so a part is whole or not there. One that is damaged all the same (a
disk that lied, a file from elsewhere) is set aside and named; its samples are measured again.
"""

import io
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pandas as pd
import pyarrow
import pyarrow.parquet

from normprobe.errors import NormprobeError, first_line
from normprobe.runs.atomic import write_by_rename, write_failures
from normprobe.schema import IMAGE

log = logging.getLogger(__name__)

PARTS = "samples/part-*.parquet"
MERGED = "samples/samples.parquet"

#: What a part that cannot be read is renamed to.
_DAMAGED = "damaged-"

#: What is one row: no two rows of a run agree in all of these that it has.
KEYS = ("sample_id", "layer", "stage", "group", IMAGE)

#: What reading a file that is no Parquet file raises; pyarrow's own errors are among them.
_UNREADABLE = (OSError, ValueError, pyarrow.ArrowException)


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
        columns = (table.column("sample_id") for _, table in self._read(["sample_id"]))
        return {sample_id for column in columns for sample_id in column.unique().to_pylist()}

    def rows(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """All rows in the order they were appended; empty where there are none."""
        table = self._all(columns)
        return pd.DataFrame() if table is None else table.to_pandas()

    def merge(self) -> None:
        """Make one file of all parts."""
        self.unmerge()
        table = self._all()
        if table is None:
            return
        parts = self._parts()
        self._write(MERGED, table)
        with write_failures(self._folder):
            for part in parts:
                part.unlink()

    def unmerge(self) -> None:
        """Make the merged file the first part again, so that parts can follow it."""
        merged = self._folder / MERGED
        if not merged.exists():
            return
        with write_failures(self._folder):
            for leftover in self._parts():
                leftover.unlink()
            merged.rename(merged.with_name("part-00000.parquet"))

    def set_damaged_aside(self) -> list[str]:
        """Rename the files that cannot be read, so that their samples count as not measured."""
        damaged = []

        def note(file: Path, error: Exception) -> None:
            damaged.append(f"{file.name}: {first_line(error)}")
            with write_failures(self._folder):
                file.rename(file.with_name(f"{_DAMAGED}{file.name}"))

        for _ in self._read(None, note):
            pass
        return damaged

    def _all(self, columns: Sequence[str] | None = None) -> pyarrow.Table | None:
        tables = [table for _, table in self._read(columns)]
        if not tables:
            return None
        # Permissive: a column that is empty in one part takes its type from the others.
        table = pyarrow.concat_tables(tables, promote_options="permissive")
        if columns is None:
            _refuse_doubles(table, self._folder)
        return table

    def _parts(self) -> list[Path]:
        return sorted(self._folder.glob(PARTS))

    def _files(self) -> list[Path]:
        # The merged file holds every row: parts beside it are left from an interrupted merge.
        merged = self._folder / MERGED
        return [merged] if merged.exists() else self._parts()

    def _read(
        self,
        columns: Sequence[str] | None,
        when_damaged: Callable[[Path, Exception], None] | None = None,
    ) -> Iterator[tuple[Path, pyarrow.Table]]:
        for file in self._files():
            try:
                if not file.is_file():  # reading a pipe would wait forever
                    raise OSError("no regular file")
                held = pyarrow.parquet.read_schema(file).names
                if "sample_id" not in held:
                    raise ValueError("it holds no sample_id")
                wanted = held if columns is None else [name for name in columns if name in held]
                table = pyarrow.parquet.read_table(file, columns=wanted)
            except _UNREADABLE as error:
                if when_damaged is None:
                    raise NormprobeError(
                        f"{file} is damaged: {first_line(error)}",
                        "--resume measures its samples again",
                    ) from error
                when_damaged(file, error)
            else:
                yield file, table

    def _write(self, name: str, table: pyarrow.Table) -> None:
        # Serialised in memory, so that every refusal of the disk comes from one place.
        buffer = io.BytesIO()
        pyarrow.parquet.write_table(table, buffer)
        write_by_rename(self._folder / name, buffer.getvalue())


def _refuse_doubles(table: pyarrow.Table, folder: Path) -> None:
    """Refuse rows that are there twice: a mean over them would be of samples that are not there."""
    keys = [name for name in KEYS if name in table.column_names]
    known = table.select(keys).to_pandas()
    doubled = known[known.duplicated()]
    if len(doubled):
        first = ", ".join(f"{name} {value}" for name, value in doubled.iloc[0].items())
        raise NormprobeError(
            f"{folder} holds {len(doubled)} rows twice ({first}): two processes wrote into it",
            "measure again with --overwrite, or with another --output",
        )
