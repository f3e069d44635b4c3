"""Sample rows drawn again by image, against repeating them draw by draw."""

import numpy as np
import pandas as pd
import pytest
from support.flat import flat, flat_name
from support.slow_bootstrap import (
    DRAWS,
    SAMPLES,
    UNITS,
    assert_intervals,
    repeated,
    scale_named,
    slow_draws,
    use_few_draws,
)

from normprobe.measurements import measurement
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
    add_intervals,
    image_units,
    scale_of,
)
from normprobe.tidy import Numbers, Quantity, Table, tidy

#: The scales of what is drawn here.
TABLE = Table(
    "made",
    "a cell",
    [
        Quantity("norm", "a size", forms="mean samples geometric interval log"),
        Quantity("cosine_gap", "a difference", forms="mean interval band"),
        Quantity("norm_ratio", "a ratio", forms="mean interval band log"),
    ],
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
    table = table_of(rows, by_tokens=True)
    resampled = Resampled(table, rows, ["group"])
    means = resampled.means("norm_mean", by_tokens=True)
    numbers = {"norm": {"mean": table["norm_mean"]}, "other": {"mean": np.ones(len(table))}}
    add_intervals(numbers, {("norm", "mean"): means}, resampled.units, table=TABLE)
    assert list(numbers["norm"]) == ["mean", "low", "high"]
    assert list(numbers["other"]) == ["mean"]
    found = tidy(table[["group"]], numbers)
    assert list(found) == ["group", "quantity", "mean", "low", "high"]
    slow = slow_draws(rows, lambda drawn: table_of(drawn, by_tokens=True), ["group"])
    assert_intervals(flat(found), slow, ["group"], ["norm_mean"])


def test_each_estimate_has_its_own_ends() -> None:
    drawn = np.random.default_rng(0).lognormal(size=(50, 2))
    of = {("norm", "sample_mean"): drawn, ("norm", "geometric_mean"): 2 * drawn}
    numbers = {"norm": {"mean": drawn[0]}}
    add_intervals(numbers, of, 5, table=TABLE)
    ends = ["sample_low", "sample_high", "geometric_low", "geometric_high"]
    assert list(numbers["norm"]) == ["mean", *ends]
    for end in ("low", "high"):
        of_samples, geometric = (numbers["norm"][f"{of}_{end}"] for of in ("sample", "geometric"))
        np.testing.assert_allclose(2 * of_samples, geometric, rtol=1e-12)


def test_a_single_unit_has_no_interval() -> None:
    numbers = {"norm": {"mean": np.ones(1)}}
    drawn = {("norm", "mean"): np.ones((3, 1))}
    add_intervals(numbers, drawn, 1, None, [Together(["norm"])], table=TABLE)
    ends = [numbers["norm"][end] for end in ("low", "high", "band_low", "band_high")]
    assert np.isnan(ends).all()
    assert list(tidy(pd.DataFrame({"group": ["text"]}), numbers)) == ["group", "quantity", "mean"]


def test_a_cell_that_one_unit_holds_has_no_interval() -> None:
    numbers = {"norm": {"mean": np.ones(2)}}
    drawn = {("norm", "mean"): np.random.default_rng(0).lognormal(size=(50, 2))}
    held = np.arange(5)[:, None] < np.array([1, 5])
    add_intervals(numbers, drawn, 5, held, table=TABLE)
    assert np.isnan(numbers["norm"]["low"]).tolist() == [True, False]


def layers_drawn(units: int, layers: int = 6) -> dict[tuple[str, str], np.ndarray]:
    values = np.random.default_rng(units).normal(size=(2, units, layers))
    weights = draw_weights(units, 400)
    means = weights @ values / weights.sum(axis=1, keepdims=True)
    return {("cosine_gap", "mean"): means[0], ("norm_ratio", "mean"): np.exp(means[1])}


def numbers_of(drawn: dict[tuple[str, str], np.ndarray]) -> Numbers:
    return {name: {"mean": values[0]} for (name, _), values in drawn.items()}


def test_cells_together_have_the_band_of_them_alone() -> None:
    drawn = layers_drawn(12)
    numbers = numbers_of(drawn)
    cells = pd.Series([False, True, True, False, True, True])
    together = [Together(["cosine_gap", "norm_ratio"], cells)]
    add_intervals(numbers, drawn, 12, None, together, table=TABLE)
    chosen = [values[:, cells.to_numpy()] for values in drawn.values()]
    for (name, _), ends in zip(drawn, band(chosen, 12, [LINEAR, LOGARITHM]), strict=True):
        found = np.stack([numbers[name]["band_low"], numbers[name]["band_high"]])
        assert np.isnan(found[:, ~cells]).all()
        np.testing.assert_allclose(found[:, cells], ends, rtol=1e-12)


def test_cells_of_two_sentences_have_two_bands() -> None:
    drawn = layers_drawn(12)
    numbers = numbers_of(drawn)
    of = [np.arange(6) < 2, np.arange(6) >= 4]
    together = [Together(["norm_ratio"], cells) for cells in of]
    add_intervals(numbers, drawn, 12, None, together, table=TABLE)
    of_ratio = numbers["norm_ratio"]
    found = np.stack([of_ratio["band_low"], of_ratio["band_high"]])
    for cells in of:
        ((low, high),) = band([drawn["norm_ratio", "mean"][:, cells]], 12, [LOGARITHM])
        expected = (
            np.minimum(low, of_ratio["low"][cells]),
            np.maximum(high, of_ratio["high"][cells]),
        )
        np.testing.assert_allclose(found[:, cells], expected, rtol=1e-12)
    assert np.isnan(found).any(axis=0).tolist() == [False, False, True, True, False, False]


def test_only_images_that_hold_a_number_widen_its_band() -> None:
    drawn = layers_drawn(12)
    numbers = numbers_of(drawn)
    of_gaps = np.arange(12)[:, None] < np.array([12, 12, 12, 3, 3, 1])
    held = dict(zip(drawn, (of_gaps, np.ones((12, 6), dtype=bool)), strict=True))
    add_intervals(numbers, drawn, 12, held, [Together([*numbers])], table=TABLE)
    expected = band([*drawn.values()], 12, [LINEAR, LOGARITHM], [*held.values()])
    for name, ends in zip(numbers, expected, strict=True):
        found = np.stack([numbers[name]["band_low"], numbers[name]["band_high"]])
        np.testing.assert_allclose(found, ends, rtol=1e-12)
    assert np.isnan(numbers["cosine_gap"]["band_low"]).tolist() == [False] * 5 + [True]


def test_a_number_that_was_not_drawn_has_no_band() -> None:
    drawn = {key: values for key, values in layers_drawn(12).items() if key[0] == "cosine_gap"}
    numbers = {**numbers_of(drawn), "norm_ratio": {"mean": np.ones(6)}}
    together = [Together(["cosine_gap", "norm_ratio", "another"])]
    add_intervals(numbers, drawn, 12, None, together, table=TABLE)
    assert list(numbers["norm_ratio"]) == ["mean"]
    assert {name for name in numbers["cosine_gap"] if "band" in name} == {"band_low", "band_high"}
    assert "another" not in numbers


@pytest.mark.parametrize("units", [2, 3, 5, 8, 30])
@pytest.mark.parametrize("layers", [1, 2, 6])
def test_no_band_is_inside_its_interval(units: int, layers: int) -> None:
    drawn = layers_drawn(units, layers)
    numbers = numbers_of(drawn)
    add_intervals(numbers, drawn, units, None, [Together([name]) for name in numbers], table=TABLE)
    for name in numbers:
        assert (numbers[name]["band_low"] <= numbers[name]["low"]).all()
        assert (numbers[name]["band_high"] >= numbers[name]["high"]).all()


@pytest.mark.parametrize(
    ("table", "quantity", "estimate", "scale"),
    [
        ("layers", "norm", "mean", LOGARITHM),
        ("layers", "norm", "sample_mean", LOGARITHM),
        ("layers", "norm", "geometric_mean", LOGARITHM),
        ("layers", "norm_geometric_ratio_to_text", "mean", LOGARITHM),
        ("layers", "angle", "mean", LOGARITHM),
        ("layers", "cosine", "mean", FISHER),
        ("grounding", "cosine_gap", "mean", LINEAR),
        ("theory", "cosine_residual", "mean", LINEAR),
        ("theory", "update_norm_correlation", "mean", FISHER),
        ("theory", "turn_to_turn", "mean", FISHER),
        ("theory", "update_angle_difference", "mean", LINEAR),
        ("theory", "update_angle_std", "mean", LOGARITHM),
        ("accounted", "log_norm", "mean", LINEAR),
        ("accounted", "norm_share", "mean", LINEAR),
        ("massive", "massive", "mean", LOGIT),
        ("massive", "norm_without_massive", "mean", LOGARITHM),
        ("layers", "a_number_of_the_users_own", "mean", LINEAR),
    ],
)
def test_the_scale_of_a_number(table: str, quantity: str, estimate: str, scale: Scale) -> None:
    room = measurement("grounding" if table == "grounding" else "layers").quantities()
    assert scale_of(room[table], quantity, estimate) is scale


@pytest.mark.parametrize("name", ["layers", "theory", "accounted", "turns", "branches", "massive"])
def test_the_declared_scales_are_those_that_the_names_tell(name: str) -> None:
    table = measurement("layers").quantities()[name]
    for quantity, known in table.numbers.items():
        for estimate in known.estimates:
            # theory.csv had the modality behind the name, which ``angle_mean`` did not tell then.
            of_group = (name, quantity) == ("theory", "update_angle")
            column = "" if of_group else flat_name(quantity, estimate)
            if "interval" in known.forms and estimate.endswith("mean"):
                assert scale_of(table, quantity, estimate) is scale_named(column), quantity


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
