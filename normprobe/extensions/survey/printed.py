"""The paper's tables over the models of a survey: a row a model, and what was published of it."""

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import pandas as pd

from normprobe.errors import visible
from normprobe.paper.numbers import printed_rows, published_of
from normprobe.paper.tables import (
    BELOW,
    CELL_PLACE,
    PUBLISHED,
    Layout,
    layouts,
    measured_above_published,
    of_rows,
)
from normprobe.report.readable import ReadableTable
from normprobe.runs.run_folder import RunStore

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


class SurveyedModel(NamedTuple):
    """What was measured of a model."""

    name: str  # as it is shown
    model: str  # a hub id, or a folder
    numbers: Mapping[tuple[str, str], float]  # by quantity and statistic of the paper


def printed_tables(models: Sequence[SurveyedModel]) -> dict[str, pd.DataFrame]:
    """The paper's tables over models, as far as any of them has what a table is about."""
    tables = {name: pd.DataFrame([*_rows(name, models)]) for name in _known()}
    return {
        name: table.astype({c: "Int64" for c in table if str(c).startswith("hidden_size")})
        for name, table in tables.items()
        if len(table)
    }


def _rows(name: str, models: Sequence[SurveyedModel]) -> Iterator[dict[str, Any]]:
    source = layouts()[name].source
    for part in _known()[name].parts:
        for model in models:
            if (part.has, "mean") not in model.numbers:
                continue
            published = {
                (number.quantity, number.statistic): number.value
                for number in reversed(published_of(model.model))
                if number.source == source
            }
            row: dict[str, Any] = {**part.begins, "model": model.name}
            for column, (quantity, statistic) in part.columns.items():
                row[column] = model.numbers.get((quantity, statistic))
                row[column + PUBLISHED] = published.get((quantity, statistic))
            yield row


def printed_table(name: str, table: pd.DataFrame) -> ReadableTable | None:
    """A table of ``printed_tables`` as the paper prints it, each published row below the measured.

    Numbers have as many decimals as in the paper, and two significant digits or more.

    Returns:
        None of another table.
    """
    if name not in _known():
        return None
    known, layout = _known()[name], layouts()[name]
    each = known.each or layout.each
    is_number = [any(c + PUBLISHED in table for c, _ in CELL_PLACE.findall(cell)) for cell in each]

    def measured(row: int, column: str) -> str | None:
        if column + PUBLISHED in table:
            return published(row, column, "")
        text = str(table[column].iloc[row])
        return visible(text) if column == "model" else layout.words.get(text, text)

    def published(row: int, column: str, end: str = PUBLISHED) -> str | None:
        if column + PUBLISHED not in table or pd.isna(table[column + end].iloc[row]):
            return None
        return _number(layout, column, float(table[column + end].iloc[row]))

    headers = [tuple(header) for header in known.headers or layout.headers]
    rows = measured_above_published(of_rows(each, len(table)), measured, published)
    notes = [*([BELOW] if len(rows) > len(table) else []), _LEFT_OUT]
    return ReadableTable(headers, rows, is_number, notes, known.title)


def printed_of(run: RunStore) -> dict[str, ReadableTable]:
    """The tables of ``printed_tables`` that a survey holds, to be read."""
    found = (
        (name, printed_table(name, run.table(name))) for name in _known() if run.has_table(name)
    )
    return {name: table for name, table in found if table is not None}


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
