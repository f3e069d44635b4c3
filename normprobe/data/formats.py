"""The file formats of the benchmarks to rows: TSV, JSON lines, parquet, saved folders, the hub."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normprobe.data.benchmarks import Benchmark
from normprobe.data.rows import BadRow, BadRows, Place, Row, printable
from normprobe.errors import NormprobeError, first_line
from normprobe.failures import offline_where_no_hub_answers

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset
    from pyarrow.parquet import ParquetFile

# The reader's block has to hold the longest row, here the whole file; Arrow counts it in 32 bits.
_MAX_BLOCK = 2**31 - 1

# Run lengths and compression let a parquet file of a few kB hold more than memory does. No
# benchmark comes near.
_MAX_ROWS = 1_000_000
_MAX_BYTES, _MAX_GROWTH = 2**28, 16  # or so many times its bytes, if that is more
_ROWS_AT_ONCE = 500

# A row that starts inside a cell: a number and a tab after a line break.
_MERGED = r"\n\d+\t"
STATE = "state.json"  # of a saved data set: names its files
#: What to do with a file of no known form.
WRITE_LINES = 'write FILE.jsonl, a line each: {"image": "cat.jpg", "prompt": "What is it?"}'


@dataclass(frozen=True)
class Rows:
    """A table with the place of every row."""

    table: pa.Table  # the columns of the file or the hub, unchanged
    source: str  # names the table in errors
    places: Sequence[Place]  # of each row

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.table.column_names)

    def __iter__(self) -> Iterator[Row]:
        for number, place in enumerate(self.places):
            yield Row(place, _Cells(self.table, number))


@dataclass(frozen=True, eq=False)
class _Cells(Mapping[str, Any]):
    """The cells of one row, each read when it is asked for: images stay in the table."""

    table: pa.Table
    number: int

    def __getitem__(self, column: str) -> Any:
        return self.table[column][self.number].as_py()

    def __iter__(self) -> Iterator[str]:
        return iter(self.table.column_names)

    def __len__(self) -> int:
        return int(self.table.num_columns)


def read_tsv(path: Path, bad: BadRows) -> Rows:
    """Read a file of tabs, or ``.csv`` of commas, with a header; every cell is text, digits too.

    Arrow's reader rather than that of pandas or the standard library: it neither turns the text
    "None" or "NA" into a missing value nor limits the size of a cell, and it counts the cells of
    every row.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    text = _read_text(path)
    if not text.strip():
        raise _no_rows(path)
    commas = path.suffix.lower() == ".csv"
    delimiter, kind = (",", "comma") if commas else ("\t", "tab")
    header = text.split("\n", 1)[0].rstrip("\r").split(delimiter)

    odd_rows = []

    def note_odd_row(row: Any) -> str:
        odd_rows.append(row)
        return "skip"  # raising here would hide the row number behind Arrow's own error

    try:
        table = csv.read_csv(
            path,
            read_options=csv.ReadOptions(
                use_threads=False,  # with threads Arrow does not number the odd rows
                block_size=min(path.stat().st_size + 1, _MAX_BLOCK),
            ),
            parse_options=csv.ParseOptions(
                delimiter=delimiter, newlines_in_values=True, invalid_row_handler=note_odd_row
            ),
            convert_options=csv.ConvertOptions(
                column_types={name.strip('"'): pa.string() for name in header}
            ),
        )
    except (pa.ArrowException, OSError) as error:
        if "Empty CSV" in str(error):
            raise _no_rows(path) from error
        raise NormprobeError(
            f"{path}: not a {kind}-separated table ({first_line(error)})",
            f"save it as {kind}-separated UTF-8 text with a header line",
        ) from error
    for row in odd_rows:
        place = Place(str(path), row.number - 1)
        if re.search(_MERGED, row.text):  # it holds other rows, which must not be lost silently
            raise _unclosed_quote(place)
        bad.refuse(
            BadRow(
                place,
                f"expected {row.expected_columns} columns, received {row.actual_columns}",
                f"look for a stray {kind} or double quote in that row",
            )
        )
    if odd_rows and not table.num_rows:
        raise NormprobeError(
            f"{path}: none of its {len(odd_rows)} rows has as many columns as the header",
            f"save it as {kind}-separated UTF-8 text with a header line",
        )
    if not table.num_rows:
        raise _no_rows(path)
    odd = {row.number - 1 for row in odd_rows}
    numbers = (number for number in range(1, table.num_rows + len(odd) + 1) if number not in odd)
    places = [Place(str(path), number) for number in numbers]

    # A stray pair of double quotes merges the lines between; the number of cells stays the same.
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_string(column.type):
            merged = pc.index(pc.match_substring_regex(column, _MERGED), True).as_py()
            if merged >= 0:
                raise _unclosed_quote(places[merged].at(name))
    return Rows(table, str(path), places)


def read_parquet(paths: Sequence[Path]) -> Rows:
    """Read a parquet file, or the shards of one table."""
    import pyarrow as pa
    from pyarrow import parquet

    tables, places = [], []
    for path in paths:
        try:
            with parquet.ParquetFile(path, memory_map=True) as file:
                table = _read_rows(file, path)
        except (OSError, MemoryError, ValueError, pa.ArrowException) as error:
            raise NormprobeError(
                f"{path}: expected a parquet file ({first_line(error)})",
                "download the file again, and check that it is complete",
            ) from error
        tables.append(table)
        places += [Place(str(path), row + 1) for row in range(table.num_rows)]
    try:
        table = pa.concat_tables(tables)
    except pa.ArrowException as error:
        raise NormprobeError(
            f"{paths[0]}: its shards hold different columns ({first_line(error)})",
            "download the files again",
        ) from error
    if not table.num_rows:
        raise _no_rows(paths[0])
    return Rows(table, str(paths[0]), places)


def _read_rows(file: ParquetFile, path: Path) -> pa.Table:
    """All rows, a few at a time: at once, pictures take twice the memory and far longer."""
    import pyarrow as pa

    claimed, room = file.metadata.num_rows, max(_MAX_BYTES, _MAX_GROWTH * path.stat().st_size)
    if claimed > _MAX_ROWS:
        raise _too_large(path, f"{_MAX_ROWS} rows", f"the file claims {claimed}")
    # A cell that repeats is stored once: each may be as large as all that is stored of a group of
    # rows. (Arrow aborts where what it says of a column is damaged.)
    groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
    largest = max((group.total_byte_size for group in groups), default=0)
    batches, taken = [], 0
    for batch in file.iter_batches(max(1, min(_ROWS_AT_ONCE, room // max(1, largest)))):
        batches.append(batch)
        taken += sum(map(_bytes_of, batch.columns))
        if taken > room:
            raise _too_large(path, f"{room} bytes of cells", "received more")
    table = pa.Table.from_batches(batches, file.schema_arrow)
    table.validate(full=True)  # text that is not UTF-8 would fail where it is read
    return table


def _bytes_of(column: pa.Array) -> int:
    """What its cells take; those that repeat may still stand there once."""
    import pyarrow as pa

    plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    return int(plain.nbytes)


def read_json_lines(path: Path, bad: BadRows) -> list[Row]:
    """Read one JSON object a line; blank lines are skipped."""
    rows = []
    for number, line in enumerate(_read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        place = Place(str(path), number, unit="line")
        try:
            cells = json.loads(line, object_pairs_hook=_without_repeats)
        except (ValueError, RecursionError) as error:
            fault = f"not JSON ({error})"
        else:
            if isinstance(cells, dict):
                rows.append(Row(place, cells))
                continue
            fault = f"expected a JSON object, received {type(cells).__name__}"
        bad.refuse(BadRow(place, fault, "write one JSON object on each line"))
    if not rows:
        raise _no_rows(path)
    return rows


def read_json(path: Path) -> Any:
    """Read a file that is one JSON value; None where it is not: it holds JSON lines, or neither."""
    text = _read_text(path)
    try:
        return json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError):
        return None


def json_entries(path: Path, whole: Any) -> list[Row] | None:
    """The entries of a file that is one JSON list, or an object with a list ``questions``.

    None where the file is not of this form. An entry that is no object has no cells.
    """
    entries = whole.get("questions") if isinstance(whole, dict) else whole
    if not isinstance(entries, list):
        return None
    if not entries:
        raise _no_rows(path)
    return [
        Row(Place(str(path), number, unit="entry"), entry if isinstance(entry, dict) else {})
        for number, entry in enumerate(entries, start=1)
    ]


def read_lines(path: Path) -> list[Row]:
    """Read a text file, each line a ``prompt``; blank lines are skipped."""
    rows = [
        Row(Place(str(path), number, unit="line"), {"prompt": line.strip()})
        for number, line in enumerate(_read_text(path).split("\n"), start=1)
        if line.strip()
    ]
    if not rows:
        raise _no_rows(path)
    return rows


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; the standard library silently keeps the last of repeated names."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {printable(twice)} is there twice")
    return made


def _unclosed_quote(place: Place) -> NormprobeError:
    return NormprobeError(
        f"{place}: a quote opened here is not closed before the next line",
        "look for a stray double quote in that row",
    )


def _read_text(path: Path) -> str:
    try:
        # utf-8-sig: spreadsheet programs begin a UTF-8 file with a byte order mark.
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise NormprobeError(
            f"{path}, line {line}: expected UTF-8 text, "
            f"received another encoding (byte {error.start})",
            f"convert it: iconv -f ENCODING -t UTF-8 {path} > NEW_FILE",
        ) from error
    except OSError as error:
        raise NormprobeError(
            f"{path}: the file cannot be read ({error.strerror})", "check the path and its rights"
        ) from error


def _too_large(path: Path, most: str, received: str) -> NormprobeError:
    return NormprobeError(f"{path}: expected at most {most}, {received}", "split the file")


def _no_rows(path: Path) -> NormprobeError:
    return NormprobeError(f"{path}: the file holds no rows", "check that the file is complete")


def is_saved_folder(folder: Path) -> bool:
    """Whether a folder holds a saved data set, of one split or of several."""
    return any((folder / name).is_file() for name in (STATE, "dataset_dict.json"))


def read_saved_folder(folder: Path) -> list[tuple[str, Rows]]:
    """The splits of a saved data set with their names; ``""`` where it is one split alone."""
    import datasets

    try:
        for path in _named_files(folder):
            if not path.resolve().is_relative_to(folder.resolve()):
                raise ValueError(f"it names {str(path)!a}, outside of it")
            if path.name != STATE:
                _refuse_compressed(path)
        loaded = datasets.load_from_disk(str(folder))
        splits = loaded if isinstance(loaded, dict) else {"": loaded}
        for split in splits.values():
            split.data.validate(full=True)  # Arrow maps the file and trusts its offsets
    except Exception as error:  # a damaged JSON or arrow file fails in many ways
        raise NormprobeError(
            f"{folder}: expected a saved data set ({first_line(error)})",
            "save it again with Dataset.save_to_disk",
        ) from error
    return [(name, rows_of(split, str(folder / name))) for name, split in splits.items()]


def _named_files(folder: Path) -> Iterator[Path]:
    """The files that the JSON of a saved data set names, each before it is opened."""
    index = folder / "dataset_dict.json"
    splits = json.loads(index.read_text())["splits"] if index.is_file() else ["."]
    for split in splits:
        state = folder / split / STATE
        yield state
        for file in json.loads(state.read_text())["_data_files"]:
            yield folder / split / file["filename"]


def _refuse_compressed(path: Path) -> None:
    """Refuse cells that take more than the file: saved ones are mapped as they are."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as file:
        taken = 0
        for batch in pa.ipc.open_stream(file):
            taken += batch.nbytes
            if taken > file.size():
                raise ValueError(f"{path.name} is compressed")


def load_hub_table(benchmark: Benchmark, subset: str) -> tuple[Rows, dict[str, str | None]]:
    """Load the rows of a published benchmark, images still encoded.

    Data sets move between organisations, so a benchmark may list several ids for the same rows;
    the first that can be loaded is recorded in the provenance.

    Returns:
        The table, memory-mapped from the cache, and its provenance: id, config, split, revision.
    """
    import datasets

    failures = []
    with offline_where_no_hub_answers():
        for source in benchmark.subsets[subset]:
            try:
                dataset = datasets.load_dataset(source.repo, source.config, split=source.split)
            except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
                failures.append(f"{source.repo}: {first_line(error, 160)}")
                continue
            provenance = {
                "hub": source.repo,
                "config": source.config,
                "split": source.split,
                "revision": _revision(dataset),
            }
            return rows_of(dataset, source.repo), provenance
    raise NormprobeError(
        f"data set {benchmark.name} could not be loaded ({'; '.join(failures)})",
        "offline, use --data sample (bundled questions) or --data PATH (a file or folder in the "
        "published format)",
    )


def rows_of(dataset: Dataset, source: str) -> Rows:
    """The rows of a loaded data set, images still encoded."""
    # The arrow format leaves images encoded: one bad image must not stop the whole table.
    table = dataset.with_format("arrow")[:]
    return Rows(table, source, [Place(source, row + 1) for row in range(table.num_rows)])


def _revision(dataset: Dataset) -> str | None:
    """Return the commit that the rows come from; ``None`` where the library did not record it."""
    sources: dict[str, Any] = dataset.info.download_checksums or {}
    commits = {match[1] for url in sources if (match := re.search(r"@([0-9a-f]{40})/", url))}
    return commits.pop() if len(commits) == 1 else None
