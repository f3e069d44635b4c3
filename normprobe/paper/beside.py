"""The paper's numbers beside a run's: measured, published, difference.

- ``published_table``: the table ``published.csv`` of a run
- ``print_published``: it on a terminal
"""

from collections.abc import Mapping

import pandas as pd
from rich.console import Console
from rich.text import Text

from normprobe.paper.numbers import (
    Published,
    names_of,
    published_numbers,
)
from normprobe.report.readable_token import readable_token
from normprobe.report.significant import significant
from normprobe.report.terminal import add_column, new_table, print_notes, print_table
from normprobe.runs.run_store import RunStore
from normprobe.schema import (
    BASE,
    TEXT,
)

_NUMBERS = ("measured", "published", "difference")
_PUBLISHED_COLUMNS = ["source", "model", "quantity", "statistic", "measured", "published"]
_COLUMNS = {"mean": "norm_mean", "std": "norm_std", "hidden size": "hidden_size"}


def published_table(
    run: RunStore,
    rows_of: Mapping[str, Mapping[str, object]],
    model: str,
    base: str | None = None,
) -> pd.DataFrame | None:
    """What a run measured beside what the paper says of its model.

    Args:
        run: its tables are written.
        rows_of: quantity of the paper -> the row of the run's main table that measures it.
        model: the measured model, see ``names_of``.
        base: likewise, the base model of ``embeddings --base``; None: what the run says.

    Returns:
        As ``beside_paper``. None where the paper has no such number, and of a run with an alignment
        norm: the paper speaks of models as they were released.
    """
    if run.record.get("alignment") or not rows_of:
        return None
    tables = {name: run.table(name) for name in (run.command, "tokens") if run.has_table(name)}
    if run.command not in tables:
        return None
    table = beside_paper(model, tables[run.command], rows_of, tables.get("tokens"))
    if run.record.get("base"):  # `embeddings --base` keeps the statistics of both tables
        older, tokens = _of_base(tables[run.command], run.table("shift"))
        name = base or str(run.record["base"])
        beside_base = beside_paper(name, older, rows_of, tokens)
        table = pd.concat([table, beside_base], ignore_index=True)
    return table if len(table) else None


def beside_paper(
    model: str,
    table: pd.DataFrame,
    rows_of: Mapping[str, Mapping[str, object]],
    tokens: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """What was measured beside what the paper says of a model.

    Args:
        model: see ``names_of``.
        table: the main table of the run.
        rows_of: quantity of the paper -> the row of ``table`` that measures it.
        tokens: the tokens that stand out, where the run names some.

    Returns:
        One row a published number: source, model (as the paper calls it), quantity, statistic,
        measured, published, difference (measured - published). A token that is not in the table
        of tokens has no measured norm. No rows where the paper has no number that is measured.
    """
    names = names_of(model)
    rows = []
    for number in published_numbers() if names else ():
        if number.name in names:
            measured = _measured(number, table, rows_of, tokens)
            if measured is not None:
                rows.append(
                    {
                        "source": number.source,
                        "model": number.name,
                        "quantity": _shown(number),
                        "statistic": number.statistic,
                        "measured": measured,
                        "published": number.value,
                    }
                )
    beside = pd.DataFrame(rows, columns=_PUBLISHED_COLUMNS)
    beside["difference"] = beside["measured"] - beside["published"]
    return beside


def _of_base(embeddings: pd.DataFrame, shift: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Statistics and tokens of a run of ``embeddings`` as the base model alone would have them."""
    tokens = pd.DataFrame({"end": "top", "token": shift["token"], "norm": shift["base_norm"]})
    older = embeddings[embeddings["table"] == BASE].assign(table=TEXT)
    return older, tokens.dropna(subset="norm")


def _measured(
    number: Published,
    table: pd.DataFrame,
    rows_of: Mapping[str, Mapping[str, object]],
    tokens: pd.DataFrame | None,
) -> float | None:
    """NaN where the run could have measured it and did not; None where its command never does."""
    if number.statistic not in _COLUMNS:
        return None if tokens is None else _token_norm(number.quantity, tokens)
    place = rows_of.get(number.quantity)
    if place is None:
        return None
    for column, value in place.items():
        table = table[table[column] == value]
    return float(table[_COLUMNS[number.statistic]].iloc[0]) if len(table) else None


def _token_norm(token: str, tokens: pd.DataFrame) -> float:
    found = tokens.loc[(tokens["end"] == "top") & (tokens["token"] == token), "norm"]
    return float(found.iloc[0]) if len(found) else float("nan")


def print_published(published: pd.DataFrame, console: Console) -> None:
    """Print ``published.csv``.

    Args:
        published: the table.
        console: where to print.
    """
    table = new_table("Beside the paper")
    for header in ("quantity", "statistic", "measured", "published", "difference"):
        add_column(table, header, left=header in ("quantity", "statistic"))
    for (source, model), rows in published.groupby(["source", "model"], sort=False):
        table.add_row(Text(f"{source}, {model}", style="bold"))
        for _, row in rows.iterrows():
            table.add_row(
                Text(f"  {row['quantity']}"),
                Text(str(row["statistic"])),
                *(Text(significant(float(row[column]))) for column in _NUMBERS),
            )
    print_table(table, console)
    print_notes(
        console,
        "Published: arXiv 2512.08374. Visual tokens there are of 1000 samples of MMBench,",
        "POPE and MM-Star; --data paper draws such samples.",
    )


def _shown(number: Published) -> str:
    """A token with every character visible, other quantities by name."""
    return number.quantity if number.statistic in _COLUMNS else readable_token(number.quantity)
