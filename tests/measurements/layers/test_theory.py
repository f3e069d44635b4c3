"""Eq. 13 and 15-17 against a direct computation, one sample and one token at a time."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from support.flat import flat, flat_theory
from support.slow_bands import assert_bands
from support.slow_bootstrap import SAMPLES, assert_intervals, slow_draws, use_few_draws
from support.token_rows import rows_of_tokens, tokens_of

from experiments.theory import FAITHFUL, INITIAL, LAYERS, TOKENS, WIDTH, simulated
from experiments.theory import SAMPLES as SIMULATED
from normprobe.measurements.layers.assumptions import CRITERIA
from normprobe.measurements.layers.table import layers_table
from normprobe.measurements.layers.theory import theory_table
from normprobe.schema import PAIR, PAIR_METRICS, TEXT, TOKEN_METRICS, VISUAL
from normprobe.statistics.sample_statistics import CO_MOMENTS
from normprobe.tidy import BAND, COUNTS, INTERVAL, QUANTITY, Quantity, declared, select

#: Judged numbers of samples; the others are of tokens.
OVER_SAMPLES = ("cosine_residual", "visual_turn_to_text", "text_turn_to_visual", "turn_to_turn")
COSINES = {"visual": [0.99, 0.98, 0.97], "text": [0.5, 0.8, 0.9]}


def rows(
    visual: list[float], text: list[float], initial: float = 0.4, injected: int | None = None
) -> pd.DataFrame:
    """One sample with mean cosines, and a measured cosine that halves in each layer."""
    made = []
    for group, cosines in (("visual", visual), ("text", text)):
        made.append({"layer": 0, "group": group, "norm_mean": 1.0})
        for layer, cosine in enumerate(cosines, start=1):
            made.append({"layer": layer, "group": group, "norm_mean": 1.0, "cosine_mean": cosine})
    for layer in range(len(visual) + 1):
        turns = dict.fromkeys(PAIR_METRICS, 0.01 if layer else np.nan)
        cosine = {"cross_modal_cosine": initial * 0.5**layer, "injected": layer == injected}
        made.append({"layer": layer, "group": "visual_text", **turns, **cosine})
    update = {f"{name}_{part}": 1.0 for name in TOKEN_METRICS[3:] for part in ("mean", "m2")}
    moments = update | dict.fromkeys(CO_MOMENTS, 1.0)
    return pd.DataFrame(made).assign(
        sample_id="a",
        image_hash="x",
        hidden_size=64,
        tokens=2,
        nonfinite=0,
        norm_log_mean=0.0,
        **moments,
    )


def flat_table(rows: pd.DataFrame) -> pd.DataFrame:
    """theory.csv of sample rows, flat."""
    return flat_theory(theory_table(rows))


def declared_of(name: str) -> dict[str, Quantity]:
    return declared("normprobe.measurements.layers")[name].numbers


def table_of(*arguments: object, **options: object) -> pd.DataFrame:
    return flat_table(rows(*arguments, **options)).set_index("layer")


def test_eq_15_goes_one_layer_on_from_the_measured_cosine() -> None:
    table = table_of(COSINES["visual"], COSINES["text"])
    retention = np.multiply(COSINES["visual"], COSINES["text"])
    np.testing.assert_allclose(table["retention_mean"].iloc[1:], retention)
    measured = 0.4 * 0.5 ** np.arange(4)
    np.testing.assert_allclose(table["cross_modal_cosine_mean"], measured)
    predicted = retention * measured[:-1]
    np.testing.assert_allclose(table["predicted_cross_modal_cosine_mean"].iloc[1:], predicted)
    np.testing.assert_allclose(table["cosine_residual_mean"].iloc[1:], measured[1:] - predicted)
    assert np.isnan(table.loc[0, "predicted_cross_modal_cosine_mean"])


def test_the_running_product_of_retentions_stands_beside_it() -> None:
    table = table_of(COSINES["visual"], COSINES["text"])
    retention = np.multiply(COSINES["visual"], COSINES["text"])
    np.testing.assert_allclose(
        table["compounded_cross_modal_cosine_mean"], 0.4 * np.cumprod([1.0, *retention])
    )


def test_the_lag_is_measured_against_equal_turning() -> None:
    table = table_of(COSINES["visual"], COSINES["text"])
    imbalanced = balanced = 0.4
    for layer, (v, t) in enumerate(zip(COSINES["visual"], COSINES["text"], strict=True), start=1):
        both = np.arctan(np.sqrt(np.tan(np.arccos(v)) * np.tan(np.arccos(t))))
        imbalanced *= v * t
        balanced *= np.cos(both) ** 2
        expected = np.arccos(imbalanced) - np.arccos(balanced)
        assert table.loc[layer, "lag_angle_mean"] == pytest.approx(expected, rel=1e-9)
        assert expected > 0


def test_equal_turning_has_no_lag() -> None:
    np.testing.assert_allclose(table_of([0.9, 0.8], [0.9, 0.8])["lag_angle_mean"], 0.0, atol=1e-7)


def test_what_is_added_between_layers_ends_the_product_but_skips_one_step() -> None:
    table = table_of(COSINES["visual"], COSINES["text"], injected=2)
    compounded = table["compounded_cross_modal_cosine_mean"]
    assert compounded.notna().tolist() == [True, True, False, False]
    for column in ("predicted_cross_modal_cosine_mean", "cosine_residual_mean"):
        assert table[column].notna().tolist() == [False, True, False, True]
    assert table["cross_modal_cosine_mean"].notna().all()


@pytest.mark.parametrize(
    ("visual", "text", "initial"), [([0.9, 0.9], [-0.1, 0.9], 0.4), ([0.9], [0.9], -0.1)]
)
def test_the_lag_is_empty_where_the_theory_does_not_speak(
    visual: list[float], text: list[float], initial: float
) -> None:
    table = theory_table(rows(visual, text, initial))
    assert select(table, "lag_angle").query("layer > 0").empty
    predicted = select(table, "predicted_cross_modal_cosine")
    assert predicted["layer"].tolist() == [*range(1, len(visual) + 1)]


def test_samples_without_both_modalities_have_no_say() -> None:
    lonely = rows([0.9], [0.9])
    lonely = lonely[lonely["group"] == "text"].assign(sample_id="b")
    both = rows(COSINES["visual"], COSINES["text"])
    together = theory_table(pd.concat([both, lonely], ignore_index=True))
    pd.testing.assert_frame_equal(together, theory_table(both))
    assert theory_table(lonely).empty


# --- over tokens, and intervals -----------------------------------------------------------------


def test_what_concerns_tokens_is_taken_over_all_of_them() -> None:
    tokens = tokens_of(0, SAMPLES)
    table = flat_table(rows_of_tokens(tokens)).set_index("layer")
    for layer in (1, 2):
        row, by_group = table.loc[layer], {}
        for group in (VISUAL, TEXT):
            chosen = [values[layer - 1] for (_, g), values in tokens.items() if g == group]
            metrics = dict(zip(TOKEN_METRICS, np.concatenate(chosen, axis=1), strict=True))
            metrics["x"] = metrics["update_norm"] / metrics["relative_update"]
            by_group[group] = metrics
            logs = {name: np.log(metrics[name]) for name in ("x", "update_norm", "angle")}
            expected = {
                "update_norm_cv": metrics["update_norm"].std() / metrics["update_norm"].mean(),
                "update_norm_correlation": np.corrcoef(logs["x"], logs["update_norm"])[0, 1],
                "update_angle_mean": metrics["update_angle"].mean(),
                "update_angle_std": metrics["update_angle"].std(),
                "norm_angle_correlation": np.corrcoef(logs["x"], logs["angle"])[0, 1],
                "norm_angle_slope": np.polyfit(logs["x"], logs["angle"], 1)[0],
                "log_norm_std": logs["x"].std(),
            }
            for name, value in expected.items():
                assert row[f"{name}_{group}"] == pytest.approx(value, rel=1e-9), name
        visual, text = by_group[VISUAL], by_group[TEXT]
        for name in ("norm", "update_norm"):
            log = np.log(visual[name]).mean() - np.log(text[name]).mean()
            assert row[f"{name}_ratio"] == pytest.approx(np.exp(log))
            assert row[f"{name}_ratio"] != pytest.approx(
                visual[name].mean() / text[name].mean(), rel=1e-3
            )
        difference = visual["update_angle"].mean() - text["update_angle"].mean()
        assert row["update_angle_difference"] == pytest.approx(difference)
        measured = np.exp(np.log(text["angle"]).mean() - np.log(visual["angle"]).mean())
        assert row["angle_ratio"] == pytest.approx(measured)
        predicted = predicted_angle(by_group, TEXT) / predicted_angle(by_group, VISUAL)
        assert row["predicted_angle_ratio"] == pytest.approx(predicted)
        assert row["angle_ratio_error"] == pytest.approx(measured / predicted)


def predicted_angle(by_group: dict, group: str, longer: float = 1.0) -> float:
    """Eq. 13 for the geometric mean norm, with one size and one angle for both modalities."""
    sizes = [np.log(by_group[g]["update_norm"]).mean() for g in (VISUAL, TEXT)]
    size = np.exp(np.mean(sizes))
    phi = np.mean([by_group[g]["update_angle"].mean() for g in (VISUAL, TEXT)])
    norm = longer * np.exp(np.log(by_group[group]["x"]).mean())
    return np.arctan(size * np.sin(phi) / (norm + size * np.cos(phi)))


def test_the_slope_that_eq_13_predicts_is_its_derivative() -> None:
    tokens = tokens_of(0, SAMPLES)
    table = flat_table(rows_of_tokens(tokens)).set_index("layer")
    by_group = {}
    for group in (VISUAL, TEXT):
        chosen = [values[0] for (_, g), values in tokens.items() if g == group]
        metrics = dict(zip(TOKEN_METRICS, np.concatenate(chosen, axis=1), strict=True))
        by_group[group] = metrics | {"x": metrics["update_norm"] / metrics["relative_update"]}
    for group in (VISUAL, TEXT):
        ends = [np.log(predicted_angle(by_group, group, np.exp(step))) for step in (-1e-4, 1e-4)]
        slope = (ends[1] - ends[0]) / 2e-4
        found = table.loc[1, f"predicted_norm_angle_slope_{group}"]
        assert found == pytest.approx(slope, rel=1e-5)


def renamed(rows: pd.DataFrame) -> pd.DataFrame:
    """A sample that is drawn twice is two samples."""
    copies = rows.groupby(["sample_id", "layer", "group"]).cumcount()
    return rows.assign(sample_id=rows["sample_id"] + "#" + copies.astype(str))


def test_every_number_has_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    use_few_draws(monkeypatch)
    rows = rows_of_tokens(tokens_of(0, SAMPLES))
    table = theory_table(rows)
    facts = ["hidden_size", "nonfinite"]
    measured = [name for name in declared_of("theory") if name not in facts]
    assert list(dict.fromkeys(table.loc[table["layer"] == 1, QUANTITY])) == [*facts, *measured]
    assert {*table[QUANTITY]} == {*facts, *measured}
    assert table.loc[table[QUANTITY].isin(measured), [*INTERVAL]].notna().all(axis=None)
    named = flat_theory(table)
    counts = ["layer", *facts, *COUNTS]
    ends = ("_low", "_high")
    deviations = [f"{name}_std" for name in measured if f"{name}_mean" in named]
    numbers = [
        name for name in named if not name.endswith(ends) and name not in (*counts, *deviations)
    ]
    slow = slow_draws(rows, lambda drawn: flat_table(renamed(drawn)), ["layer"])
    assert_intervals(named, slow, ["layer"], numbers)


def test_all_numbers_that_are_judged_have_one_band_over_all_layers() -> None:
    rows = rows_of_tokens(tokens_of(0, SAMPLES))
    table = theory_table(rows)
    judged = {(criterion.quantity, criterion.group) for criterion in CRITERIA}
    banded = table[table[[*BAND]].notna().all(axis=1)]
    assert {*zip(banded[QUANTITY], banded["group"], strict=True)} == judged
    whole = table.set_index([QUANTITY, "group"]).loc[[*judged]]
    assert whole[[*BAND]].notna().all(axis=None)
    declared = declared_of("theory")
    assert [name for name, of in declared.items() if "band" in of.forms] == [
        name for name in declared if name in {name for name, _ in judged}
    ]
    scales = {}
    for name, group in judged:
        mean = f"{name}_mean" if name in OVER_SAMPLES else name
        scale = "log" if any(part in name for part in ("ratio", "_cv", "_std")) else "linear"
        scale = "fisher" if "correlation" in name or "turn" in name else scale
        scales[mean if group == PAIR else f"{mean}_{group}"] = scale
    assert_bands(flat_theory(table), rows, flat_table, ["layer"], scales, range(3))


def test_a_number_that_two_of_nine_images_hold_has_the_interval_of_two() -> None:
    names = [f"s{number}" for number in range(9)]
    rows = rows_of_tokens(tokens_of(0, [(name, None) for name in names]))
    entering = (rows["group"] == "visual_text") & (rows["layer"] == 0)
    cosines = rows["cross_modal_cosine"].where(~entering | rows["sample_id"].isin(names[:2]), -0.5)
    rows = rows.assign(cross_modal_cosine=cosines)
    table = select(theory_table(rows), "lag_angle")[1:]
    one, other = (
        select(theory_table(rows[rows["sample_id"] == name]), "lag_angle")["mean"].to_numpy()[1:]
        for name in names[:2]
    )
    assert table["samples"].tolist() == [2, 2]
    np.testing.assert_allclose(table["mean"], (one + other) / 2, rtol=1e-9)
    # Draws lie between the two, and are widened by t of one degree of freedom.
    wider = 12.7062 / 1.95996 * np.sqrt(2)
    low, high = table["low"], table["high"]
    logarithms = (one > 0) & (other > 0)
    found = np.where(logarithms, np.log(high / low), high - low)
    apart = np.where(logarithms, np.log(one / other), one - other)
    np.testing.assert_allclose(found, np.abs(apart) * wider, rtol=1e-4)


def test_one_image_has_no_interval() -> None:
    table = theory_table(rows_of_tokens(tokens_of(0, SAMPLES[:2])))
    assert not {*INTERVAL, *BAND} & {*table}
    ratios = select(table, "norm_ratio")
    assert len(ratios) == 3 and ratios["mean"].notna().all()


def test_tokens_that_do_not_differ_have_no_correlation() -> None:
    tokens = {key: values[..., :1] for key, values in tokens_of(0, SAMPLES[:1]).items()}
    table = flat_table(rows_of_tokens(tokens)).set_index("layer")
    assert not [name for name in table if "correlation" in name]
    assert (table.loc[1:, "update_norm_cv_text"] == 0).all()


@pytest.mark.parametrize(("spread", "has"), [(0.0, False), (3e-4, False), (3e-3, True)])
def test_equal_norms_have_no_slope(spread: float, has: bool) -> None:
    """Such as an alignment makes: what rounding leaves of them is no spread."""
    random, place = np.random.default_rng(0), TOKEN_METRICS.index
    tokens = tokens_of(0, SAMPLES)
    for (_, group), metrics in tokens.items():
        if group == VISUAL:
            norms = 20 * np.exp(spread * random.normal(size=metrics[0].shape[-1]))
            metrics[0, place("relative_update")] = metrics[0, place("update_norm")] / norms
    table = flat_table(rows_of_tokens(tokens)).set_index("layer")
    of_norms = ("update_norm_correlation", "norm_angle_correlation", "norm_angle_slope")
    for name in (f"{name}_{VISUAL}{end}" for name in of_norms for end in ("", "_ci_low")):
        assert table[name].notna().loc[1:].tolist() == [has, True], name
        assert table[name.replace(VISUAL, TEXT)].loc[1:].notna().all()
    assert table.loc[1, "log_norm_std_visual"] == pytest.approx(spread, rel=0.3, abs=1e-12)


EXACT = replace(FAITHFUL, norm_spread=0.0, size_spread=0.0, angle_spread=0.0)
SIZE, ANGLE = EXACT.size[0], EXACT.angle[0]
NORMS = dict(zip((VISUAL, TEXT), EXACT.norm, strict=True))


@pytest.fixture(scope="module")
def exact() -> pd.DataFrame:
    return flat_table(simulated(EXACT, 0)).set_index("layer")


def predicted_by_hand() -> list[float]:
    """Eq. 13, 15 and 16 from the parameters alone."""
    cosine, now, predictions = INITIAL, dict(NORMS), [INITIAL]
    for _ in range(LAYERS):
        for group, norm in now.items():
            along, across = norm + SIZE * np.cos(ANGLE), SIZE * np.sin(ANGLE)
            cosine *= np.cos(np.arctan2(across, along))
            now[group] = float(np.hypot(along, across))
        predictions.append(cosine)
    return predictions


def test_eq_15_follows_the_parameters_and_the_measurement(exact: pd.DataFrame) -> None:
    by_hand = predicted_by_hand()
    # One cosine of random directions deviates by 1 / sqrt(WIDTH); these are means of many.
    error = 3 / np.sqrt(WIDTH * min(TOKENS, SIMULATED))
    for name in ("cross_modal", "compounded_cross_modal"):
        np.testing.assert_allclose(exact[f"{name}_cosine_mean"], by_hand, atol=error)
    one_step = exact["predicted_cross_modal_cosine_mean"].iloc[1:]
    np.testing.assert_allclose(one_step, by_hand[1:], atol=error)
    assert by_hand[-1] < 0.7 * by_hand[0]  # so that an unchanged cosine would not pass


def test_the_norms_explain_the_angles(exact: pd.DataFrame) -> None:
    for layer in range(1, LAYERS + 1):
        row = exact.loc[layer]
        assert row["angle_ratio_error"] == pytest.approx(1.0, abs=1e-3)
        assert row["update_norm_ratio"] == pytest.approx(1.0, abs=1e-5)
        assert row["update_angle_difference"] == pytest.approx(0.0, abs=1e-5)
    assert exact.loc[1, "angle_ratio"] > 3


def test_louder_tokens_turn_less_by_eq_13_and_14() -> None:
    table = flat(layers_table(simulated(EXACT, 0))).set_index(["layer", "group"])
    for group, norm in NORMS.items():
        expected = np.arctan2(SIZE * np.sin(ANGLE), norm + SIZE * np.cos(ANGLE))
        assert table.loc[(1, group), "angle_mean"] == pytest.approx(expected, rel=1e-4)


def test_equal_norms_have_no_lag() -> None:
    table = flat_table(simulated(replace(EXACT, norm=(8.0, 8.0)), 0))
    np.testing.assert_allclose(table["lag_angle_mean"], 0.0, atol=1e-3)
    uneven = flat_table(simulated(EXACT, 0))
    assert uneven["lag_angle_mean"].iloc[-1] > 0.05
