"""Tidy tables against plain expectations: what they keep, in which order, and how they are read."""

import numpy as np
import pandas as pd
import pytest

from normprobe.tidy import (
    ESTIMATES,
    along,
    ends_of,
    in_order,
    keys_of,
    select,
    tidy,
    wide,
)

CELLS = pd.DataFrame(
    {"layer": [1, 0, 0], "group": ["text", "visual", "text"], "tokens": [7, 64, 7], "samples": 2}
)
NORM = {"mean": np.array([1.0, 2.0, 3.0]), "low": np.array([0.5, np.nan, 2.5])}
ANGLE = {"mean": np.array([0.1, np.nan, np.nan]), "std": np.array([0.01, np.nan, np.nan])}
TABLE = tidy(CELLS, {"norm": NORM, "angle": ANGLE})


def rows_of(table: pd.DataFrame) -> list[tuple[object, ...]]:
    """Its rows, None where there is no number."""
    return [
        tuple(None if pd.isna(cell) else cell for cell in row)
        for row in table.itertuples(index=False)
    ]


# --- making one ----------------------------------------------------------------------------------


def test_a_row_a_cell_and_quantity_and_none_of_what_is_not_known() -> None:
    assert list(TABLE) == [
        *("layer", "group", "quantity"),
        *("mean", "low", "std"),  # in the order of all estimates, those that there are
        *("tokens", "samples"),
    ]
    assert rows_of(TABLE) == [
        (1, "text", "norm", 1.0, 0.5, None, 7, 2),
        (1, "text", "angle", 0.1, None, 0.01, 7, 2),
        (0, "visual", "norm", 2.0, None, None, 64, 2),
        (0, "text", "norm", 3.0, 2.5, None, 7, 2),
    ]
    assert TABLE.index.tolist() == [0, 1, 2, 3]
    assert keys_of(TABLE) == ["layer", "group"]


def test_an_estimate_that_no_row_knows_is_no_column() -> None:
    unknown = {"low": np.full(3, np.nan), "high": np.full(3, np.nan)}
    table = tidy(CELLS, {"norm": {"mean": NORM["mean"], **unknown}})
    assert list(table) == ["layer", "group", "quantity", "mean", "tokens", "samples"]


def test_cells_without_counts_have_no_columns_of_them() -> None:
    keys = CELLS[["layer", "group"]]
    assert list(tidy(keys, {"norm": {"mean": NORM["mean"]}})) == [
        "layer",
        "group",
        "quantity",
        "mean",
    ]


def test_an_estimate_alone_keeps_a_row() -> None:
    """A count alone does not."""
    gone = np.full(3, np.nan)
    table = tidy(CELLS, {"norm": {"mean": gone, "std": np.array([1.0, np.nan, np.nan])}})
    assert rows_of(table) == [(1, "text", "norm", 1.0, 7, 2)]
    assert list(table)[3] == "std"
    assert tidy(CELLS, {"norm": {"mean": gone, "tokens": np.array([1, 2, 3])}}).empty


def test_columns_stand_in_one_order_whatever_the_order_of_the_numbers() -> None:
    backwards = {name: np.arange(3.0) for name in reversed(ESTIMATES)}
    table = tidy(CELLS[["layer", "group"]], {"norm": backwards})
    assert list(table) == ["layer", "group", "quantity", *ESTIMATES]


def test_a_number_may_count_tokens_and_samples_of_its_own() -> None:
    own = {"mean": np.array([1.0, 2.0, 3.0]), "samples": np.array([1, 0, 2])}
    table = tidy(CELLS, {"lag": own, "norm": NORM})
    assert select(table, "lag")["samples"].tolist() == [1, 0, 2]
    assert select(table, "lag")["tokens"].tolist() == [7, 64, 7]
    assert select(table, "norm")["samples"].tolist() == [2, 2, 2]


def test_counts_are_whole_numbers_also_where_some_are_not_known() -> None:
    assert TABLE.dtypes[["tokens", "samples"]].astype(str).tolist() == ["int64", "int64"]
    some = tidy(CELLS.assign(samples=[2.0, np.nan, 3.0]), {"norm": NORM})
    assert str(some.dtypes["samples"]) == "Int64"
    assert some["samples"].tolist() == [2, pd.NA, 3]
    assert str(some.dtypes["tokens"]) == "int64"
    mine = tidy(CELLS[["layer", "group"]], {"norm": NORM, "angle": {**ANGLE, "samples": [1, 2, 3]}})
    assert str(mine.dtypes["samples"]) == "Int64"
    assert mine["samples"].isna().tolist() == [True, False, True, True]


def test_one_number_may_stand_for_all_cells() -> None:
    table = tidy(CELLS[["layer", "group"]], {"width": {"mean": 16}, "norm": NORM})
    assert select(table, "width")["mean"].tolist() == [16, 16, 16]


def test_cells_of_any_index_keep_their_numbers() -> None:
    table = tidy(CELLS.set_axis([5, 5, 9]), {"norm": NORM})
    pd.testing.assert_frame_equal(table, tidy(CELLS, {"norm": NORM}))


@pytest.mark.parametrize(
    "empty", [tidy(CELLS, {}), tidy(CELLS.iloc[:0], {"norm": {"mean": np.empty(0)}})]
)
def test_a_table_of_nothing_has_its_keys(empty: pd.DataFrame) -> None:
    assert empty.empty
    assert keys_of(empty) == ["layer", "group"]


# --- the order of rows ---------------------------------------------------------------------------


def test_rows_go_by_their_keys_and_quantities_stay_as_they_are() -> None:
    found = in_order(TABLE, group=("visual", "text"))
    assert [row[:3] for row in rows_of(found)] == [
        (0, "visual", "norm"),
        (0, "text", "norm"),
        (1, "text", "norm"),
        (1, "text", "angle"),
    ]
    assert found.index.tolist() == [0, 1, 2, 3]
    assert list(found) == list(TABLE)


def test_a_key_without_an_order_goes_by_itself_and_keys_may_stand_alone() -> None:
    assert in_order(TABLE)["group"].tolist() == ["text", "visual", "text", "text"]
    names = pd.DataFrame({"layer": [1, 0], "group": ["b", "a"]})
    assert in_order(names, group=("b", "a"))["layer"].tolist() == [0, 1]


# --- reading one ---------------------------------------------------------------------------------


def test_rows_of_a_quantity_have_all_estimates() -> None:
    rows = select(TABLE, "norm", layer=0)
    assert rows["group"].tolist() == ["visual", "text"]
    assert set(ESTIMATES) <= set(rows)
    assert rows["mean"].tolist() == [2.0, 3.0]
    assert rows[["band_low", "geometric_mean", "q05"]].isna().all(axis=None)
    assert rows["samples"].tolist() == [2, 2]
    assert select(TABLE, "norm", layer=0, group="text")["mean"].item() == 3.0


def test_a_quantity_or_a_key_that_is_not_there_has_no_rows() -> None:
    for rows in (select(TABLE, "none"), select(TABLE, "norm", group="audio")):
        assert rows.empty
        assert set(ESTIMATES) <= set(rows)


def test_selecting_leaves_the_table_alone() -> None:
    before = TABLE.copy()
    rows = select(TABLE, "norm")
    rows["mean"] = 0.0
    pd.testing.assert_frame_equal(TABLE, before)


def test_layers_without_a_number_are_empty_rows_in_their_place() -> None:
    rows = along(select(TABLE, "angle"), TABLE["layer"])
    assert rows["layer"].tolist() == [0, 1]
    assert rows["mean"].isna().tolist() == [True, False]
    nothing = along(select(TABLE, "none"), TABLE["layer"])
    assert nothing["layer"].tolist() == [0, 1]
    assert nothing["mean"].isna().all()
    doses = pd.DataFrame({"dose": [4.0, 0.5], "mean": [1.0, 2.0]})
    found = along(doses, [0.5, np.nan, 1.0, 1.0], "dose")  # what has no place is nowhere
    assert found["dose"].tolist() == [0.5, 1.0, 4.0]
    assert found["mean"].tolist()[::2] == [2.0, 1.0]


def test_wide_is_a_row_a_cell_and_a_column_a_quantity() -> None:
    found = wide(TABLE)
    assert list(found) == ["layer", "group", "tokens", "samples", "norm", "angle"]
    assert rows_of(found) == [
        (1, "text", 7, 2, 1.0, 0.1),
        (0, "visual", 64, 2, 2.0, None),
        (0, "text", 7, 2, 3.0, None),
    ]
    assert wide(TABLE, "std")["angle"].isna().tolist() == [False, True, True]
    assert wide(TABLE, "std")["norm"].isna().all()


def test_wide_takes_the_counts_of_the_first_quantity_of_a_cell() -> None:
    own = {"mean": np.arange(1.0, 4.0), "tokens": np.array([1, 2, 3])}
    assert wide(tidy(CELLS, {"norm": NORM, "some": own}))["tokens"].tolist() == [7, 64, 7]
    assert wide(tidy(CELLS, {"some": own, "norm": NORM}))["tokens"].tolist() == [1, 2, 3]


def test_wide_of_an_estimate_that_the_table_lacks_is_its_cells() -> None:
    assert list(wide(TABLE, "geometric_mean")) == ["layer", "group", "tokens", "samples"]
    assert list(wide(TABLE.iloc[:0])) == ["layer", "group", "tokens", "samples"]


def test_wide_keeps_a_cell_whose_key_is_empty() -> None:
    table = tidy(CELLS.assign(group=["text", None, "text"]), {"norm": NORM})
    assert wide(table)["norm"].tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("estimate", "ends"),
    [
        ("mean", ("low", "high")),
        ("sample_mean", ("sample_low", "sample_high")),
        ("geometric_mean", ("geometric_low", "geometric_high")),
    ],
)
def test_the_ends_of_an_estimate(estimate: str, ends: tuple[str, str]) -> None:
    assert ends_of(estimate) == ends
    assert {estimate, *ends} <= {*ESTIMATES}
    assert [*ESTIMATES].index(estimate) + 1 == [*ESTIMATES].index(ends[0])
