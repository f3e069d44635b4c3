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

from normprobe.statistics.bootstrap import (
    FISHER,
    LINEAR,
    LOGARITHM,
    LOGIT,
    Scale,
    band,
    draw_weights,
)
from normprobe.statistics.resampling import (
    Resampled,
    Together,
    image_units,
    scale_of,
    with_intervals,
)


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
    """Of the rows as they are, without each unit in turn, and drawn."""
    rows = sample_rows()
    table = table_of(rows, by_tokens=by_tokens)
    resampled = Resampled(table, rows, ["group"])
    assert resampled.units == len(UNITS)
    means = resampled.means("norm_mean", by_tokens=by_tokens)
    assert means.shape == (1 + len(UNITS) + DRAWS, 2)
    np.testing.assert_allclose(means[0], table["norm_mean"], rtol=1e-12)
    draws = draw_weights(len(UNITS), DRAWS).astype(int)
    for mean, counts in zip(means, draws, strict=True):
        expected = table_of(repeated(rows, counts), by_tokens=by_tokens)
        cells = table.merge(expected, on="group", how="left", suffixes=("", "_drawn"))
        np.testing.assert_allclose(mean, cells["norm_mean_drawn"], rtol=1e-12)


def test_geometric_means_are_those_of_logarithms() -> None:
    rows = sample_rows()
    rows = rows.assign(norm_log_mean=np.log(rows["norm_mean"]), norm_log_tokens=rows["norm_tokens"])
    table = table_of(rows, by_tokens=True)
    found = Resampled(table, rows, ["group"]).geometric_means("norm")
    for mean, counts in zip(found, draw_weights(len(UNITS), DRAWS).astype(int), strict=True):
        drawn = repeated(rows, counts).dropna(subset="norm_mean")
        for value, group in zip(mean, table["group"], strict=True):
            cell = drawn[drawn["group"] == group]
            weights = cell["norm_tokens"].fillna(cell["tokens"])
            expected = np.prod(cell["norm_mean"] ** (weights / weights.sum()))
            assert value == pytest.approx(expected, rel=1e-12)


def test_which_units_hold_something_of_a_row() -> None:
    rows = sample_rows()
    table = table_of(rows, by_tokens=True)
    without = rows[(rows["group"] == "text") | rows["sample_id"].isin(["a", "b", "g"])]
    assert Resampled(table, rows, ["group"]).held.tolist() == [[True, True]] * len(UNITS)
    held = Resampled(table, without, ["group"]).held
    of = dict(zip(table["group"], held.T.tolist(), strict=True))
    assert of == {"visual": [unit in ("g", "x") for unit in UNITS], "text": [True] * len(UNITS)}
    of_number = Resampled(table, rows.assign(norm_mean=np.nan), ["group"]).holding("norm_mean")
    assert of_number.tolist() == [[False, False]] * len(UNITS)
    # The only sample of image y has no such number of its text tokens.
    known = Resampled(table, rows, ["group"]).holding("norm_mean")
    of = dict(zip(table["group"], known.T.tolist(), strict=True))
    assert of == {"visual": [True] * len(UNITS), "text": [unit != "y" for unit in UNITS]}


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
    found = with_intervals(
        table, {"norm_mean": np.ones((3, 1))}, 1, None, [Together(["norm_mean"])]
    )
    assert found.filter(regex="_ci_|_band_").shape == (1, 4)
    assert found.filter(regex="_ci_|_band_").isna().all(axis=None)


def test_a_row_that_one_unit_holds_has_no_interval() -> None:
    table = pd.DataFrame({"norm_mean": [1.0, 1.0]})
    drawn = {"norm_mean": np.random.default_rng(0).lognormal(size=(50, 2))}
    held = np.arange(5)[:, None] < np.array([1, 5])
    found = with_intervals(table, drawn, 5, held)
    assert found["norm_mean_ci_low"].isna().tolist() == [True, False]


def layers_drawn(units: int, layers: int = 6) -> dict[str, np.ndarray]:
    values = np.random.default_rng(units).normal(size=(2, units, layers))
    weights = draw_weights(units, 400)
    means = weights @ values / weights.sum(axis=1, keepdims=True)
    return {"cosine_gap": means[0], "norm_ratio": np.exp(means[1])}


def test_cells_together_have_the_band_of_them_alone() -> None:
    drawn = layers_drawn(12)
    table = pd.DataFrame({name: values[0] for name, values in drawn.items()})
    rows = pd.Series([False, True, True, False, True, True])
    found = with_intervals(table, drawn, 12, None, [Together(["cosine_gap", "norm_ratio"], rows)])
    chosen = [values[:, rows.to_numpy()] for values in drawn.values()]
    for name, ends in zip(drawn, band(chosen, 12, [LINEAR, LOGARITHM]), strict=True):
        columns = [f"{name}_band_low", f"{name}_band_high"]
        assert found.loc[~rows, columns].isna().all(axis=None)
        np.testing.assert_allclose(found.loc[rows, columns].to_numpy().T, ends, rtol=1e-12)


def test_only_images_that_hold_a_number_widen_its_band() -> None:
    drawn = layers_drawn(12)
    table = pd.DataFrame({name: values[0] for name, values in drawn.items()})
    of_gaps = np.arange(12)[:, None] < np.array([12, 12, 12, 3, 3, 1])
    held = {"cosine_gap": of_gaps, "norm_ratio": np.ones((12, 6), dtype=bool)}
    found = with_intervals(table, drawn, 12, held, [Together([*drawn])])
    expected = band([*drawn.values()], 12, [LINEAR, LOGARITHM], [*held.values()])
    for name, ends in zip(drawn, expected, strict=True):
        columns = [f"{name}_band_low", f"{name}_band_high"]
        np.testing.assert_allclose(found[columns].to_numpy().T, ends, rtol=1e-12)
    assert found["cosine_gap_band_low"].isna().tolist() == [False] * 5 + [True]


def test_a_column_that_was_not_drawn_has_no_band() -> None:
    drawn = layers_drawn(12)
    table = pd.DataFrame({"cosine_gap": drawn["cosine_gap"][0]})
    found = with_intervals(table, drawn, 12, None, [Together(["cosine_gap", "another"])])
    assert [name for name in found if "_band_" in name] == [
        "cosine_gap_band_low",
        "cosine_gap_band_high",
    ]


@pytest.mark.parametrize("units", [2, 3, 5, 8, 30])
@pytest.mark.parametrize("layers", [1, 2, 6])
def test_no_band_is_inside_its_interval(units: int, layers: int) -> None:
    drawn = layers_drawn(units, layers)
    table = pd.DataFrame({name: values[0] for name, values in drawn.items()})
    found = with_intervals(table, drawn, units, None, [Together([name]) for name in drawn])
    for name in drawn:
        assert (found[f"{name}_band_low"] <= found[f"{name}_ci_low"]).all()
        assert (found[f"{name}_band_high"] >= found[f"{name}_ci_high"]).all()


@pytest.mark.parametrize(
    ("column", "scale"),
    [
        ("norm_mean", LOGARITHM),
        ("norm_sample_mean", LOGARITHM),
        ("norm_geometric_ratio_to_text", LOGARITHM),
        ("angle_mean", LOGARITHM),
        ("cosine_mean", FISHER),
        ("cosine_gap", LINEAR),
        ("cosine_residual_mean", LINEAR),
        ("update_norm_correlation_text", FISHER),
        ("turn_to_turn_mean", FISHER),
        ("update_angle_difference", LINEAR),
        ("log_norm", LINEAR),
        ("norm_share", LINEAR),
        ("massive_mean", LOGIT),
        ("norm_std", LINEAR),
    ],
)
def test_the_scale_of_a_column(column: str, scale: Scale) -> None:
    assert scale_of(column) is scale


@pytest.mark.parametrize("upwards", [True, False])
def test_ratios_to_text_wherever_its_row_stands(upwards: bool) -> None:
    rows = sample_rows()
    table = table_of(rows, by_tokens=True).sort_values("group", ascending=upwards)
    resampled = Resampled(table, rows, ["group"])
    means = resampled.means("norm_mean", by_tokens=True)
    expected = means / means[:, (table["group"] == "text").to_numpy()]
    np.testing.assert_allclose(resampled.to_text(means), expected, rtol=1e-12)


def test_rows_of_other_cells_do_not_count() -> None:
    rows = sample_rows()
    table = table_of(rows, by_tokens=True).query("group == 'text'")
    alone = Resampled(table, rows, ["group"]).means("norm_mean", by_tokens=True)
    both = Resampled(table_of(rows, by_tokens=True), rows, ["group"])
    expected = both.means("norm_mean", by_tokens=True)[:, :1]
    np.testing.assert_allclose(alone, expected, rtol=1e-12)
