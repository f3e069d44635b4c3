"""How a run of ``embeddings`` is shown: on a terminal, and on the page."""

import pandas as pd
from rich.console import Console
from rich.text import Text

from normprobe.measurements.embeddings.words import embeddings_verdict, shift_verdict
from normprobe.report.page.blocks import heading, sentence
from normprobe.report.page.blocks import table as shown
from normprobe.report.page.markup import Markup
from normprobe.report.readable import MISSING, SPACE, count, significant
from normprobe.report.terminal import (
    GROUP_STYLES,
    add_column,
    new_table,
    print_notes,
    print_sentence,
    print_table,
    token_cell,
    words,
)
from normprobe.runs.run_folder import RunStore

_MOST = 10  # rows, as in the paper's Tables 7 and 8


def show(run: RunStore, console: Console) -> None:
    """Print the tables and their loudest rows, beside those of a base where there is one."""
    embeddings, tokens = run.table("embeddings"), run.table("tokens")
    shift = run.rows_of("shift")
    # Beside a base, its loudest rows stand in the place of the quietest of the model.
    print_embeddings(embeddings, tokens if shift is None else tokens.iloc[:0], console)
    print_sentence(embeddings_verdict(embeddings), console)
    if shift is not None:
        print_shift(shift, console)
        print_sentence(shift_verdict(embeddings, shift), console)


def print_embeddings(embeddings: pd.DataFrame, tokens: pd.DataFrame, console: Console) -> None:
    """Print ``embeddings.csv``, then the rows with the largest and smallest norms."""
    table = new_table("L2 norm of embedding rows")
    for header in ("table", "d", "rows", "mean", "std", "min", "median", "max"):
        add_column(table, header, left=header == "table")
    for name, rows in embeddings.groupby("table", sort=False):
        title = Text(f"{name} table", style="bold")
        table.add_row(title, Text(count(float(rows["hidden_size"].iloc[0]))))
        for _, row in rows.iterrows():
            columns = ("norm_mean", "norm_std", "norm_min", "norm_q50", "norm_max")
            table.add_row(
                Text(f"  {words(str(row['rows']))}"),
                Text(),
                Text(count(float(row["count"]))),
                *(Text(significant(float(row[column]))) for column in columns),
                style=GROUP_STYLES.get(str(name)),
            )
    print_table(table, console)
    print_notes(console, "d: hidden size. std: over rows.")
    for name, rows in tokens.groupby("table", sort=False):
        _ends_table(f"{name} table", rows, console)


def _ends_table(name: str, tokens: pd.DataFrame, console: Console) -> None:
    ends = {
        end: tokens[tokens["end"] == end].sort_values("rank").head(_MOST)
        for end in ("top", "bottom")
    }
    table = new_table(f"Loudest and quietest rows of the {name}")
    add_column(table, "rank")
    for end in ("loudest", "quietest"):
        add_column(table, end, left=True)
        add_column(table, "id")
        add_column(table, "norm")
    for place in range(max(map(len, ends.values()))):
        cells = [Text(str(place + 1))]
        for rows in ends.values():
            if place >= len(rows):
                cells += [Text(MISSING)] * 3
                continue
            row = rows.iloc[place]
            cells += [
                token_cell(row["token"], special=bool(row["special"])),
                Text(str(row["token_id"])),
                Text(significant(float(row["norm"]))),
            ]
        table.add_row(*cells)
    print_table(table, console)
    most = int(tokens.groupby("end").size().max())
    print_notes(
        console,
        f"* special token. {SPACE} a space.",
        f"{_MOST} of {most} ranks shown; tokens.csv has all." if most > _MOST else "",
    )


def print_shift(shift: pd.DataFrame, console: Console) -> None:
    """Print the loudest rows of both tables side by side, then the tokens that moved most."""
    _print_ranks(shift, console)
    _print_movers(shift, console)


def _print_ranks(shift: pd.DataFrame, console: Console) -> None:
    table = new_table("Loudest rows: base and model")
    for header in ("rank", "base", "norm", "model", "norm", "rank in base"):
        add_column(table, header, left=header in ("base", "model"))
    sides = [
        shift[shift[rank].le(_MOST).fillna(False)].sort_values(rank)
        for rank in ("base_rank", "rank")
    ]
    for place in range(max(map(len, sides))):
        cells = [Text(str(place + 1))]
        for rows, norm in zip(sides, ("base_norm", "norm"), strict=True):
            if place >= len(rows):
                cells += [Text(MISSING)] * 2
                continue
            row = rows.iloc[place]
            cells += [_token(row), Text(significant(float(row[norm])))]
        before = sides[1].iloc[place]["base_rank"] if place < len(sides[1]) else pd.NA
        cells.append(Text("new" if pd.isna(before) else f"{int(before):,}"))
        table.add_row(*cells)
    print_table(table, console)
    alone = [
        int((shift[own].notna() & shift[other].isna()).sum())
        for own, other in (("token_id", "base_id"), ("base_id", "token_id"))
    ]
    shared = int((shift["token_id"].notna() & shift["base_id"].notna()).sum())
    print_notes(
        console,
        "* special token. new: not in the base's vocabulary.",
        f"{shared:,} tokens in both, {alone[0]:,} in the model alone, {alone[1]:,} in the base.",
    )


def _print_movers(shift: pd.DataFrame, console: Console) -> None:
    movers = moved_most(shift).head(_MOST)
    table = new_table("Tokens that moved most")
    for header in ("token", "id", "base norm", "norm", "distance", "cosine"):
        add_column(table, header, left=header == "token")
    for _, row in movers.iterrows():
        cosine = float(row["cosine"])
        table.add_row(
            _token(row),
            Text(str(row["token_id"])),
            *(Text(significant(float(row[name]))) for name in ("base_norm", "norm", "distance")),
            Text(MISSING if pd.isna(cosine) else f"{cosine:.4f}"),
        )
    print_table(table, console)
    print_notes(
        console,
        "distance: L2 norm of the difference of both rows; cosine: between them."
        if movers["distance"].notna().any()
        else "The hidden sizes differ: no distance, no cosine; ordered by change of norm.",
    )


def moved_most(shift: pd.DataFrame) -> pd.DataFrame:
    """Shared tokens by falling distance; by size of the norm's change where there is none."""
    shared = shift[shift["token_id"].notna() & shift["base_id"].notna()]
    if shared["distance"].notna().any():
        return shared.sort_values("distance", ascending=False, kind="stable")
    return shared.sort_values("norm_change", key=abs, ascending=False, kind="stable")


def _token(row: "pd.Series[str]") -> Text:
    return token_cell(row["token"], special=bool(row["special"]))


_COLUMNS = ["table", "rows", "hidden_size", "count", "norm_mean", "norm_std", "norm_min"]
_COLUMNS += ["norm_q50", "norm_max"]


def headline(run: RunStore) -> str:
    """How loud the rows of the tables are."""
    embeddings = run.rows_of("embeddings")
    return "" if embeddings is None else embeddings_verdict(embeddings)


def section(run: RunStore) -> list[Markup]:
    """The statistics of the tables, and the rows that stand out."""
    embeddings, tokens = run.rows_of("embeddings"), run.rows_of("tokens")
    if embeddings is None:
        return []
    blocks = [
        sentence(headline(run)),
        heading("L2 norm of embedding rows"),
        shown(embeddings[[column for column in _COLUMNS if column in embeddings]]),
    ]
    shift = run.rows_of("shift")
    if shift is not None:
        blocks.insert(1, sentence(shift_verdict(embeddings, shift)))
    if tokens is not None:
        blocks += [heading("Loudest and quietest rows"), shown(tokens)]
    return blocks
