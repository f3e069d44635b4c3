"""massive.csv and dimensions.csv from sample rows, and what they say."""

import numpy as np
import pandas as pd
import pytest
from support import made_massive
from support.flat import flat, tidied
from support.made_massive import DIMENSION, sample_rows
from support.printed import words_of
from support.slow_bands import assert_bands
from support.slow_bootstrap import assert_intervals, slow_draws, use_few_draws

from normprobe.measurements.layers.massive import (
    dimensions_table,
    massive_findings,
    massive_table,
    massive_tokens_table,
    terminal_legend,
)
from normprobe.measurements.layers.watchers import MassiveActivations
from normprobe.schema import TEXT, TOKEN_METRICS, VISUAL
from normprobe.statistics.loud_tokens import PEAK_METRICS
from normprobe.tidy import select

KEYS = ["layer", "group"]
ENDS = ("ci_low", "ci_high")


def flat_table(rows: pd.DataFrame) -> pd.DataFrame:
    """massive.csv of sample rows, flat."""
    return flat(massive_table(rows))


def tables(**options: object) -> dict[str, pd.DataFrame]:
    """massive.csv, flat, and dimensions.csv of made rows."""
    made = made_massive.tables(**options)
    return made | {"massive": flat(made["massive"])}


def verdict(massive: pd.DataFrame, dimensions: pd.DataFrame) -> str:
    """What a flat massive.csv says."""
    return words_of(massive_findings(tidied("massive", massive), dimensions))


@pytest.mark.parametrize(
    ("peak", "median", "massive"), [(150, 0.2, 0), (150, 0.1, 1), (99, 0.01, 0)]
)
def test_a_token_is_massive_by_the_published_bounds(
    peak: float, median: float, massive: float
) -> None:
    """Above 100 and 1,000 times the median of its sequence (arXiv 2402.17762)."""
    names = (*TOKEN_METRICS, *PEAK_METRICS, "position", "id")
    tokens = {name: np.ones((2, 1), np.float32) for name in names}
    tokens["peak"][:] = peak
    of_group = np.array([[0, median, peak, 3, 0.5]] * 2, np.float32)
    found = MassiveActivations().columns(tokens, of_group)
    assert found["massive_mean"] == [massive] * 2


def test_every_mean_and_ratio_has_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    use_few_draws(monkeypatch)
    rows = sample_rows(massive=True)
    table = flat_table(rows)
    columns = [column for column in table if column.endswith(("_mean", "_massive", "_text"))]
    columns = [column for column in columns if f"{column}_ci_low" in table]
    assert {f"{name}_mean" for name in ("massive", "sink", "top1_share", "top10_share")} <= {
        *columns
    }
    for name in ("norm", "cosine", "angle"):
        assert {f"{name}_mean", f"{name}_without_massive_mean"} <= {*columns}
    for name in ("norm", "angle"):
        for ratio in (f"{name}_ratio_to_text", f"{name}_geometric_ratio_to_text"):
            assert {ratio, f"{ratio}_without_massive"} <= {*columns}
    assert_intervals(table, slow_draws(rows, flat_table, KEYS), KEYS, columns)


@pytest.mark.parametrize("name", ["norm", "cosine", "angle"])
def test_without_massive_tokens_a_mean_is_the_same_quantity(name: str) -> None:
    """Where there are none, the same intervals; they hold the mean."""
    table = tables()["massive"]
    for end in ENDS:
        with_all, without = (table[f"{name}{way}_mean_{end}"] for way in ("", "_without_massive"))
        pd.testing.assert_series_equal(with_all, without, check_names=False)
    held = table[table[f"{name}_mean"].notna()]
    assert len(held) > 4
    assert held[f"{name}_mean"].between(*(held[f"{name}_mean_{end}"] for end in ENDS)).all()


def test_ratios_have_a_band_with_massive_tokens_and_without_together() -> None:
    rows = sample_rows(massive=True)
    ratio = "norm_geometric_ratio_to_text"
    chosen = [(layer, VISUAL) for layer in range(4)]
    scales = dict.fromkeys([ratio, f"{ratio}_without_massive"], "log")
    assert_bands(flat_table(rows), rows, flat_table, KEYS, scales, chosen)


@pytest.mark.parametrize("share", ["top1_share_mean", "massive_mean", "still_mean"])
def test_shares_have_a_band_over_layers_and_modalities(share: str) -> None:
    rows = sample_rows(massive=True)
    chosen = [(layer, group) for layer in range(4) for group in (VISUAL, TEXT)]
    assert_bands(flat_table(rows), rows, flat_table, KEYS, {share: "logit"}, chosen)


def test_the_order_of_the_rows_changes_nothing() -> None:
    rows = sample_rows(massive=True)
    shuffled = rows.sample(frac=1.0, random_state=0)
    for table in (massive_table, dimensions_table):
        pd.testing.assert_frame_equal(table(shuffled), table(rows))


def test_counts_are_over_all_samples() -> None:
    made = made_massive.tables(massive=True)["massive"]
    table = flat(made).set_index(KEYS)
    visual = table.xs(VISUAL, level="group")
    assert visual["massive_tokens"].tolist() == [0, 7, 7, 7]  # one a sample
    for name in ("norm", "norm_ratio_to_text", "norm_geometric_ratio_to_text"):
        with_all, without = (
            select(made, f"{name}{way}", group=VISUAL)["tokens"] for way in ("", "_without_massive")
        )
        assert (with_all.to_numpy() - without.to_numpy()).tolist() == [7] * 4
    assert table.xs(TEXT, level="group")["massive_tokens"].sum() == 0
    assert visual["peak_max"].tolist()[1:] == [40_000.0] * 3


def test_the_loud_dimension_is_named_first() -> None:
    table = tables(massive=True)["dimensions"].set_index([*KEYS, "rank"])
    first = table.loc[(2, VISUAL, 1)]
    assert first["dimension"] == DIMENSION
    assert first["share"] == pytest.approx(1.0, abs=1e-5)


def rows_of(*samples: tuple[float, dict[int, float]]) -> pd.DataFrame:
    """One layer and group; each sample has one token with a squared norm, and its dimensions."""
    return pd.DataFrame(
        {
            "layer": 0,
            "group": VISUAL,
            "tokens": 1.0,
            "norm_mean": [np.sqrt(squared) for squared, _ in samples],
            "norm_m2": 0.0,
            "dimensions": [np.array([*shares], np.int32) for _, shares in samples],
            "dimension_shares": [np.array([*shares.values()]) for _, shares in samples],
        }
    )


def test_a_dimension_that_a_sample_does_not_name_has_an_upper_end() -> None:
    table = dimensions_table(rows_of((1.0, {3: 0.5, 7: 0.2}), (3.0, {7: 0.4, 1: 0.1})))
    assert table["rank"].tolist() == [1, 2, 3]
    assert table["dimension"].tolist() == [7, 3, 1]
    np.testing.assert_allclose(table["share"], [0.35, 0.125, 0.075])
    np.testing.assert_allclose(table["share_at_most"], [0.35, 0.125 + 0.075, 0.075 + 0.05])


def test_a_sample_of_zeros_names_no_dimension() -> None:
    rows = rows_of((1.0, {3: 0.5, 7: 0.2}), (0.0, {0: np.nan, 1: np.nan}))
    table = dimensions_table(rows)
    assert table["dimension"].tolist() == [3, 7]
    np.testing.assert_allclose(table["share"], [0.5, 0.2])


def test_massive_tokens_without_an_id_are_named_by_their_place() -> None:
    """Rows that forward inserts are no words."""
    numbers = ("massive_mean", "peak_max", "peak_to_sequence_median_max")
    rows = pd.DataFrame(
        {
            "sample_id": ["a", "b"],
            "layer": 2,
            "group": VISUAL,
            **dict.fromkeys((*numbers, "at_peak_to_token_median", "at_peak_share"), 1.0),
            "at_peak_id": np.nan,
            "at_peak_position": 4.0,
            "at_peak_dimension": 7.0,
        }
    )
    table = massive_tokens_table(rows, str)
    assert table[["position", "dimension", "samples"]].to_numpy().tolist() == [[4, 7, 2]]
    assert table["token"].isna().all()


PLANTED = tables(massive=True)
ORDINARY = tables()


def without_intervals(table: pd.DataFrame) -> pd.DataFrame:
    table = table.copy()
    table[[name for name in table if name.endswith(("_low", "_high"))]] = float("nan")
    return table


def with_ratios(massive: pd.DataFrame, all_tokens: float, without: float) -> pd.DataFrame:
    """The geometric ratios are told, the others printed in the table."""
    massive = without_intervals(massive)
    visual = massive["group"] == "visual"
    for suffix, ratio in (("", all_tokens), ("_without_massive", without)):
        massive.loc[visual, f"norm_geometric_ratio_to_text{suffix}"] = ratio
        massive.loc[visual, f"norm_ratio_to_text{suffix}"] = 10 * ratio
    return massive


def with_bands(massive: pd.DataFrame, column: str, *ends: tuple[float, float]) -> pd.DataFrame:
    """The bands of visual tokens after layers 1, 2, 3; what is told of one layer alone is off."""
    massive = massive.copy()
    rows = (massive["group"] == "visual") & (massive["layer"] > 0)
    massive.loc[rows, [f"{column}_band_low", f"{column}_band_high"]] = ends
    massive.loc[rows, [f"{column}_ci_low", f"{column}_ci_high"]] = [77.0, 78.0]
    return massive


def test_how_many_tokens_and_what_is_left_without_them() -> None:
    massive = with_ratios(PLANTED["massive"], 94.0, 3.0)
    text = verdict(massive, PLANTED["dimensions"])
    assert text.startswith(
        "Massive tokens: 1 of 4.9 visual tokens a sample after layers 1-3.\n"
        "Without massive tokens, visual tokens have a larger norm than text tokens after layers "
        "1-3: 3.0 x.\nThe ten largest"
    )
    assert "%" in text and "[" not in text
    assert text.endswith(
        "Dimension 5 holds 100 % of the squared norm of visual tokens after layer 2."
    )


def test_ratios_are_told_with_their_bands() -> None:
    massive = with_ratios(PLANTED["massive"], 94.0, 1.1)
    massive = with_bands(massive, "norm_geometric_ratio_to_text", *[(90.0, 99.0)] * 3)
    massive = with_bands(
        massive, "norm_geometric_ratio_to_text_without_massive", (0.9, 1.2), (0.9, 1.3), (0.9, 1.3)
    )
    assert (
        "Without massive tokens, norm of visual and text tokens: about the same after layer 1 "
        "(1.10 x).\n"
        "Without massive tokens, norm of visual and text tokens: inconclusive after layers 2-3.\n"
    ) in verdict(massive, PLANTED["dimensions"])


def test_percents_are_told_with_the_ends_of_their_bands() -> None:
    massive = without_intervals(PLANTED["massive"])
    column = "top10_share_mean"
    visual = massive["group"] == "visual"
    massive.loc[visual, column] = [0.5, 0.6, 0.7, 0.8]
    massive = with_bands(massive, column, (0.4, 0.7), (0.55, 0.9), (0.75, 0.95))
    text = verdict(massive, PLANTED["dimensions"])
    assert "of 16 dimensions hold up to 80 % [75, 95] of the squared norm of a visual token" in text


def test_the_bands_of_a_run_are_told() -> None:
    massive = PLANTED["massive"]
    rows = massive[massive["group"] == "visual"]
    row = rows.loc[rows["top10_share_mean"].idxmax()]
    low, high = (f"{100 * row[f'top10_share_mean_band_{end}']:.0f}" for end in ("low", "high"))
    told = verdict(massive, PLANTED["dimensions"])
    assert f" % [{low}, {high}] of the squared norm of a visual token" in told


def test_counts_that_vary_are_up_to_the_largest() -> None:
    massive = with_ratios(PLANTED["massive"], 2.0, 2.0)
    place = massive[(massive["group"] == "visual") & (massive["layer"] == 2)].index[0]
    massive.loc[place, "massive_tokens"] = 21
    text = verdict(massive, PLANTED["dimensions"])
    assert "Massive tokens: up to 3 of 4.9 visual tokens a sample after layers 1-3." in text


def test_sinks_are_told() -> None:
    massive = ORDINARY["massive"].copy()
    massive.loc[(massive["group"] == "visual") & (massive["layer"] >= 2), "sink_tokens"] = 14
    text = verdict(massive, ORDINARY["dimensions"])
    assert text.endswith("Attention sinks: 2 of 4.9 visual tokens a sample after layers 2-3.")


def test_tokens_that_no_layer_turns_are_told() -> None:
    massive = ORDINARY["massive"].copy()
    last = (massive["group"] == "visual") & (massive["layer"] == 3)
    massive.loc[last, "still_tokens"] = 14
    columns = ["still_mean", "still_mean_band_low", "still_mean_band_high"]
    massive.loc[last, columns] = [0.41, 0.3, 0.55]
    text = verdict(massive, ORDINARY["dimensions"])
    assert text.endswith(
        "Every layer leaves 41 % [30, 55] of visual tokens at a cosine of at least 0.99."
    )


def test_where_no_token_is_massive_the_largest_numbers_are_told() -> None:
    massive = ORDINARY["massive"].assign(peak_max=13.13, peak_to_sequence_median_max=10.24)
    text = verdict(massive, ORDINARY["dimensions"])
    assert text.startswith(
        "No token is massive: no magnitude is above 13.1, or above 10.2 x the median of its "
        "sequence.\nThe ten largest"
    )
    assert "Without" not in text and "Attention sinks" not in text


def test_a_dimension_whose_share_is_not_known_holds_at_least() -> None:
    dimensions = PLANTED["dimensions"].copy()
    dimensions["share_at_most"] = dimensions["share"] + 0.02
    dimensions["share"] *= 0.5
    text = verdict(PLANTED["massive"], dimensions)
    assert "Dimension 5 holds at least 50.0 %" in text


def test_text_alone_has_words() -> None:
    made = tables(groups=("text",))
    text = verdict(made["massive"], made["dimensions"])
    assert text.startswith("No token is massive") and "visual" not in text
    assert "ratio" not in terminal_legend(made["massive"])
    assert "ratio" in terminal_legend(PLANTED["massive"])
