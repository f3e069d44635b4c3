"""The paper's numbers beside a run's: measured, published, difference.

- ``beside_paper``: the table
- ``write_published``: it as ``published.csv`` of a run folder
- ``print_published``: it on a terminal
"""

from collections.abc import Mapping

import pandas as pd
from rich.console import Console
from rich.text import Text

from normprobe.report.readable_token import readable_token
from normprobe.report.reference import (
    AFTER,
    BEFORE,
    ENCODER,
    TEXT_TABLE,
    VISUAL_TABLE,
    Published,
    names_of,
    published_numbers,
)
from normprobe.report.run_dir import RunDir, read_table
from normprobe.report.significant import significant
from normprobe.report.terminal import add_column, new_table, print_notes, print_table
from normprobe.schema import (
    BASE,
    NONZERO_ROWS,
    PROJECTOR_INPUT,
    PROJECTOR_OUTPUT,
    TEXT,
    TEXT_EMBEDDING_TABLE,
    VISION_ENCODER,
    VISUAL,
)

PUBLISHED = "published"  # names the file

#: Command -> quantity -> the row of the command's table that measures it.
_MEASURED: dict[str, dict[str, dict[str, object]]] = {
    "interface": {
        ENCODER: {"stage": VISION_ENCODER, "group": VISUAL},
        BEFORE: {"stage": PROJECTOR_INPUT, "group": VISUAL},
        AFTER: {"stage": PROJECTOR_OUTPUT, "group": VISUAL},
        TEXT_TABLE: {"stage": TEXT_EMBEDDING_TABLE, "group": NONZERO_ROWS},
    },
    "layers": {AFTER: {"layer": 0, "group": VISUAL}},
    "embeddings": {
        TEXT_TABLE: {"table": TEXT, "rows": NONZERO_ROWS},
        VISUAL_TABLE: {"table": VISUAL, "rows": NONZERO_ROWS},
    },
}
_NUMBERS = ("measured", "published", "difference")
_PUBLISHED_COLUMNS = ["source", "model", "quantity", "statistic", "measured", "published"]
_COLUMNS = {"mean": "norm_mean", "std": "norm_std", "hidden size": "hidden_size"}


def beside_paper(command: str, model: str, tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """What was measured beside what the paper says of this model.

    Args:
        command: the command that measured.
        model: the measured model, see ``names_of``.
        tables: the tables of the run by name.

    Returns:
        One row a published number: source, model (as the paper calls it), quantity, statistic,
        measured, published, difference (measured - published). A token that is not in the run's
        table of tokens has no measured norm. No rows where the paper has no number that this
        command measures.
    """
    names = names_of(model)
    rows = []
    for number in published_numbers():
        if number.name in names:
            measured = _measured(command, number, tables)
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
    table = pd.DataFrame(rows, columns=_PUBLISHED_COLUMNS)
    table["difference"] = table["measured"] - table["published"]
    return table


def write_published(run: RunDir, model: str, base: str | None = None) -> None:
    """Write ``published.csv`` where the paper has numbers of this model as it was released.

    Args:
        run: of any command, its tables written. A run with an alignment norm has none.
        model: see ``names_of``.
        base: likewise, of the base model of ``embeddings --base``; None: what the run says.

    Raises:
        NormprobeError: the file cannot be written.
    """
    if run.record.get("alignment"):
        return
    command = str(run.record.get("command"))
    names = [command, "tokens"] if command in _MEASURED else []
    present = [name for name in names if (run.path / f"{name}.csv").is_file()]
    tables = {name: read_table(run.path, name) for name in present}
    table = beside_paper(command, model, tables)
    if run.record.get("base"):  # `embeddings --base` keeps the statistics of both tables
        older = _of_base(tables[command], read_table(run.path, "shift"))
        beside_base = beside_paper(command, base or str(run.record["base"]), older)
        table = pd.concat([table, beside_base], ignore_index=True)
    if len(table):
        run.write_table(PUBLISHED, table)


def _of_base(embeddings: pd.DataFrame, shift: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The tables of a run of ``embeddings`` as the base model alone would have them."""
    tokens = pd.DataFrame({"end": "top", "token": shift["token"], "norm": shift["base_norm"]})
    older = embeddings[embeddings["table"] == BASE].assign(table=TEXT)
    return {"embeddings": older, "tokens": tokens.dropna(subset="norm")}


def _measured(command: str, number: Published, tables: Mapping[str, pd.DataFrame]) -> float | None:
    """NaN where the run could have measured it and did not; None where its command never does."""
    if number.statistic not in _COLUMNS:
        return _token_norm(number.quantity, tables["tokens"]) if "tokens" in tables else None
    place = _MEASURED.get(command, {}).get(number.quantity)
    if place is None or command not in tables:
        return None
    table = tables[command]
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
