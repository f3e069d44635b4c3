"""Which states are no vectors to measure, from made tables."""

import numpy as np
import pandas as pd
import pytest
from support import made_tables
from support.flat import tidied

from normprobe.report import sentences
from normprobe.schema import UNMOVED


def broken_states(table: pd.DataFrame) -> list[str]:
    """What is wrong with a flat table of layers or of an interface."""
    return sentences.broken_states(as_a_run_has_it(table))


def broken_words(table: pd.DataFrame) -> str:
    return " ".join(each.words for each in sentences.broken_findings(as_a_run_has_it(table)))


def as_a_run_has_it(table: pd.DataFrame) -> pd.DataFrame:
    return tidied("interface" if "stage" in table else "layers", table)


def spoiled(
    group: str, layers: list[int], *, left: int, lost: int, norm: float = 1.0
) -> pd.DataFrame:
    table = made_tables.layers()
    at = (table["group"] == group) & table["layer"].isin(layers)
    table.loc[at, ["tokens", "nonfinite", "norm_mean"]] = left, lost, norm
    return table


def test_ordinary_tables_are_not_mentioned() -> None:
    assert broken_states(made_tables.layers()) == []
    assert broken_states(made_tables.interface()) == []
    assert broken_words(made_tables.layers()) == ""


@pytest.mark.parametrize(
    ("table", "line"),
    [
        (
            spoiled("visual", [2, 3, 5], left=0, lost=64, norm=np.nan),
            "visual tokens: none has finite numbers in layers 2-3, 5",
        ),
        (
            spoiled("text", [4], left=60, lost=4),
            "text tokens: 4 of 64 have no finite numbers in layer 4, and are left out",
        ),
        (
            spoiled("text", [4, 5], left=60, lost=4),
            "text tokens: up to 4 of 64 have no finite numbers in layers 4-5, and are left out",
        ),
        (
            spoiled("visual", [0], left=64, lost=0, norm=0.0),
            "visual tokens: all are zero in layer 0, so they have no direction",
        ),
    ],
)
def test_each_fault_is_told_with_its_group_and_place(table: pd.DataFrame, line: str) -> None:
    assert broken_states(table) == [line]
    assert broken_words(table) == f"{line[0].upper()}{line[1:]}."


def test_an_image_without_effect_is_told_where_a_doubt_says_so() -> None:
    """A text model with learned rows has as few visual tokens, and no image."""
    layers = made_tables.layers()
    layers = as_a_run_has_it(layers[layers["group"] != "visual"])
    assert sentences.broken_findings(layers) == []
    (found,) = sentences.broken_findings(layers, [f"another; {UNMOVED}"])
    assert found.words == f"{UNMOVED.capitalize()}."


def test_stages_are_told_by_name() -> None:
    table = made_tables.interface()
    table.loc[table["stage"] == "projector_output", "norm_mean"] = 0.0
    assert broken_states(table) == [
        "visual tokens: all are zero at projector output, so they have no direction"
    ]
