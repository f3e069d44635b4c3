"""The paper's tables over the models of a survey: a row a model, and what was published of it."""

import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import pandas as pd

from normprobe.errors import visible
from normprobe.paper.numbers import COLUMNS, names_of, printed_rows, published_numbers
from normprobe.paper.tables import BELOW, PUBLISHED, Layout, layouts
from normprobe.report.readable import MISSING, ReadableTable
from normprobe.runs.run_folder import RunStore

_PLACE = re.compile(r"\{(\w+)\}")
_PLUS_MINUS = " \u00b1 "
_FEWEST = 2  # significant digits, of norms smaller than the paper's
_LEFT_OUT = "Models that lack what the table is about are left out."


@dataclass(frozen=True)
class _Part:
    """Rows of a table, one a model that has what they are about; see ``printed.toml``."""

    has: str
    columns: Mapping[str, Sequence[str]]
    begins: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Table:
    """What ``printed.toml`` says of a table; empty: as the paper has it."""

    title: str
    parts: Sequence[_Part]
    headers: Sequence[Sequence[str]] = ()
    each: Sequence[str] = ()


class MeasuredModel(NamedTuple):
    """What was measured of a model.

    Attributes:
        name: as it is shown.
        model: a hub id, or a folder.
        rows: quantity of the paper -> the row of a main table that measures it.
    """

    name: str
    model: str
    rows: Mapping[str, "pd.Series[Any]"]


def printed_tables(models: Sequence[MeasuredModel]) -> dict[str, pd.DataFrame]:
    """The paper's tables over models, as far as any of them has what a table is about."""
    tables = {name: pd.DataFrame([*_rows(name, models)]) for name in _known()}
    return {
        name: table.astype({c: "Int64" for c in table if str(c).startswith("hidden_size")})
        for name, table in tables.items()
        if len(table)
    }


def _rows(name: str, models: Sequence[MeasuredModel]) -> Iterator[dict[str, Any]]:
    source = layouts()[name].source
    for part in _known()[name].parts:
        for model in models:
            if part.has not in model.rows:
                continue
            row: dict[str, Any] = {**part.begins, "model": model.name}
            for column, (quantity, statistic) in part.columns.items():
                measured = model.rows.get(quantity)
                row[column] = None if measured is None else measured[COLUMNS[statistic]]
                row[column + PUBLISHED] = _published(source, model.model, quantity, statistic)
            yield row


def _published(source: str, model: str, quantity: str, statistic: str) -> float | None:
    """What the paper prints of a model."""
    names = names_of(model)
    wanted = (source, quantity, statistic)
    values = (
        number.value
        for number in (published_numbers() if names else ())
        if number.name in names and (number.source, number.quantity, number.statistic) == wanted
    )
    return next(values, None)


def readable(name: str, table: pd.DataFrame) -> ReadableTable | None:
    """A table of ``printed_tables`` as the paper prints it, each published row below the measured.

    Numbers have as many decimals as in the paper, and two significant digits or more.

    Returns:
        None of another table.
    """
    if name not in _known():
        return None
    known, layout = _known()[name], layouts()[name]
    each = known.each or layout.each
    published = any(table[c].notna().any() for c in table if str(c).endswith(PUBLISHED))
    rows = []
    for _, row in table.iterrows():
        rows.append([_cell(layout, template, row) for template in each])
        below = [_cell(layout, template, row, PUBLISHED) for template in each]
        if any(below):
            rows.append(below)
    return ReadableTable(
        [tuple(header) for header in known.headers or layout.headers],
        rows,
        [any(f"{column}{PUBLISHED}" in table for column in _PLACE.findall(t)) for t in each],
        [*([BELOW] if published else []), _LEFT_OUT],
        known.title,
    )


def printed_of(run: RunStore) -> dict[str, ReadableTable]:
    """The tables of ``printed_tables`` that a survey holds, to be read."""
    found = ((name, readable(name, run.table(name))) for name in _known() if run.has_table(name))
    return {name: table for name, table in found if table is not None}


def _cell(layout: Layout, template: str, row: "pd.Series[Any]", end: str = "") -> str:
    """One cell; with ``end`` the published one: in parentheses, empty where there is none."""
    texts = []
    for part in template.split(_PLUS_MINUS):
        (column,) = _PLACE.findall(part)
        if column + PUBLISHED not in row:
            return "" if end else _words(layout, column, str(row[column]))
        if not pd.isna(row[column + end]):
            texts.append(_number(layout, column, float(row[column + end])))
    text = _PLUS_MINUS.join(texts)
    return (f"({text})" if text else "") if end else text or MISSING


def _words(layout: Layout, column: str, text: str) -> str:
    return visible(text) if column == "model" else layout.words.get(text, text)


def _number(layout: Layout, column: str, value: float) -> str:
    printed = next(row[column] for row in printed_rows(layout.file) if row[column] != "nan")
    decimals = len(printed.partition(".")[2])
    if decimals and value and math.isfinite(value):
        decimals = max(decimals, _FEWEST - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"


@cache
def _known() -> dict[str, _Table]:
    text = (files(__package__) / "printed.toml").read_text(encoding="utf-8")
    return {
        name: _Table(**{**entry, "parts": [_Part(**part) for part in entry["parts"]]})
        for name, entry in tomllib.loads(text).items()
    }
