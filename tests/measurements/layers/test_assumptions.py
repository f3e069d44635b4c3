"""The assumptions: judged at the borders of their ranges, for which decoders, told and printed."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support import made_tables
from support.cases import model_of
from support.flat import theory_column
from support.printed import assert_fits, printed, words_of
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs

from experiments.theory import FAITHFUL, simulated
from normprobe import find_parts
from normprobe.measurements import measurement
from normprobe.measurements.layers.assumptions import (
    CRITERIA,
    EXEMPT,
    FAILS,
    HOLDS,
    OPEN,
    Criterion,
    _verdict,
    assumptions_table,
    between,
    layer_ranges,
    print_assumptions,
    states_by_layer,
    theory_findings,
    with_interval,
)
from normprobe.measurements.layers.table import tables
from normprobe.model.measured_model import MeasuredModel
from normprobe.tidy import BAND, select


def column_of(criterion: Criterion) -> str:
    """The column of a flat theory.csv that it judges."""
    return theory_column(criterion.quantity, criterion.group)


def judged(column: str, theory: pd.DataFrame) -> pd.Series:
    """The row of assumptions.csv that judges a column of a flat theory.csv."""
    (number,) = [criterion.number for criterion in CRITERIA if column_of(criterion) == column]
    table = made_tables.assumptions(theory)
    return table[table["number"] == number].iloc[0]


def with_band(theory: pd.DataFrame, column: str, layer: int, low: float, high: float):
    theory.loc[theory["layer"] == layer, [f"{column}_band_low", f"{column}_band_high"]] = low, high
    return theory


def without_bands(theory: pd.DataFrame) -> pd.DataFrame:
    """As of one image."""
    theory.loc[:, theory.columns.str.endswith(("_low", "_high"))] = np.nan
    return theory


@pytest.mark.parametrize("criterion", CRITERIA, ids=column_of)
def test_each_number_holds_inside_its_range_and_fails_outside(criterion) -> None:
    low, high = criterion.low, criterion.high
    middle = np.nanmean([end if np.isfinite(end) else np.nan for end in (low, high)])
    inside = {(True, True): middle, (False, True): high - 0.02, (True, False): low + 0.02}[
        np.isfinite(low), np.isfinite(high)
    ]
    outside = high + 0.02 if np.isfinite(high) else 0.7
    for value, verdict, column in ((inside, "holds", "holds_in"), (outside, "fails", "fails_in")):
        row = judged(column_of(criterion), made_tables.theory(**{column_of(criterion): value}))
        assert (row["verdict"], row[column]) == (verdict, "1-6")
        assert (row["quantity"], row["group"]) == (criterion.quantity, criterion.group)
        assert (row["range_low"], row["range_high"]) == (low, high)
        assert row["worst"] == pytest.approx(value)


@pytest.mark.parametrize(
    ("low", "high", "state"),
    [
        (0.81, 1.24, "holds_in"),
        (0.8, 1.25, "holds_in"),  # the ends belong to the range
        (0.79, 1.0, "open_in"),
        (0.5, 2.0, "open_in"),
        (1.25, 1.5, "open_in"),
        (1.26, 1.5, "fails_in"),
        (0.5, 0.79, "fails_in"),
    ],
)
def test_the_band_decides_not_the_number(low: float, high: float, state: str) -> None:
    theory = made_tables.theory(update_norm_ratio=1.0)
    row = judged("update_norm_ratio", with_band(theory, "update_norm_ratio", 3, low, high))
    assert row[state] == ("3" if state != "holds_in" else "1-6")
    verdict = {"holds_in": "holds", "open_in": "open", "fails_in": "fails in some layers"}
    assert row["verdict"] == verdict[state]


@pytest.mark.parametrize(("low", "high"), [(0.5, 0.7), (0.99, 1.01)])
def test_the_interval_of_one_layer_alone_decides_nothing(low: float, high: float) -> None:
    theory = made_tables.theory(update_norm_ratio=1.0)
    theory[["update_norm_ratio_ci_low", "update_norm_ratio_ci_high"]] = low, high
    theory = with_band(theory, "update_norm_ratio", 3, 0.6, 1.1)
    row = judged("update_norm_ratio", theory)
    assert (row["holds_in"], row["open_in"], row["fails_in"]) == ("1-2, 4-6", "3", "")


def test_one_image_judges_nothing() -> None:
    table = made_tables.assumptions(without_bands(made_tables.theory()))
    assert set(table["verdict"]) == {"open"}
    open_in = table.set_index("number")["open_in"]
    assert open_in.pop("visual / text norm") == "0-6"  # the decoder input has a norm, too
    assert set(open_in) == {"1-6"}
    assert table[["holds_in", "fails_in", "exempt_in"]].eq("").all(axis=None)
    assert table["worst"].notna().all()
    assert table[[*BAND]].isna().all(axis=None)


def test_the_worst_number_comes_with_its_layer_and_band() -> None:
    theory = made_tables.theory(cosine_residual_mean=[0.0, 0.01, -0.15, 0.12, 0.0, 0.0, 0.0])
    theory["cosine_residual_mean_ci_low"] = -9.0  # the interval of one layer is not told
    theory = with_band(theory, "cosine_residual_mean", 2, -0.2, -0.11)
    row = judged("cosine_residual_mean", theory)
    assert row[["worst", *BAND]].tolist() == [-0.15, -0.2, -0.11]
    assert row["worst_layer"] == 2
    assert (row["holds_in"], row["fails_in"]) == ("1, 4-6", "2-3")


def test_a_layer_without_the_number_is_in_no_list() -> None:
    row = judged(
        "update_norm_ratio", made_tables.theory(update_norm_ratio=[1, 1, np.nan, 1, 1, 1, 1])
    )
    assert row["holds_in"] == "1, 3-6"
    assert row[["fails_in", "open_in", "exempt_in"]].eq("").all()


def test_a_number_of_no_layer_does_not_apply() -> None:
    row = judged("cosine_residual_mean", made_tables.theory(cosine_residual_mean=np.nan))
    assert row["verdict"] == "does not apply"
    assert pd.isna(row["worst"])
    assert pd.isna(row["worst_layer"])


@pytest.mark.parametrize(
    ("visual", "text", "verdict"),
    [(np.nan, np.nan, "does not apply"), (0.0, np.nan, "holds"), (np.nan, 0.0, "holds")],
)
def test_eq_15_is_judged_where_some_token_turns(visual: float, text: float, verdict: str) -> None:
    turns = {"visual_turn_to_text_mean": visual, "text_turn_to_visual_mean": text}
    row = judged("cosine_residual_mean", made_tables.theory(cosine_residual_mean=0.0, **turns))
    assert row["verdict"] == verdict
    assert pd.isna(row["worst"]) == (verdict != "holds")


# --- what does not apply ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "column"),
    [(0.9, 1.1, "exempt_in"), (1.1, 1.3, "open_in"), (0.7, 0.9, "open_in"), (0.5, 0.7, "fails_in")],
)
def test_balanced_norms_are_the_second_case_and_no_failure(
    low: float, high: float, column: str
) -> None:
    theory = made_tables.theory(norm_ratio=2.0)
    row = judged("norm_ratio", with_band(theory, "norm_ratio", 4, low, high))
    assert row[column] == "4"
    exempt = judged("angle_ratio_error", theory)["exempt_in"]
    assert exempt == ("5" if column == "exempt_in" else "")  # what leaves 4 enters 5


def test_a_balanced_model_does_not_fail() -> None:
    theory = made_tables.theory(norm_ratio=1.0)
    assert judged("norm_ratio", theory)["verdict"] == "does not apply"


@pytest.mark.parametrize(
    ("column", "changed"),
    [
        ("update_norm_correlation_text", {"log_norm_std_text": 0.04}),
        ("update_norm_correlation_text", {"update_norm_cv_text": 0.04}),
        ("norm_angle_correlation_text", {"log_norm_std_text": 0.06}),  # times a slope of 0.8
        ("norm_angle_correlation_text", {"predicted_norm_angle_slope_text": -0.1}),
    ],
)
def test_tokens_that_are_too_alike_have_no_relation_to_judge(column, changed) -> None:
    assert judged(column, made_tables.theory())["verdict"] != "does not apply"
    assert judged(column, made_tables.theory(**changed))["verdict"] == "does not apply"
    other = column.replace("text", "visual")
    assert judged(other, made_tables.theory(**changed))["verdict"] != "does not apply"


# --- several numbers together -------------------------------------------------------------------


def test_one_number_that_fails_fails_the_assumption() -> None:
    theory = made_tables.theory(
        update_norm_ratio=[1, 1, 2, 1, 1, 1, 1],
        update_norm_cv_visual=0.1,
        update_norm_cv_text=[0, 0.1, 0.1, 0.4, 0.1, 0.1, np.nan],
        update_norm_correlation_text=0.2,
    )
    theory = with_band(theory, "update_norm_correlation_visual", 4, 0.4, 0.6)
    table = made_tables.assumptions(theory)
    states = states_by_layer(table[table["assumption"] == "Uniform Update Magnitude"])
    assert states == {1: "holds", 2: "fails", 3: "fails", 4: "open", 5: "holds", 6: "holds"}


@pytest.mark.parametrize("layers", [[], [1], [0, 1, 2], [1, 3], [1, 2, 3, 6, 9, 10, 31]])
def test_states_are_read_back_from_the_ranges(layers: list[int]) -> None:
    row = {"holds_in": layer_ranges(layers), "fails_in": "", "open_in": "", "exempt_in": ""}
    assert list(states_by_layer(pd.DataFrame([row]))) == layers


def test_one_layer_and_none() -> None:
    assert set(made_tables.assumptions(made_tables.theory(1))["holds_in"]) <= {"", "0", "1", "0-1"}
    empty = made_tables.assumptions(made_tables.theory().iloc[:0])
    assert list(empty) == list(made_tables.assumptions(made_tables.theory()))
    assert empty.empty


def test_nothing_is_judged_on_what_is_left_of_states_that_are_not_finite() -> None:
    theory = made_tables.theory(update_norm_ratio=1.0)
    theory.loc[theory["layer"] == 3, "nonfinite"] = 1
    theory.loc[theory["layer"] == 3, "update_norm_ratio"] = 9.0  # of those that are left
    theory.loc[theory["layer"] == 4, "nonfinite"] = 64
    theory.loc[theory["layer"] == 4, "update_norm_ratio"] = np.nan  # none is left
    row = judged("update_norm_ratio", theory)
    assert (row["holds_in"], row["open_in"], row["fails_in"]) == ("1-2, 5-6", "3-4", "")
    assert row["verdict"] == "open"
    assert row["worst"] == 1.0


@pytest.mark.parametrize(
    ("states", "told"),
    [
        (set(), EXEMPT),
        ({HOLDS}, HOLDS),
        ({FAILS}, FAILS),
        ({HOLDS, FAILS}, "fails in some layers"),
        ({OPEN, FAILS}, "fails in some layers"),
        ({HOLDS, OPEN}, OPEN),
        ({HOLDS, OPEN, FAILS}, "fails in some layers"),
    ],
)
def test_one_layer_that_fails_is_told(states: set[str], told: str) -> None:
    assert _verdict(states) == told


# --- which decoders are judged ------------------------------------------------------------------


def assert_is_judged_or_has_quantities_alone(rows: pd.DataFrame, model: Any, judged: bool) -> None:
    made = tables(rows, model)
    theory, assumptions = made["theory"], made["assumptions"]
    for criterion in CRITERIA:
        numbers = select(theory, criterion.quantity, group=criterion.group)
        behind = numbers[numbers["layer"] > 0]
        assert len(behind) == theory["layer"].max() and behind["mean"].notna().all()
    assert len(assumptions) == len(CRITERIA) * judged
    assert list(assumptions) == list(assumptions_table(theory))
    assert bool(theory_findings(assumptions)) == judged


@pytest.mark.parametrize(
    ("placement", "judged"),
    [
        ("pre: the paper's theory applies", True),
        ("pre-parallel: the paper's theory applies", True),
        ("post: the paper's theory is about pre-norm", False),
        ("sandwich: the paper's theory is about pre-norm", False),
        ("unknown", False),
    ],
)
def test_the_theory_judges_pre_norm_decoders_alone(placement: str, judged: bool) -> None:
    fake = SimpleNamespace(norm_placement=placement, token_text=None)
    assert_is_judged_or_has_quantities_alone(simulated(FAITHFUL, 0), fake, judged)


@pytest.mark.parametrize(
    ("model_type", "judged"), [("llava", True), ("gemma3", False), ("git", False)]
)
def test_post_norm_and_sandwich_models_get_the_quantities_alone(
    model_type: str, judged: bool
) -> None:
    model = model_of(model_type)
    measured = MeasuredModel(model, find_parts(model), SPECIAL_IDS)
    rows = measurement("layers").sample_rows(measured, tiny_inputs(model, 4))
    rows = rows.assign(image_hash=None)
    assert_is_judged_or_has_quantities_alone(rows, measured, judged)


HOLDING = {
    "norm_ratio": 4.0,
    "update_norm_ratio": 1.0,
    "update_norm_cv_text": 0.1,
    "update_norm_correlation_text": 0.1,
    "update_angle_difference": 0.0,
    "update_angle_std_text": 0.05,
    "visual_turn_to_text_mean": 0.0,
    "norm_angle_correlation_text": -0.9,
    "angle_ratio_error": 1.0,
}


def said(theory: pd.DataFrame) -> str:
    return words_of(theory_findings(made_tables.assumptions(theory)))


def faithful(**changed: object) -> pd.DataFrame:
    theory = made_tables.theory(**HOLDING | changed)
    for end in ("", "_ci_low", "_ci_high", "_band_low", "_band_high"):
        theory[f"norm_ratio{end}"] = theory[f"norm_ratio{end}"].bfill()  # layer 0 has a norm
    return theory


def test_all_hold() -> None:
    assert said(faithful()).splitlines()[:2] == [
        "Of the paper's assumptions, 4 of 4 hold in every layer.",
        "Holds in every layer: Modality Norm Imbalance, Uniform Update Magnitude, Consistent "
        "Update Geometry, Random Rotational Direction, Eq. 13, Eq. 15.",
    ]


def test_what_fails_is_said_for_all_layers() -> None:
    told = said(made_tables.theory()).splitlines()
    assert told[:3] == [
        "Of the paper's assumptions, 1 of 4 hold in every layer.",
        "Holds in every layer: Modality Norm Imbalance, Eq. 15.",
        "Fails in every layer: Uniform Update Magnitude, Consistent Update Geometry, Eq. 13.",
    ]
    assert "Random Rotational Direction holds in layers 1-2 and fails in layers 3-6." in told


def test_where_nothing_applies_nothing_is_counted() -> None:
    columns = dict.fromkeys([column_of(criterion) for criterion in CRITERIA], np.nan)
    sentence = said(made_tables.theory(**columns | {"angle_ratio_error": 1.0}))
    assert sentence.startswith(
        "No assumption of the paper applies here.\nHolds in every layer: Eq."
    )
    assert "0 of 0" not in sentence


def test_open_layers_are_called_open() -> None:
    theory = faithful()
    theory.loc[3, ["update_norm_ratio_band_low", "update_norm_ratio_band_high"]] = 0.7, 1.3
    assert "Uniform Update Magnitude holds in layers 1-2, 4-6 and is open in layer 3." in said(
        theory
    )
    theory[["update_norm_ratio_band_low", "update_norm_ratio_band_high"]] = 0.7, 1.3
    assert "Open in every layer: Uniform Update Magnitude." in said(theory)


def test_balanced_norms_do_not_fail() -> None:
    sentence = said(faithful(norm_ratio=1.0))
    assert sentence.startswith("Of the paper's assumptions, 3 of 3 hold in every layer.")
    assert "Imbalance does not apply (balanced norms, the paper's second case)." in sentence
    sentence = said(faithful(norm_ratio=[4, 4, 4, 1, 1, 1, 1]))
    assert "Imbalance holds in layers 0-2 and does not apply in layers 3-6 (balanced" in sentence


def test_quiet_visual_tokens_are_no_imbalance_of_the_papers_kind() -> None:
    assert "Fails in every layer: Modality Norm Imbalance." in said(faithful(norm_ratio=0.5))


def test_the_largest_miss_of_eq_15() -> None:
    theory = faithful(cosine_residual_mean=[0, 0.01, -0.2, 0.0, 0.0, 0.0, 0.0])
    theory.loc[2, ["cosine_residual_mean_band_low", "cosine_residual_mean_band_high"]] = -0.3, -0.05
    sentence = said(theory)
    assert "Eq. 15 holds in layers 1, 3-6 and is open in layer 2." in sentence
    assert "Eq. 15 misses by up to -0.200 [-0.300, -0.050], in layer 2." in sentence
    assert "misses" not in said(faithful(cosine_residual_mean=np.nan))
    assert "Eq. 15 does not apply" in said(faithful(cosine_residual_mean=np.nan))


def test_one_image_judges_nothing_and_says_so() -> None:
    theory = faithful()
    theory[[name for name in theory if name.endswith(("_low", "_high"))]] = np.nan
    assert said(theory).splitlines() == [
        "One image judges no assumption of the paper.",
        "One layer on from the measured cross-modal cosine, Eq. 15 misses by up to 0.060, "
        "in layer 1.",
    ]
    assert "One image" not in said(faithful())


def test_one_layer() -> None:
    theory = faithful().query("layer <= 1")
    assert "Eq. 15 misses by up to 0.060 [0.060, 0.060], in layer 1." in said(theory)


def test_no_text_or_no_image_says_nothing() -> None:
    assert said(made_tables.theory().iloc[:0]) == ""


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((1.6, 1.43, 1.71), "1.6 [1.4, 1.7]"),
        ((10.2, 9.63, 11.4), "10.2 [9.6, 11.4]"),  # digits agree
        ((-0.1, -0.21, 0.012), "-0.10 [-0.21, 0.012]"),
        ((1.6, np.nan, np.nan), "1.6"),
    ],
)
def test_a_number_with_its_interval(numbers: tuple[float, ...], text: str) -> None:
    assert with_interval(*numbers) == text
    assert text.endswith(between(*numbers[1:]))


ASSUMPTIONS = made_tables.assumptions(made_tables.theory())


@pytest.mark.parametrize(
    "table",
    [
        ASSUMPTIONS,
        made_tables.assumptions(made_tables.theory(80)).assign(
            holds_in="1, 3, 5, 7, 9-31",
            verdict="fails in some layers",
            worst=-1.23456e-5,
            band_low=-0.00234567,
            band_high=-0.0012,
            worst_layer=80,
        ),
    ],
    ids=["6 layers", "80 layers"],
)
def test_every_line_fits_and_nothing_is_cut_or_wrapped(table):
    assert_fits(print_assumptions, table)


def rows_of(table) -> dict[str, str]:
    """The line of each number, by its words."""
    lines = printed(print_assumptions, table).splitlines()
    return {line.split("  ")[1]: line.rstrip() for line in lines if line.startswith("  ")}


def test_each_number_with_its_range_band_layer_and_where_it_holds():
    rows = rows_of(ASSUMPTIONS)
    assert len(rows) == len(ASSUMPTIONS)
    for number, *cells in (
        ("visual / text norm", ">= 1.25", "2.6", "[2.6, 2.6]", "6", "all layers"),
        ("visual / text |D|", "0.8-1.25", "0.70", "[0.70, 0.70]", "1", "none"),
        ("visual turn, text state", "±0.05", "0.12", "[0.12, 0.12]", "6", "1-2"),  # 0.02 a layer
    ):
        assert rows[number].split() == f"{number} {' '.join(cells)}".split()


def test_a_number_that_says_nothing_and_one_without_a_band():
    theory = made_tables.theory(norm_ratio=1.0, update_norm_ratio=1.0)
    rows = rows_of(made_tables.assumptions(theory))
    assert rows["visual / text norm"].split()[4:] == [">=", "1.25", "-", "-", "-", "no", "say"]
    theory.loc[:, theory.columns.str.endswith(("_low", "_high"))] = np.nan
    rows = rows_of(made_tables.assumptions(theory))
    assert rows["visual / text |D|"].split()[4:] == ["0.8-1.25", "1.0", "-", "1", "none"]


def test_layers_that_do_not_apply_are_not_among_all_layers():
    theory = made_tables.theory(norm_ratio=[4, 4, 4, 1, 1, 1, 1])
    assert rows_of(made_tables.assumptions(theory))["visual / text norm"].endswith("1-2")


def test_no_assumptions_print_nothing():
    assert printed(print_assumptions, made_tables.assumptions(made_tables.theory().iloc[:0])) == ""
