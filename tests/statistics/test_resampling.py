"""Sample rows drawn again by image, against repeating them draw by draw."""

import numpy as np
import pandas as pd
import pytest
from support.slow_bootstrap import (
    DRAWS,
    SAMPLES,
    UNITS,
    assert_intervals,
    repeated,
    slow_draws,
    use_few_draws,
)

from normprobe.statistics.bootstrap import draw_weights
from normprobe.statistics.resampling import Resampled, image_units, with_intervals


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    use_few_draws(monkeypatch)


def sample_rows() -> pd.DataFrame:
    random = np.random.default_rng(0)
    made = [
        {"sample_id": sample, "image_hash": image, "group": group}
        | {"tokens": random.integers(1, 9), "norm_mean": random.gamma(3.0)}
        for sample, image in SAMPLES
        for group in ("visual", "text")
    ]
    made[5]["norm_mean"] = np.nan  # nothing finite there
    made[2] |= {"tokens": 8, "norm_tokens": 3}  # of which the others have no such number
    return pd.DataFrame(made)


def table_of(rows: pd.DataFrame, *, by_tokens: bool) -> pd.DataFrame:
    counted = rows["norm_tokens"].fillna(rows["tokens"])
    held = rows.assign(one=1, counted=counted).dropna(subset="norm_mean")
    weight = "counted" if by_tokens else "one"
    return pd.DataFrame(
        {
            "group": group,
            "norm_mean": np.average(cell["norm_mean"], weights=cell[weight]),
        }
        for group, cell in held.groupby("group")
    )


def test_a_unit_is_an_image_or_a_sample_without_one() -> None:
    rows = pd.DataFrame(SAMPLES, columns=["sample_id", "image_hash"])
    assert image_units(rows).tolist() == ["x", "x", "y", "d", "z", "z", "g"]


@pytest.mark.parametrize("by_tokens", [True, False])
def test_means_of_every_draw(by_tokens: bool) -> None:
    rows = sample_rows()
    table = table_of(rows, by_tokens=by_tokens)
    resampled = Resampled(table, rows, ["group"])
    assert resampled.units == len(UNITS)
    means = resampled.means("norm_mean", by_tokens=by_tokens)
    assert means.shape == (DRAWS, 2)
    draws = draw_weights(len(UNITS), DRAWS).astype(int)
    for mean, counts in zip(means, draws, strict=True):
        expected = table_of(repeated(rows, counts), by_tokens=by_tokens)
        cells = table.merge(expected, on="group", how="left", suffixes=("", "_drawn"))
        np.testing.assert_allclose(mean, cells["norm_mean_drawn"], rtol=1e-12)


def test_the_first_draw_may_be_the_rows_themselves() -> None:
    rows = sample_rows()
    table = table_of(rows, by_tokens=True)
    drawn = Resampled(table, rows, ["group"]).means("norm_mean", by_tokens=True)
    both = Resampled(table, rows, ["group"], with_estimate=True).means("norm_mean", by_tokens=True)
    np.testing.assert_allclose(both[0], table["norm_mean"], rtol=1e-12)
    np.testing.assert_array_equal(both[1:], drawn)


def test_covariances_of_every_draw() -> None:
    """Far from zero, where sums of squares would cancel."""
    random = np.random.default_rng(0)
    tokens = {
        (sample, group): random.normal(1e6, 1.0, (2, random.integers(1, 9)))
        for sample, _ in SAMPLES
        for group in ("visual", "text")
    }
    rows = pd.DataFrame(
        {"sample_id": sample, "image_hash": dict(SAMPLES)[sample], "group": group}
        | {"tokens": values.shape[1], "a_mean": values[0].mean(), "b_mean": values[1].mean()}
        | {"products": np.cov(values, ddof=0)[0, 1] * values.shape[1]}
        for (sample, group), values in tokens.items()
    )
    undefined = np.where(rows.index < 3, 2, 0)  # tokens that have neither number
    rows = rows.assign(
        tokens=rows["tokens"] + undefined, a_tokens=rows["tokens"].where(undefined > 0)
    )
    table = pd.DataFrame({"group": ["visual", "text"]})
    found = Resampled(table, rows, ["group"]).covariance("a_mean", "b_mean", "products")
    for of_draw, counts in zip(found, draw_weights(len(UNITS), DRAWS).astype(int), strict=True):
        drawn = repeated(rows, counts)
        for covariance, group in zip(of_draw, table["group"], strict=True):
            names = drawn.loc[drawn["group"] == group, "sample_id"]
            values = np.concatenate([tokens[name, group] for name in names], axis=1)
            expected = np.cov(values, ddof=0)[0, 1]
            assert covariance == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_intervals_stand_behind_the_columns_in_their_order() -> None:
    rows = sample_rows()
    table = table_of(rows, by_tokens=True).assign(other=1.0)
    resampled = Resampled(table, rows, ["group"])
    draws = {"norm_mean": resampled.means("norm_mean", by_tokens=True)}
    found = with_intervals(table, draws, resampled.units)
    assert list(found) == ["group", "norm_mean", "other", "norm_mean_ci_low", "norm_mean_ci_high"]
    slow = slow_draws(rows, lambda drawn: table_of(drawn, by_tokens=True), ["group"])
    assert_intervals(found, slow, ["group"], ["norm_mean"])


def test_a_single_unit_has_no_interval() -> None:
    table = pd.DataFrame({"group": ["text"], "norm_mean": [1.0]})
    found = with_intervals(table, {"norm_mean": np.ones((3, 1))}, 1)
    assert found[["norm_mean_ci_low", "norm_mean_ci_high"]].isna().all(axis=None)


def test_rows_of_other_cells_do_not_count() -> None:
    rows = sample_rows()
    table = table_of(rows, by_tokens=True).query("group == 'text'")
    alone = Resampled(table, rows, ["group"]).means("norm_mean", by_tokens=True)
    both = Resampled(table_of(rows, by_tokens=True), rows, ["group"])
    expected = both.means("norm_mean", by_tokens=True)[:, :1]
    np.testing.assert_allclose(alone, expected, rtol=1e-12)
