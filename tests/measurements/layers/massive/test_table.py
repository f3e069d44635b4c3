"""massive.csv and dimensions.csv from sample rows."""

import numpy as np
import pandas as pd
import pytest
from support.made_massive import DIMENSION, sample_rows, tables
from support.slow_bands import assert_bands
from support.slow_bootstrap import assert_intervals, slow_draws, use_few_draws

from normprobe.measurements.layers.massive import dimensions_table, massive_table
from normprobe.schema import TEXT, VISUAL

KEYS = ["layer", "group"]
ENDS = ("ci_low", "ci_high")


def test_every_mean_and_ratio_has_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    use_few_draws(monkeypatch)
    rows = sample_rows(massive=True)
    table = massive_table(rows)
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
    assert_intervals(table, slow_draws(rows, massive_table, KEYS), KEYS, columns)


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
    assert_bands(massive_table(rows), rows, massive_table, KEYS, scales, chosen)


@pytest.mark.parametrize("share", ["top1_share_mean", "massive_mean", "still_mean"])
def test_shares_have_a_band_over_layers_and_modalities(share: str) -> None:
    rows = sample_rows(massive=True)
    chosen = [(layer, group) for layer in range(4) for group in (VISUAL, TEXT)]
    assert_bands(massive_table(rows), rows, massive_table, KEYS, {share: "logit"}, chosen)


def test_the_order_of_the_rows_changes_nothing() -> None:
    rows = sample_rows(massive=True)
    shuffled = rows.sample(frac=1.0, random_state=0)
    for table in (massive_table, dimensions_table):
        pd.testing.assert_frame_equal(table(shuffled), table(rows))


def test_counts_are_over_all_samples() -> None:
    table = tables(massive=True)["massive"].set_index(KEYS)
    visual = table.xs(VISUAL, level="group")
    assert visual["massive_tokens"].tolist() == [0, 7, 7, 7]  # one a sample
    assert (visual["tokens"] - visual["tokens_without_massive"]).tolist() == [7] * 4
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
