"""The paper's own tables with measured cells: its rows, columns, order and digits."""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import pandas as pd

from normprobe.errors import number_of, visible
from normprobe.paper import ALSO
from normprobe.paper.numbers import (
    NOT_A_TOKEN,
    names_of,
    printed_rows,
    published_numbers,
    ranked_tokens,
)
from normprobe.report.readable import (
    MISSING,
    SUPERSCRIPTS,
    ReadableTable,
    readable_token,
    significant,
)
from normprobe.runs.run_folder import RunStore

#: Row (from 0) and column of the file of a table.
Place = tuple[int, str]

#: What was measured there; of a token its text.
Cells = dict[Place, float | str]

#: What stands at a row and column; None: nothing.
Text = Callable[[int, str], str | None]

#: Ends a column of ``measured_csv``: as the paper prints it; of a token also its rank here.
PUBLISHED, RANK = "_published", "_published_rank"
#: In a template, a column and its row.
CELL_PLACE = re.compile(r"\{(\w+)(?: (\d+))?\}")
#: In a header, a model of the paper.
_MODEL_PLACE = re.compile(r"\{([^{}]+)\}")
#: The columns that hold tokens.
_TOKENS = ("base_token", "vl_token")

#: What stands below a table: always, and with published numbers.
_DASH = "-: not measured."
BELOW = f"Below each number, in parentheses: as published (arXiv 2512.08374). {_DASH}"


class Named(NamedTuple):
    """What is to be said at the name that the paper has for a model."""

    stand_in: str  # another model that was measured in its place; empty: none
    note: str  # on the numbers that the paper has of it; empty: none


class PaperTable(NamedTuple):
    """One of the paper's tables with measured cells."""

    numbers: pd.DataFrame  # of ``measured_csv``
    readable: ReadableTable  # of ``measured_table``


@dataclass(frozen=True)
class Layout:
    """How the paper prints a table; see ``tables.toml``."""

    title: str
    file: str
    keys: Sequence[str]
    headers: Sequence[Sequence[str]]
    each: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    words: Mapping[str, str] = field(default_factory=dict)
    named: str = ""
    note: str = ""
    note_on_published: str = ""

    @property
    def source(self) -> str:
        """The table's name in the paper, such as ``Table 2``."""
        return self.title.split(":")[0]

    @property
    def cells(self) -> list[list[str]]:
        """The cells of every row, each place with its row of the file."""
        if not self.each:
            return [list(row) for row in self.rows]
        return of_rows(self.each, len(printed_rows(self.file)))


def of_rows(each: Sequence[str], rows: int) -> list[list[str]]:
    """Templates of so many rows, each place with its row."""
    return [[CELL_PLACE.sub(rf"{{\1 {row}}}", cell) for cell in each] for row in range(rows)]


@cache
def layouts() -> dict[str, Layout]:
    """Every table that can be printed, by its name in ``commands.toml``."""
    text = (files("normprobe.paper") / "tables.toml").read_text(encoding="utf-8")
    return {name: Layout(**entry) for name, entry in tomllib.loads(text).items()}


def measured_csv(layout: Layout, cells: Cells, *, published: bool = True) -> pd.DataFrame:
    """The file of a table with what was measured."""
    rows = []
    for place, printed in enumerate(printed_rows(layout.file)):
        row: dict[str, float | str | None] = {}
        for column, text in printed.items():
            if column in layout.keys:
                row[column] = text
                continue
            measured = cells.get((place, column))
            row[column] = _as_printed(measured) if isinstance(measured, str) else measured
            if not published:
                continue
            row[column + PUBLISHED] = None if text == "nan" else text
            if column in _TOKENS:
                row[column + RANK] = cells.get((place, column + RANK))
        rows.append(row)
    table = pd.DataFrame(rows)
    return table.astype({c + RANK: "Int64" for c in _TOKENS if c + RANK in table})


def measured_table(
    layout: Layout,
    cells: Cells,
    notes: Sequence[str],
    names: Mapping[str, Named] | None = None,
    *,
    published: bool = True,
) -> ReadableTable:
    """A table as the paper prints it, with measured cells and below each what is published.

    Args:
        layout: of the table.
        cells: what was measured.
        notes: what stands below.
        names: what is to be said of models, by the names that the paper has for them.
        published: False: measured numbers alone, in the rows that have any.
    """
    printed = printed_rows(layout.file)
    numbers = [number for number in published_numbers() if number.source == layout.source]
    names = names or {}
    known = {number.name: names[number.name] for number in numbers if number.name in names}
    remarks = [*dict.fromkeys(named.note for named in known.values() if named.note and published)]
    marks = {n: _raised(remarks.index(known[n].note)) for n in known if known[n].note in remarks}
    instead = {name: named.stand_in for name, named in known.items() if named.stand_in}
    of_row = {number.row: number.name for number in numbers}

    def called(row: int, column: str) -> str:
        text = printed[row][column]
        mark = marks.get(of_row[row], "") if column == layout.named else ""
        return layout.words.get(text, text) + mark

    def stand_in(row: int, column: str) -> str | None:
        return instead.get(of_row[row]) if column == layout.named else None

    def measured(row: int, column: str) -> str | None:
        text = printed[row][column]
        if column in layout.keys:
            return stand_in(row, column) or called(row, column)
        value = cells.get((row, column))
        if isinstance(value, str):
            return readable_token(value)
        if value is None or text == "nan":
            return None
        return f"{value:.{len(text.partition('.')[2])}f}"  # as many decimals

    def as_published(row: int, column: str) -> str | None:
        text = printed[row][column]
        if text == "nan" or not published:
            return None
        if column in layout.keys:
            return called(row, column) if stand_in(row, column) else None
        if column not in _TOKENS or text == NOT_A_TOKEN:
            return text
        rank = cells.get((row, column + RANK))
        here = "" if rank is None else f", here {rank}"
        return readable_token(text.replace("\\n", "\n")) + here

    def headed(found: re.Match[str]) -> str:
        name = found[1]
        return marks.get(name, "") + (f": {instead[name]}" if name in instead else "")

    templates = [row for row in layout.cells if published or cells.keys() & _places(row)]
    rows = measured_above_published(templates, measured, as_published)
    numeric = [_is_numeric(layout, column) for column in zip(*layout.cells, strict=True)]
    headers = [tuple(_MODEL_PLACE.sub(headed, part) for part in parts) for parts in layout.headers]
    if published:
        below = [BELOW, layout.note_on_published, layout.note, *notes]
        below += [f"{_raised(place)} {remark}" for place, remark in enumerate(remarks)]
    else:
        below = [_DASH if any(MISSING in row for row in rows) else "", layout.note, *notes]
    label = layout.source.replace(" ", "").lower()
    return ReadableTable(headers, rows, numeric, [*filter(None, below)], layout.title, label)


def _raised(place: int) -> str:
    """The mark of a note, by its place from 0."""
    return "".join(SUPERSCRIPTS[int(digit)] for digit in str(place + 1))


def _places(templates: Sequence[str]) -> set[Place]:
    """What the cells of a row name."""
    return {(int(row), column) for cell in templates for column, row in CELL_PLACE.findall(cell)}


def measured_above_published(
    templates: Sequence[Sequence[str]], measured: Text, published: Text
) -> list[list[str]]:
    """The rows of a table as measured, and below each in parentheses as published, if it is."""
    rows = []
    for row in templates:
        known = [(_filled(cell, measured), _filled(cell, published)) for cell in row]
        below = [f"({text})" if text else "" for _, text in known]
        rows.append(
            [
                text or (MISSING if CELL_PLACE.search(cell) else cell)
                for cell, (text, _) in zip(row, known, strict=True)
            ]
        )
        rows += [below] if any(below) else []
    return rows


def _filled(template: str, text: Text) -> str:
    """The parts of a cell of which there is a text; of bare words none."""
    parts = []
    for part in template.split(" \u00b1 "):
        known = {place[0]: text(int(place[2]), place[1]) for place in CELL_PLACE.finditer(part)}
        if known and None not in known.values():
            filled = part
            for place, shown in known.items():
                filled = filled.replace(place, str(shown))
            parts.append(filled)
    return " \u00b1 ".join(parts)


def _is_numeric(layout: Layout, templates: Sequence[str]) -> bool:
    columns = {column for template in templates for column, _ in CELL_PLACE.findall(template)}
    return any(column not in (*layout.keys, *_TOKENS) for column in columns)


def _as_printed(token: str) -> str:
    return token.replace("\n", "\\n")


#: The columns of Table 5, by the name of the checkpoint in its commands.
NORM_COLUMNS = {"DEFAULT": "default_init", "ALIGNED": "aligned_init"}

#: What stands beside a quantity that the paper leaves open.
_ALSO = {quantity for others in ALSO.values() for quantity in others}

#: What Table 5 calls a column of ``norm_statistics`` otherwise.
_COLUMNS_OF_METRICS = {"sem_abs": "mean_abs_std"}


def cells_of_run(layout: Layout, run: RunStore, published: pd.DataFrame) -> Cells:
    """What a run has measured of a table."""
    cells: Cells = {}
    known = published[published["source"] == layout.source]
    rows = known.set_index(["model", "quantity", "statistic"])["measured"].dropna()
    ranks = known.dropna(subset="measured_rank").set_index(["model", "statistic"])["measured_rank"]
    for number in published_numbers():
        if number.source != layout.source:
            continue
        of_token = number.statistic.startswith("rank")
        if of_token and (number.name, number.statistic) in ranks.index:
            token = number.column.replace("l2_norm", "token")
            cells[number.row, token + RANK] = int(ranks[number.name, number.statistic])
        elif not of_token and (number.name, number.quantity, number.statistic) in rows.index:
            norm = rows[number.name, number.quantity, number.statistic]
            cells[number.row, number.column] = float(norm)
    for variant in ("base", "vl"):
        if known["model"].str.endswith(f" {variant}").any():
            cells |= _top_tokens(layout, run, variant)
    return cells


def _top_tokens(layout: Layout, run: RunStore, variant: str) -> Cells:
    """The loudest tokens of one side of a run, where the table has such a side."""
    printed = printed_rows(layout.file)
    if f"{variant}_token" not in printed[0]:
        return {}
    of_base = variant == "base" and bool(run.record.get("base"))
    ranked = ranked_tokens(run, of_base=of_base)
    if ranked is None:
        return {}
    top = ranked.drop_duplicates("rank").sort_values("rank").head(len(printed))
    cells: Cells = {}
    for rank, token, norm in zip(top["rank"], top["token"], top["norm"], strict=True):
        cells[int(rank) - 1, f"{variant}_token"] = str(token)
        cells[int(rank) - 1, f"{variant}_l2_norm"] = float(norm)
    return cells


def cells_of_norm(layout: Layout, column: str, statistics: pd.DataFrame) -> Cells:
    """What the gain and bias of a trained norm say of Table 5."""
    sizes = statistics.set_index("parameter").rename(columns=_COLUMNS_OF_METRICS).to_dict("index")
    return {
        (place, column): float(sizes[row["parameter"]][row["metric"]])
        for place, row in enumerate(printed_rows(layout.file))
    }


def notes_on(layout: Layout, run: RunStore, published: pd.DataFrame) -> list[tuple[str, str]]:
    """What a reader of a run's cells should know: of what it is, and what the paper leaves open.

    Returns:
        Whom each note is about, and what it says.
    """
    known = published[published["source"] == layout.source]
    samples = len(run.record.get("sample_ids") or ())
    data = f", {number_of(samples, 'sample')} of {run.record.get('data')}" if samples else ""
    notes = [(name, f"{_model_of(name, run)}{data}.") for name in known["model"].unique()]
    for (model, quantity), rows in known[known["quantity"].isin(_ALSO)].groupby(
        ["model", "quantity"], sort=False
    ):
        numbers = " \u00b1 ".join(significant(float(value)) for value in rows["measured"])
        notes.append((f"{model}, {quantity}", f"{numbers}."))
    return [(visible(whom), visible(note)) for whom, note in notes]


def merged_notes(notes: Sequence[tuple[str, str]]) -> list[str]:
    """Notes, those that say the same in one."""
    whom: dict[str, list[str]] = {}
    for name, note in dict.fromkeys(notes):
        whom.setdefault(note, []).append(name)
    return [f"{', '.join(names)}: {note}" for note, names in whom.items()]


def names_on(layout: Layout, run: RunStore, published: pd.DataFrame) -> dict[str, Named]:
    """What is to be said at the names of a run's models."""
    known = published[(published["source"] == layout.source)]
    named = {}
    for name, rows in known[known["quantity"] != NOT_A_TOKEN].groupby("model", sort=False):
        model = _model_of(str(name), run).rstrip("/")
        last = model.rpartition("/")[2]
        stand_in = "" if name in names_of(model) | names_of(last) else visible(last)
        notes = [note for note in rows["note"].dropna().unique() if note]
        # Of another model, what was taken here is not what the note says.
        told = [note.partition(" Here: ")[0] if stand_in else note for note in notes]
        named[str(name)] = Named(stand_in, " ".join(told))
    return named


def _model_of(name: str, run: RunStore) -> str:
    """What a run measured as a model of the paper: of two, the name says which."""
    is_base = name.endswith(" base") and run.record.get("base")
    return str(run.record.get("base" if is_base else "model") or "")
