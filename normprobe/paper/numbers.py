"""The paper's numbers as printed, and beside those of a run: measured, published, difference."""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import as_file, files
from math import nan
from typing import NamedTuple

import pandas as pd
from rich.console import Console
from rich.text import Text

from normprobe.paper import AFTER, ALSO, BEFORE, ENCODER, TEXT_TABLE, VISUAL_TABLE
from normprobe.report.readable import MISSING, readable_token, significant
from normprobe.report.terminal import add_column, new_table, print_notes, print_table
from normprobe.runs.run_folder import RunStore
from normprobe.schema import BASE, TEXT
from normprobe.tidy import select

#: A token that the paper describes in place of naming it.
NOT_A_TOKEN = "(Chinese Char)"


class Published(NamedTuple):
    """A number as the paper prints it."""

    source: str  # e.g. Table 2
    name: str  # what the paper calls the model
    quantity: str  # of ``quantities``; of a token table, the token
    statistic: str  # mean, std or hidden size; of a token table, the rank
    value: float
    row: int  # of the file that holds it, from 0
    column: str


def names_of(model: str) -> set[str]:
    """What the paper calls a model; nothing where it has no such model."""
    known = _models()
    ids = known["hub_id"].str.casefold()
    same = ids.eq(model.casefold()) | ids.str.split("/").str[-1].eq(model.casefold())
    return set(known.loc[same, "name"])


def published_of(model: str) -> list[Published]:
    """What the paper prints of a model; nothing where it has no such model."""
    names = names_of(model)
    return [number for number in published_numbers() if number.name in names] if names else []


def note_on(number: Published) -> str:
    """What a reader of a number should know, such as that the paper has another one; or nothing."""
    if is_description(number):
        return "A description, not a token: it is not looked up."
    place = (number.source, number.name, number.quantity)
    rows = printed_rows("notes") if number.statistic == "mean" else []
    notes = (row["note"] for row in rows if (row["source"], row["model"], row["quantity"]) == place)
    return next(notes, "")


def is_description(number: Published) -> bool:
    """Whether a token table describes the token in place of naming it."""
    return number.quantity == NOT_A_TOKEN


def tokens_of_paper(model: str) -> frozenset[str]:
    """The tokens that the paper ranks of a model, as they read; none of most models."""
    return frozenset(
        number.quantity
        for number in published_of(model)
        if number.statistic.startswith("rank") and not is_description(number)
    )


def needs_remote_code(hub_id: str) -> bool:
    """Whether one of the paper's models brings code of its own."""
    known = _models()
    return bool(known.loc[known["hub_id"] == hub_id, "remote_code"].eq("yes").any())


@cache
def published_numbers() -> tuple[Published, ...]:
    """Every number of the paper that a command measures."""
    return tuple(
        number
        for read in (_table_1, _table_2, _table_3, _table_6, _token_tables)
        for number in read()
        if number.value == number.value  # the paper prints no deviation of some
    )


def _table_1() -> Iterator[Published]:
    for place, row in enumerate(printed_rows("table1_interface")):
        quantity = {"visual": ENCODER, "text": TEXT_TABLE}[row["modality"]]
        for statistic, column in (("mean", "mean"), ("std", "std"), ("hidden size", "hidden_size")):
            value = float(row[column])
            yield Published("Table 1", row["model"], quantity, statistic, value, place, column)


def _table_2() -> Iterator[Published]:
    names = {"before_projector": BEFORE, "after_projector": AFTER, "text_embedding": TEXT_TABLE}
    for place, row in enumerate(printed_rows("table2_projector")):
        for name, quantity in names.items():
            for statistic in ("mean", "std"):
                column = f"{name}_{statistic}"
                value = float(row.get(column, "nan"))
                yield Published("Table 2", row["model"], quantity, statistic, value, place, column)


def _table_3() -> Iterator[Published]:
    for place, row in enumerate(printed_rows("table3_ovis")):
        quantity = {"visual": VISUAL_TABLE, "text": TEXT_TABLE}[row["modality"]]
        for statistic in ("mean", "std"):
            value = float(row[statistic])
            yield Published("Table 3", "Ovis 2.5", quantity, statistic, value, place, statistic)


def _table_6() -> Iterator[Published]:
    for place, row in enumerate(printed_rows("table6_embedding_global")):
        name = f"{row['family']} {row['variant']}"
        for statistic in ("mean", "std"):
            value = float(row[statistic])
            yield Published("Table 6", name, TEXT_TABLE, statistic, value, place, statistic)


def _token_tables() -> Iterator[Published]:
    tables = (
        ("Table 7", "table7_top_tokens_qwen2", "Qwen2-7B"),
        ("Table 8", "table8_top_tokens_qwen2_5", "Qwen2.5-7B"),
    )
    for source, file, family in tables:
        for variant in ("base", "vl"):
            name, column = f"{family} {variant}", f"{variant}_l2_norm"
            for place, row in enumerate(printed_rows(file)):
                token, rank = row[f"{variant}_token"].replace("\\n", "\n"), f"rank {row['rank']}"
                yield Published(source, name, token, rank, float(row[column]), place, column)


def _models() -> pd.DataFrame:
    return pd.DataFrame(printed_rows("models"))


@cache
def printed_rows(file: str) -> list[dict[str, str]]:
    """One of the files beside this one, every field as text, empty fields as ``nan``."""
    with as_file(files("normprobe.paper") / f"{file}.csv") as path:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    return [{str(k): v or "nan" for k, v in row.items()} for row in table.to_dict("records")]


# --- beside a run --------------------------------------------------------------------------------

_NUMBERS = ("measured", "published", "difference")
_PUBLISHED_COLUMNS = ["source", "model", "quantity", "statistic", "measured", "measured_rank"]
_PUBLISHED_COLUMNS += ["published", "difference", "note"]

#: Quantity and estimate of a main table that are a statistic of the paper.
STATISTICS = {
    "mean": ("norm", "mean"),
    "std": ("norm", "std"),
    "hidden size": ("hidden_size", "mean"),
}


def published_table(
    run: RunStore,
    rows_of: Mapping[str, Mapping[str, object]],
    model: str,
    base: str | None = None,
) -> pd.DataFrame | None:
    """What a run measured beside what the paper says of its model.

    Returns:
        As ``beside_paper``. None where the paper has no such number, and of a run with an alignment
        norm: the paper speaks of models as they were released.
    """
    if run.record.get("alignment") or not rows_of:
        return None
    if not run.has_table(run.command):
        return None
    measured = run.table(run.command)
    table = beside_paper(model, measured, rows_of, ranked_tokens(run))
    if run.record.get("base"):  # `embeddings --base` keeps the statistics of both tables
        older = measured[measured["table"] == BASE].assign(table=TEXT)
        name = base or str(run.record["base"])
        beside_base = beside_paper(name, older, rows_of, ranked_tokens(run, of_base=True))
        table = pd.concat([table, beside_base], ignore_index=True)
    return table if len(table) else None


def beside_paper(
    model: str,
    table: pd.DataFrame,
    rows_of: Mapping[str, Mapping[str, object]],
    tokens: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """What was measured beside what the paper says of a model."""
    rows = []
    for number in published_of(model):
        for quantity in (number.quantity, *ALSO.get(number.quantity, ())):
            measured = _measured(number, quantity, table, rows_of, tokens)
            if measured is not None:
                norm, rank = measured
                rows.append(
                    {
                        "source": number.source,
                        "model": number.name,
                        "quantity": _shown(number, quantity),
                        "statistic": number.statistic,
                        "measured": norm,
                        "measured_rank": rank,
                        "published": number.value,
                        "difference": norm - number.value,
                        "note": note_on(number),
                    }
                )
    return pd.DataFrame(rows, columns=_PUBLISHED_COLUMNS).astype({"measured_rank": "Int64"})


def ranked_tokens(run: RunStore, *, of_base: bool = False) -> pd.DataFrame | None:
    """Token, norm and rank by falling norm, as far as a run of ``embeddings`` knows them.

    Returns:
        None of a run without tokens.
    """
    if run.has_table("shift"):
        shift, side = run.table("shift"), "base_" * of_base
        columns = {name: shift[f"{side}{name}"] for name in ("norm", "rank")}
        return pd.DataFrame({"token": shift["token"], **columns}).dropna(subset="norm")
    if of_base or not run.has_table("tokens"):
        return None
    tokens = run.table("tokens")
    return tokens[(tokens["table"] == TEXT) & (tokens["end"] != "bottom")]  # these count from below


def _measured(
    number: Published,
    quantity: str,
    table: pd.DataFrame,
    rows_of: Mapping[str, Mapping[str, object]],
    tokens: pd.DataFrame | None,
) -> tuple[float, int | None] | None:
    """A norm, and of a token its rank.

    NaN where the run could have measured it and did not; None where its command never does.
    """
    if number.statistic not in STATISTICS:
        return None if tokens is None else _of_token(number, tokens)
    measured = statistic_of(quantity, number.statistic, table, rows_of)
    return None if measured is None else (measured, None)


def statistic_of(
    quantity: str, statistic: str, table: pd.DataFrame, rows_of: Mapping[str, Mapping[str, object]]
) -> float | None:
    """A statistic of a quantity of the paper in a main table; None: no row of it is about that."""
    if quantity not in rows_of:
        return None
    for key, value in rows_of[quantity].items():
        table = table[table[key] == value]
    name, estimate = STATISTICS[statistic]
    return None if table.empty else next(iter(select(table, name)[estimate].astype(float)), nan)


def _of_token(number: Published, tokens: pd.DataFrame) -> tuple[float, int | None]:
    found = tokens[tokens["token"] == number.quantity].sort_values("rank")
    if is_description(number) or found.empty:
        return float("nan"), None
    return float(found["norm"].iloc[0]), int(found["rank"].iloc[0])


def print_published(published: pd.DataFrame, console: Console) -> None:
    """Print ``published.csv``."""
    table = new_table("Beside the paper")
    ranked = published["measured_rank"].notna().any()
    headers = ["quantity", "statistic", *(["rank here"] if ranked else []), *_NUMBERS]
    for header in headers:
        add_column(table, header, left=header in ("quantity", "statistic"))
    notes = list(dict.fromkeys(published["note"].dropna().loc[lambda note: note != ""]))
    for (source, model), rows in published.groupby(["source", "model"], sort=False):
        table.add_row(Text(f"{source}, {model}", style="bold"))
        for _, row in rows.iterrows():
            mark = f" [{notes.index(row['note']) + 1}]" if row["note"] in notes else ""
            rank = row["measured_rank"]
            table.add_row(
                Text(f"  {row['quantity']}{mark}"),
                Text(str(row["statistic"])),
                *([Text(MISSING if pd.isna(rank) else f"{int(rank):,}")] if ranked else []),
                *(Text(significant(float(row[column]))) for column in _NUMBERS),
            )
    print_table(table, console)
    print_notes(
        console,
        "Published: arXiv 2512.08374. Visual tokens there are of 1000 samples of MMBench,",
        "POPE and MM-Star; --data paper draws such samples.",
        *(f"[{place}] {note}" for place, note in enumerate(notes, start=1)),
    )


def _shown(number: Published, quantity: str) -> str:
    """A token with every character visible; other quantities, and descriptions, as they are."""
    plain = number.statistic in STATISTICS or is_description(number)
    return quantity if plain else readable_token(quantity)
