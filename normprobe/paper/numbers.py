"""The numbers of Tables 1-3 and 6-8 of arXiv 2512.08374, which lie beside this file as printed.

- ``published_numbers``: all of them
- ``names_of``: what the paper calls a model
- ``note_on``: what a reader of a number should know
- ``tokens_of``: the tokens that the paper ranks of a model
- ``needs_remote_code``: whether it is known to bring code of its own
- ``printed_rows``: a table as it is printed
"""

from collections.abc import Iterator
from functools import cache
from importlib.resources import as_file, files
from typing import NamedTuple

import pandas as pd

from normprobe.paper.quantities import AFTER, BEFORE, ENCODER, TEXT_TABLE, VISUAL_TABLE

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


def tokens_of(model: str) -> frozenset[str]:
    """The tokens that the paper ranks of a model, as they read; none of most models."""
    names = names_of(model)
    numbers = published_numbers() if names else ()
    ranked = (number for number in numbers if number.name in names)
    return frozenset(
        number.quantity
        for number in ranked
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
