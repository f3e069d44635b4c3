"""Merging over any split equals computing over all tokens at once."""

import numpy as np
import pandas as pd
import pytest

from normprobe.statistics.sample_statistics import (
    COSINE_QUANTILE_ERROR,
    QUANTILE_RELATIVE_ERROR,
    merge,
    statistics_of,
)
from normprobe.tidy import QUANTILES

METRICS = ("norm", "cosine")


def tokens(count: int = 5000, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return np.stack([random.lognormal(3, 2, count), random.uniform(-1, 1, count)])


def rows_of(values: np.ndarray, ends: list[int]) -> pd.DataFrame:
    parts = np.split(values, ends, axis=1)
    return pd.DataFrame(
        {"layer": 1, "group": "text", **statistics_of(part, METRICS)} for part in parts
    )


@pytest.mark.parametrize("ends", [[], [1], [2, 2500, 4999], list(range(100, 5000, 100))])
def test_means_and_deviations_do_not_depend_on_the_split(ends: list[int]) -> None:
    values = tokens()
    cells, numbers = merge(rows_of(values, ends), ["layer", "group"], METRICS)
    assert list(cells) == ["layer", "group", "tokens", "samples"]
    assert cells["tokens"].item() == 5000
    assert cells["samples"].item() == len(ends) + 1
    for name, series in zip(METRICS, values, strict=True):
        found = numbers[name]
        assert found["mean"].item() == pytest.approx(series.mean(), rel=1e-9)
        assert found["std"].item() == pytest.approx(series.std(), rel=1e-9)
        means = [part.mean() for part in np.split(series, ends)]
        assert found["sample_mean"].item() == pytest.approx(np.mean(means), rel=1e-9)
        assert found["sample_std"].item() == pytest.approx(np.std(means), rel=1e-9, abs=1e-9)


def test_a_small_deviation_at_a_large_mean_survives() -> None:
    """A naive sum of squares in float32 is wrong by 160 % here."""
    random = np.random.default_rng(1)
    series = random.normal(5000, 2, (1, 100_000)).astype(np.float32)
    rows = pd.DataFrame(
        {"layer": 0, **statistics_of(part, ["norm"])} for part in np.split(series, 10, axis=1)
    )
    expected = series.astype(np.float64).std()
    _, numbers = merge(rows, ["layer"], ["norm"])
    assert numbers["norm"]["std"].item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("ends", [[], [7, 3000]])
def test_quantiles_err_by_no_more_than_stated(ends: list[int]) -> None:
    values = tokens()
    _, numbers = merge(rows_of(values, ends), ["layer", "group"], METRICS)
    exact = np.quantile(values, list(QUANTILES.values()), method="inverted_cdf", axis=1)
    for place, (metric, errors) in enumerate(
        {
            "norm": {"rtol": QUANTILE_RELATIVE_ERROR + 1e-12},
            "cosine": {"rtol": 0.0, "atol": COSINE_QUANTILE_ERROR + 1e-12},
        }.items()
    ):
        measured = [numbers[metric][name].item() for name in QUANTILES]
        np.testing.assert_allclose(measured, exact[:, place], **errors)


def test_non_finite_tokens_are_counted_and_left_out() -> None:
    values = tokens(10)
    values[0, 3], values[0, 5] = np.inf, np.nan
    row = statistics_of(values, METRICS)
    kept = np.delete(values, [3, 5], axis=1)
    assert (row["tokens"], row["nonfinite"]) == (8, 2)
    assert row["cosine_mean"] == pytest.approx(kept[1].mean(), rel=1e-12)


@pytest.mark.parametrize("ends", [[], [3], [1, 6]])
def test_a_token_without_a_metric_is_left_out_of_that_metric_alone(ends: list[int]) -> None:
    values = tokens(10)
    values[1, [2, 5]] = np.nan  # a zero state has a norm, and no cosine
    values[0, 2] = 0.0
    rows = pd.DataFrame(
        {"layer": 1, "group": "text", **statistics_of(part, METRICS)}
        for part in np.split(values, ends, axis=1)
    )
    cells, numbers = merge(rows, ["layer", "group"], METRICS)
    cosines = np.delete(values[1], [2, 5])
    assert (cells["tokens"].item(), numbers["nonfinite"]["mean"].item()) == (10, 0)
    for name, there in (("norm", values[0]), ("cosine", cosines)):
        assert numbers[name]["mean"].item() == pytest.approx(there.mean(), rel=1e-12)
        assert numbers[name]["std"].item() == pytest.approx(there.std(), rel=1e-9)
    geometric = np.exp(np.log(np.delete(values[0], 2)).mean())
    assert numbers["norm"]["geometric_mean"].item() == pytest.approx(geometric, rel=1e-12)


def test_a_group_of_non_finite_tokens_alone_has_no_mean_and_spoils_no_other() -> None:
    values = tokens(10)
    rows = pd.DataFrame(
        {"layer": 1, "group": "text", **statistics_of(part, METRICS)}
        for part in (values, np.full((2, 4), np.nan))
    )
    _, numbers = merge(rows, ["layer", "group"], METRICS)
    assert numbers["nonfinite"]["mean"].item() == 4
    assert numbers["norm"]["mean"].item() == pytest.approx(values[0].mean(), rel=1e-12)


def test_rows_without_a_metric_have_no_say_in_it() -> None:
    values = tokens(10)
    full = {"layer": 1, "group": "text", **statistics_of(values, METRICS)}
    bare = {"layer": 0, "group": "text", **statistics_of(values[:1], METRICS[:1])}
    cells, numbers = merge(pd.DataFrame([bare, full]), ["layer", "group"], METRICS)
    assert cells["layer"].tolist() == [0, 1]
    assert np.isnan(numbers["cosine"]["mean"][0])
    assert numbers["cosine"]["mean"][1] == pytest.approx(values[1].mean(), rel=1e-12)


def test_a_histogram_holds_the_tokens_that_have_a_value_of_its_metric() -> None:
    """A state of zeros has a norm and no direction."""
    columns = statistics_of(np.array([[0.0, 2.0, 4.0], [np.nan, 0.5, 0.25]]), METRICS)
    assert sum(columns["norm_counts"]) == 3
    assert sum(columns["cosine_counts"]) == columns["cosine_tokens"] == 2
