"""A text table beside that of the base model, on a terminal."""

import pandas as pd
from rich.console import Console
from rich.text import Text

from normprobe.report.readable import MISSING, significant
from normprobe.report.terminal import add_column, new_table, print_notes, print_table, token_cell

_MOST = 10  # rows, as in the paper's Tables 7 and 8


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
