"""How a run of ``embeddings`` is shown: on a terminal, and on the page."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup
from rich.console import Console
from rich.table import Table
from rich.text import Text

from normprobe.report.page.blocks import heading
from normprobe.report.page.blocks import shown_table as shown
from normprobe.report.readable import MISSING, SPACE, count, significant
from normprobe.report.terminal import (
    GROUP_STYLES,
    add_column,
    new_table,
    print_notes,
    print_table,
    token_cell,
    words,
)
from normprobe.runs.run_folder import RunStore
from normprobe.tidy import select, wide

_MOST = 10  # rows, as in the paper's Tables 7 and 8
_KEYS = ["table", "rows"]
#: What is shown of norms, by name.
_NORMS = ["norm mean", "norm std", "norm min", "norm q50", "norm max"]


def show(run: RunStore, console: Console) -> None:
    """Print the tables and their loudest rows, beside those of a base where there is one."""
    embeddings, tokens = run.table("embeddings"), run.table("tokens")
    shift = run.rows_of("shift")
    # Beside a base, its loudest rows stand in the place of the quietest of the model.
    print_embeddings(embeddings, tokens if shift is None else tokens.iloc[:0], console)
    if shift is not None:
        print_shift(shift, console)


def print_embeddings(embeddings: pd.DataFrame, tokens: pd.DataFrame, console: Console) -> None:
    """Print ``embeddings.csv``, then the rows with the largest and smallest norms."""
    table = new_table("L2 norm of embedding rows")
    for header in ("table", "d", "rows", "mean", "std", "min", "median", "max"):
        add_column(table, header, left=header == "table")
    for name, rows in _by_scope(embeddings).groupby("table", sort=False):
        title = Text(f"{name} table", style="bold")
        table.add_row(title, Text(count(float(rows["hidden_size"].iloc[0]))))
        for _, row in rows.iterrows():
            table.add_row(
                Text(f"  {words(str(row['rows']))}"),
                Text(),
                Text(count(float(row["count"]))),
                *(Text(significant(float(row[column]))) for column in _NORMS),
                style=GROUP_STYLES.get(str(name)),
            )
    print_table(table, console)
    print_notes(console, "d: hidden size. std: over rows.")
    for name, rows in tokens.groupby("table", sort=False):
        _ends_table(f"{name} table", rows, console)


def _by_scope(embeddings: pd.DataFrame) -> pd.DataFrame:
    """What is shown of each table and scope of rows, side by side."""
    names = {"tokens": "count", "norm": "norm mean", "norm_min": "norm min", "norm_max": "norm max"}
    names |= {"std": "norm std", "q50": "norm q50"}
    beside = select(embeddings, "norm")[[*_KEYS, "std", "q50"]]
    both = wide(embeddings).merge(beside, "left", _KEYS).rename(columns=names)
    return both.reindex(columns=[*_KEYS, "hidden_size", "count", *_NORMS])


def _ends_table(name: str, tokens: pd.DataFrame, console: Console) -> None:
    ends = [
        tokens[tokens["end"] == end].sort_values("rank").head(_MOST) for end in ("top", "bottom")
    ]
    headers = ("rank", "loudest", "id", "norm", "quietest", "id", "norm")
    columns = [("token", "token_id", "norm")] * 2
    title = f"Loudest and quietest rows of the {name}"
    print_table(_side_by_side(title, headers, ends, columns), console)
    most = int(tokens.groupby("end").size().max())
    print_notes(
        console,
        f"* special token. {SPACE} a space.",
        f"{_MOST} of {most} ranks shown; tokens.csv has all." if most > _MOST else "",
    )


def print_shift(shift: pd.DataFrame, console: Console) -> None:
    """Print the loudest rows of both tables side by side, then what moved most, if anything."""
    sides = [
        shift[shift[rank].le(_MOST).fillna(False)].sort_values(rank)
        for rank in ("base_rank", "rank")
    ]
    headers = ("rank", "base", "norm", "model", "norm", "rank in base")
    columns = [("token", "base_norm"), ("token", "norm", "base_rank")]
    print_table(_side_by_side("Loudest rows: base and model", headers, sides, columns), console)
    here, there = shift["token_id"].notna(), shift["base_id"].notna()
    print_notes(
        console,
        "* special token. new: not in the base's vocabulary.",
        f"{(here & there).sum():,} tokens in both, {(here & ~there).sum():,} in the model alone, "
        f"{(there & ~here).sum():,} in the base.",
    )
    movers = moved_most(shift).head(_MOST)
    if movers["distance"].eq(0).all():
        return  # the sentence says that nothing moved
    headers = ("token", "id", "base norm", "norm", "distance", "cosine")
    columns = [("token", "token_id", "base_norm", "norm", "distance", "cosine")]
    table = _side_by_side("Tokens that moved most", headers, [movers], columns)
    print_table(table, console)
    print_notes(
        console,
        "distance: L2 norm of the difference of both rows; cosine: between them."
        if movers["distance"].notna().any()
        else "The hidden sizes differ: no distance, no cosine; ordered by change of norm.",
    )


def _side_by_side(
    title: str,
    headers: Sequence[str],
    sides: Sequence[pd.DataFrame],
    columns: Sequence[Sequence[str]],
) -> Table:
    """Columns of the rows of each side, line by line, behind the rank if that has a header."""
    table = new_table(title)
    for header in headers:
        add_column(table, header, left=header in ("token", "loudest", "quietest", "base", "model"))
    for place in range(max(map(len, sides))):
        cells = [Text(str(place + 1))] if headers[0] == "rank" else []
        for rows, names in zip(sides, columns, strict=True):
            row = rows.iloc[place] if place < len(rows) else None
            cells += [Text(MISSING) if row is None else _cell(row, name) for name in names]
        table.add_row(*cells)
    return table


def _cell(row: "pd.Series[Any]", name: str) -> Text:
    value = row[name]
    if name == "token":
        return token_cell(value, special=bool(row["special"]))
    if name == "base_rank":
        return Text("new" if pd.isna(value) else f"{int(value):,}")
    if name == "cosine":
        return Text(MISSING if pd.isna(value) else f"{value:.4f}")
    return Text(str(value) if name == "token_id" else significant(float(value)))


def moved_most(shift: pd.DataFrame) -> pd.DataFrame:
    """Shared tokens by falling distance; by size of the norm's change where there is none."""
    shared = shift[shift["token_id"].notna() & shift["base_id"].notna()]
    if shared["distance"].notna().any():
        return shared.sort_values("distance", ascending=False, kind="stable")
    return shared.sort_values("norm_change", key=abs, ascending=False, kind="stable")


def section(run: RunStore) -> list[Markup]:
    """The statistics of the tables, and the rows that stand out."""
    embeddings, tokens = run.table("embeddings"), run.rows_of("tokens")
    blocks = [heading("L2 norm of embedding rows"), shown(_by_scope(embeddings))]
    if tokens is not None:
        blocks += [heading("Loudest and quietest rows"), shown(tokens)]
    return blocks
