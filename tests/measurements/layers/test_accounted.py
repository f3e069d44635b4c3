"""The parts of the angle ratio against permutations of Eq. 13, written out token by token."""

import re
from dataclasses import replace
from itertools import permutations
from math import atan2, cos, exp, log, sin

import numpy as np
import pandas as pd
import pytest
from support.cases import case_of, model_of
from support.flat import flat, tidied
from support.printed import words_of
from support.slow_bootstrap import SAMPLES, assert_intervals, slow_draws, use_few_draws
from support.tiny_inputs import SPECIAL_IDS
from support.token_rows import rows_of_tokens, tokens_of

from experiments.theory import FAITHFUL, LAYERS, World, simulated
from normprobe import find_parts
from normprobe.measurements import measurement
from normprobe.measurements.layers.accounted import (
    ARITHMETIC,
    CAUSES,
    FASTER,
    LOG_PARTS,
    ONE_LAYER,
    SLOWER,
    accounted_findings,
    accounted_table,
    norms_share,
)
from normprobe.measurements.layers.table import layers_table
from normprobe.model.measured_model import MeasuredModel
from normprobe.report.ratio_words import Estimate
from normprobe.schema import TEXT, TOKEN_METRICS, VISUAL
from normprobe.statistics.bootstrap import LEVEL
from normprobe.tidy import INTERVAL, QUANTITY, select

EXACT = replace(FAITHFUL, norm_spread=0.0, size_spread=0.0, angle_spread=0.0)
TYPES = ("llava", "llava_next", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvl", "idefics3")
TYPES += ("gemma3", "paligemma", "glm4v", "llava_gptj")
Numbers = dict[str, float]


def turned(norm: float, size: float, phi: float) -> float:
    """Eq. 13."""
    return atan2(size * sin(phi), norm + size * cos(phi))


def added(visual: list[float], text: list[float]) -> list[float]:
    """What each of norm, size and phi adds, averaged over the six orders."""
    totals = [0.0, 0.0, 0.0]
    for order in permutations(range(3)):
        now = list(visual)
        for cause in order:
            before = log(turned(*now))
            now[cause] = text[cause]
            totals[cause] += (log(turned(*now)) - before) / 6
    return totals


def expected(visual: dict[str, np.ndarray], text: dict[str, np.ndarray]) -> Numbers:
    """A layer from the metrics of its tokens."""
    angle, causes = {}, {}
    for name, of_tokens in ((VISUAL, visual), (TEXT, text)):
        norm = of_tokens["update_norm"] / of_tokens["relative_update"]
        means = [exp(np.log(values).mean()) for values in (norm, of_tokens["update_norm"])]
        causes[name] = [*means, of_tokens["update_angle"].mean()]
        angle[name] = exp(np.log(of_tokens["angle"]).mean())
    parts = added(causes[VISUAL], causes[TEXT])
    ratio = angle[TEXT] / angle[VISUAL]
    parts.append(log(ratio) - sum(parts))
    at_text_norm = [causes[TEXT][0], *causes[VISUAL][1:]]
    return {
        "angle_ratio": ratio,
        **{f"log_{part}": value for part, value in zip(LOG_PARTS, parts, strict=True)},
        "visual_angle": angle[VISUAL],
        "text_angle": angle[TEXT],
        "visual_angle_at_text_norm": angle[VISUAL]
        * turned(*at_text_norm)
        / turned(*causes[VISUAL]),
    }


def shares(layers: list[Numbers]) -> Numbers:
    """What is told of some layers together."""
    wholes = [log(layer["angle_ratio"]) for layer in layers]
    missed = [whole - layer["log_norm"] for whole, layer in zip(wholes, layers, strict=True)]
    return {
        **{
            f"{part}_share": sum(n[f"log_{part}"] for n in layers) / sum(wholes)
            for part in LOG_PARTS
        },
        "norm_share_absolute": 1 - sum(map(abs, missed)) / sum(map(abs, wholes)),
    }


def layers_in(ranges: str) -> list[int]:
    """Of "1-3, 6"."""
    ends = [[int(end) for end in part.split("-")] for part in ranges.split(", ")]
    return [layer for end in ends for layer in range(end[0], end[-1] + 1)]


def table_of(rows: pd.DataFrame) -> pd.DataFrame:
    """accounted.csv of sample rows as a run has them, flat."""
    return flat(accounted_table(rows, layers_table(rows)))


SLOW, FAST, OPEN, ALIKE = (0.4, 0.3, 0.5), (2.0, 1.5, 2.5), (0.5, 0.3, 1.1), (0.9, 0.85, 0.95)


def layers_of(*states: tuple[float, float, float]) -> pd.DataFrame:
    """A layers.csv that says how fast visual tokens turn: the ratio and its band, by layer."""
    ends = [f"angle_geometric_ratio_to_text{end}" for end in ("", "_band_low", "_band_high")]
    table = pd.DataFrame(states, columns=ends)
    # What the interval of one layer alone says, and the ratio of arithmetic means, has no say.
    table[ends[0] + "_ci_low"], table[ends[0] + "_ci_high"] = table[ends[0]], table[ends[0]]
    table["angle_ratio_to_text"] = 1.0
    visual = table.assign(layer=range(1, len(table) + 1), group=VISUAL)
    both = pd.concat([visual, visual.assign(group=TEXT, **dict.fromkeys(ends, 1.0))])
    return tidied("layers", both)


def number(table: pd.DataFrame, name: str) -> pd.Series:
    """A number of a flat table, NaN where the tidy one has no row of it."""
    return table[name] if name in table else pd.Series(np.nan, table.index)


def by_layer(table: pd.DataFrame) -> pd.DataFrame:
    rows = table[table["scope"] == ONE_LAYER]
    return rows.set_index(rows["layers"].astype(int))


@pytest.mark.parametrize("model_type", TYPES)
def test_every_number_of_a_model(model_type: str) -> None:
    case, model = case_of(model_type), model_of(model_type)
    measured = MeasuredModel(model, find_parts(model), SPECIAL_IDS)
    rows = measurement("layers").sample_rows(measured, case.inputs).assign(image_hash=None)
    table = table_of(rows)
    found = by_layer(table)
    numbers = {}
    for layer in range(1, len(case.states.layers) + 1):
        visual, text = (
            {
                name: np.concatenate(
                    [seen.metrics[name] for seen in case.observations[layer, group]]
                )
                for name in ("angle", "update_norm", "relative_update", "update_angle")
            }
            for group in (VISUAL, TEXT)
        )
        numbers[layer] = expected(visual, text)
        for name, value in numbers[layer].items():
            assert found.loc[layer, name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    for row in table[table["scope"] != ONE_LAYER].to_dict("records"):
        of_row = [numbers[layer] for layer in layers_in(row["layers"])]
        for name, value in shares(of_row).items():
            assert row[name] == pytest.approx(value, rel=1e-3, abs=1e-3), name


def test_it_is_all_the_norms_where_only_norms_differ() -> None:
    table = table_of(simulated(EXACT, 0))
    np.testing.assert_allclose(table["norm_share"], 1.0, atol=2e-3)
    together = table[table["scope"] == "slower"].iloc[0]
    assert together["layers"] == f"1-{LAYERS}"
    # At the text's norm, visual tokens would turn as far as text tokens do.
    layers = by_layer(table)
    np.testing.assert_allclose(layers["visual_angle_at_text_norm"], layers["text_angle"], rtol=2e-3)


@pytest.mark.parametrize(
    ("world", "cause"),
    [
        (replace(EXACT, norm=(8.0, 8.0), size=(1.5, 3.0)), "update_norm"),
        (replace(EXACT, norm=(8.0, 8.0), angle=(0.7, 1.4)), "update_angle"),
    ],
)
def test_the_norms_have_no_share_where_only_updates_differ(world: World, cause: str) -> None:
    first = by_layer(table_of(simulated(world, 0))).loc[1]
    assert first["norm_share"] == pytest.approx(0.0, abs=1e-4)
    assert first[f"{cause}_share"] == pytest.approx(1.0, abs=2e-3)


def test_the_shares_add_up() -> None:
    world = replace(FAITHFUL, size=(2.0, 3.0), angle=(1.2, 1.4))
    table = table_of(simulated(world, 0))
    shares = table[[f"{part}_share" for part in LOG_PARTS]]
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    assert (shares[[f"{cause}_share" for cause in CAUSES]] > 0.02).all(axis=None)
    logs = table[[f"log_{part}" for part in LOG_PARTS]].sum(axis=1)
    np.testing.assert_allclose(logs, np.log(table["angle_ratio"]))


def test_a_share_of_nothing_is_empty() -> None:
    table = table_of(simulated(replace(FAITHFUL, norm=(8.0, 8.0)), 0))
    assert set(table["scope"]) == {ONE_LAYER}
    assert not {f"{part}_share" for part in LOG_PARTS} & {*table}
    assert table[[f"log_{part}" for part in LOG_PARTS]].notna().all(axis=None)


def test_a_layer_whose_interval_holds_1_has_no_share() -> None:
    """Of three images two turn visual tokens more slowly, and one more quickly."""
    worlds = (EXACT, EXACT, replace(EXACT, norm=EXACT.norm[::-1]))
    parts = []
    for number, world in enumerate(worlds):
        part = simulated(world, number)
        part = part[part["sample_id"] == part["sample_id"].iloc[0]]
        parts.append(part.assign(sample_id=str(number), image_hash=str(number)))
    table = table_of(pd.concat(parts, ignore_index=True))
    assert (table["angle_ratio"] > 1.2).all()
    assert (table["angle_ratio_ci_low"] < 1).all()
    assert set(table["scope"]) == {ONE_LAYER}
    assert not {f"{part}_share" for part in LOG_PARTS} & {*table}


@pytest.mark.parametrize(
    ("states", "scopes"),
    [
        ((SLOW, SLOW), {SLOWER: "1-2"}),
        ((SLOW, OPEN), {SLOWER: "1"}),
        ((OPEN, SLOW), {SLOWER: "2"}),
        ((FAST, SLOW), {SLOWER: "2", FASTER: "1"}),
        ((ALIKE, OPEN), {}),
        ((SLOW,), {SLOWER: "1"}),  # layers.csv does not know the second
    ],
)
def test_layers_csv_says_which_layers_are_told(states, scopes: dict[str, str]) -> None:
    """The layers of "why" are the layers of "that"."""
    table = flat(accounted_table(rows_of_tokens(tokens_of(0, SAMPLES)), layers_of(*states)))
    together = table[table["scope"] != ONE_LAYER]
    assert dict(zip(together["scope"], together["layers"], strict=True)) == scopes
    told = {layer for ranges in scopes.values() for layer in layers_in(ranges)}
    layers = by_layer(table)
    for name in (*(f"{part}_share" for part in LOG_PARTS), "norm_share_absolute"):
        assert number(layers, name).notna().tolist() == [layer in told for layer in (1, 2)]
    assert layers[["angle_ratio", "log_norm"]].notna().all(axis=None)


def test_over_and_undershoot_do_not_cancel_in_the_absolute_share() -> None:
    """Norms go too far where visual updates are larger, and not far enough where smaller."""
    phi, norms = 1.3, {VISUAL: 20.0, TEXT: 4.0}
    sizes = {VISUAL: (2.0, 0.5), TEXT: (1.0, 1.0)}
    tokens, numbers = {}, []
    for group in (VISUAL, TEXT):
        n, size = norms[group], np.array(sizes[group])
        across, along = size * np.sin(phi), n + size * np.cos(phi)
        angle = np.arctan2(across, along)
        phis = np.full(2, phi)
        metrics = [np.hypot(across, along), np.cos(angle), angle, size, size / n, phis]
        tokens["a", group] = np.stack(metrics, axis=1)[:, :, None]
    for layer in (0, 1):
        visual, text = (
            dict(zip(TOKEN_METRICS, tokens["a", group][layer], strict=True))
            for group in (VISUAL, TEXT)
        )
        numbers.append(expected(visual, text))
    table = flat(accounted_table(rows_of_tokens(tokens), layers_of(SLOW, SLOW)))
    (row,) = table[table["scope"] == SLOWER].to_dict("records")
    for name, value in shares(numbers).items():
        assert row[name] == pytest.approx(value), name
    each = by_layer(table)["norm_share"]
    assert each[1] > 1 > each[2]
    assert row["norm_share_absolute"] < row["norm_share"] - 0.1
    np.testing.assert_allclose(by_layer(table)["norm_share_absolute"], 1 - np.abs(1 - each))


def test_faster_visual_tokens_have_a_row_of_their_own() -> None:
    table = table_of(simulated(replace(FAITHFUL, norm=(4.0, 20.0)), 0))
    (row,) = table[table["scope"] != ONE_LAYER].itertuples()
    assert (row.scope, row.layers) == ("faster", f"1-{LAYERS}")
    assert row.angle_ratio < 1
    assert row.norm_share == pytest.approx(1.0, abs=0.05)


def test_intervals_are_those_of_repeating_the_images(monkeypatch: pytest.MonkeyPatch) -> None:
    use_few_draws(monkeypatch)
    rows = rows_of_tokens(tokens_of(0, SAMPLES))
    keys, layers = ["scope", "layers"], layers_of(SLOW, SLOW)
    columns = ["angle_ratio", "norm_share_absolute", "visual_angle_at_text_norm"]
    columns += [name.format(part) for name in ("log_{}", "{}_share") for part in LOG_PARTS]
    slow = slow_draws(rows, lambda drawn: flat(accounted_table(drawn, layers)), keys)
    assert_intervals(flat(accounted_table(rows, layers)), slow, keys, columns)


def test_one_image_has_no_interval() -> None:
    rows = rows_of_tokens(tokens_of(0, SAMPLES[:2]))
    table = accounted_table(rows, layers_of(SLOW, SLOW))
    assert set(table["scope"]) == {ONE_LAYER, SLOWER}
    assert not {*INTERVAL} & {*table}
    ratios = select(table, "angle_ratio")
    assert len(ratios) == 3 and ratios["mean"].notna().all()


def test_without_pairs_there_are_no_rows() -> None:
    rows = rows_of_tokens(tokens_of(0, SAMPLES))
    assert accounted_table(rows[rows["group"] == TEXT], layers_of(SLOW, SLOW)).empty


def true_share(world: World) -> float:
    """The share of the norms in layer 1, of a million tokens of each modality."""
    random = np.random.default_rng(0)
    made = []
    for place in (0, 1):
        noise = random.standard_normal((3, 1_000_000))
        norm = world.norm[place] * np.exp(world.norm_spread * noise[0])
        size = np.abs(world.size[place] * (1 + world.size_spread * noise[1]))
        phi = world.angle[place] + world.angle_spread * noise[2]
        angle = np.arctan2(size * np.sin(phi), norm + size * np.cos(phi))
        made.append(
            {
                "angle": angle,
                "update_norm": size,
                "relative_update": size / norm,
                "update_angle": phi,
            }
        )
    numbers = expected(*made)
    return numbers["log_norm"] / log(numbers["angle_ratio"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "world",
    [
        FAITHFUL,
        replace(FAITHFUL, size=(2.0, 3.0), size_spread=0.2),
        replace(FAITHFUL, norm=(8.0, 6.0), size=(1.5, 3.0), angle_spread=0.2),
    ],
)
def test_the_intervals_cover_the_true_share(world: World) -> None:
    truth, seeds = true_share(world), 60
    covered = 0
    for seed in range(seeds):
        first = by_layer(table_of(simulated(world, seed))).loc[1]
        covered += first["norm_share_ci_low"] <= truth <= first["norm_share_ci_high"]
    assert 0.88 <= covered / seeds <= 0.99, LEVEL


def test_the_share_of_a_model_is_that_of_all_its_slower_layers() -> None:
    ends = [f"norm_share{end}" for end in ("", "_ci_low", "_ci_high")]
    table = pd.DataFrame([[0.1] * 3, [0.8, 0.7, 0.9], [0.3] * 3], columns=ends)
    table = tidied("accounted", table.assign(scope=[ONE_LAYER, SLOWER, FASTER]))
    assert norms_share(table) == Estimate(0.8, 0.7, 0.9)
    assert np.isnan(norms_share(table[table["scope"] != SLOWER]).value)
    assert np.isnan(norms_share(NOTHING).value)


SHARES = (0.81, 0.12, 0.03, 0.04)
ENDS = ("", "_ci_low", "_ci_high")
#: accounted.csv of a run without visual tokens.
NOTHING = pd.DataFrame(columns=["scope", "layers", QUANTITY])


def accounted(
    *scopes: str, layers: str = "1-2", ratio: float = 3.1, shares: tuple[float, ...] = SHARES
) -> pd.DataFrame:
    row: dict[str, object] = {"layers": layers, "angle_ratio": ratio}
    row |= {"angle_ratio_ci_low": 0.9 * ratio, "angle_ratio_ci_high": 1.1 * ratio}
    for part, share in zip(LOG_PARTS, shares, strict=True):
        row[f"{part}_share"] = share
        row |= {f"{part}_share_ci_low": share - 0.02, f"{part}_share_ci_high": share + 0.02}
    row |= {f"norm_share_absolute{end}": n for end, n in zip(ENDS, (0.7, 0.6, 0.8), strict=True)}
    table = pd.DataFrame([{"scope": scope, **row} for scope in ("layer", *scopes)])
    return tidied("accounted", table)


def said(table: pd.DataFrame) -> str:
    return words_of(accounted_findings(table)).removesuffix(ARITHMETIC).strip()


def test_the_shares_with_their_intervals() -> None:
    assert said(accounted("slower")).splitlines() == [
        "By Eq. 13, norms account for 81 % [79, 83] of turning more slowly in layers 1-2.",
        "Layer by layer, over- and undershoot not cancelled: 70 % [60, 80].",
        "By Eq. 13, update sizes 12 %, update directions 3 %, the rest 4 %.",
    ]
    assert accounted_findings(accounted("slower"))[-1].words == ARITHMETIC


def test_the_share_without_cancelling_is_told_where_it_is_another() -> None:
    table = accounted("slower")
    table.loc[table[QUANTITY] == "norm_share_absolute", "mean"] = 0.81
    assert "cancelled" not in said(table)


def test_an_identity_is_no_cause() -> None:
    words = said(accounted("slower")).lower()
    assert not any(word in words for word in ("explain", "why", "cause", "because", "due to"))


@pytest.mark.parametrize(("layers", "several"), [("3", False), ("1-2", True), ("1, 4", True)])
def test_in_one_layer_nothing_can_cancel(layers: str, several: bool) -> None:
    assert ("cancel" in said(accounted("slower", layers=layers))) == several


def test_a_part_that_works_against_it_is_called_that() -> None:
    sentence = said(accounted("slower", shares=(1.3, -0.3, 0.0, 0.0)))
    assert "norms account for 130 % [128, 132] of" in sentence
    assert "update sizes -30 %, " in sentence
    assert sentence.endswith("; below 0: against it.")


@pytest.mark.parametrize(
    ("share", "interval", "against"),
    [
        (-0.01, (-0.03, 0.01), False),  # an interval that holds 0 works neither way
        (-0.03, (-0.05, -0.01), True),
        (-0.012, (-0.02, -0.003), False),  # printed as 0
        (-0.01, (np.nan, np.nan), True),  # one image
        (-0.004, (np.nan, np.nan), False),
        (0.01, (np.nan, np.nan), False),
    ],
)
def test_what_is_printed_below_0_is_against_it(
    share: float, interval: tuple[float, float], against: bool
) -> None:
    table = accounted("slower", shares=(1.0 - share, share, 0.0, 0.0))
    table.loc[table[QUANTITY] == "update_norm_share", [*INTERVAL]] = interval
    sentence = said(table)
    assert ("against it" in sentence) == against
    assert not re.search(r"-0\b", sentence)


def test_faster_visual_tokens_are_told_by_the_inverse_ratio() -> None:
    sentence = said(accounted("faster", layers="3", ratio=0.5))
    assert sentence.startswith(
        "By Eq. 13, norms account for 81 % [79, 83] of turning more quickly in layer 3."
    )


def test_slower_and_faster_layers_have_findings_each() -> None:
    slower, faster = accounted("slower"), accounted("faster", layers="3", ratio=0.5)
    assert said(pd.concat([slower, faster])) == f"{said(slower)}\n{said(faster)}"


@pytest.mark.parametrize(
    ("scope", "ratio", "shown"),
    [("slower", 1.2, True), ("slower", 1.1, False), ("faster", 0.85, True), ("faster", 1.2, False)],
)
def test_no_interval_that_holds_1_is_told_of_slower_layers(
    scope: str, ratio: float, shown: bool
) -> None:
    """Samples without an image have a say in the layers, and none in Eq. 13."""
    sentence = said(accounted(scope, ratio=ratio))
    assert sentence.startswith("By Eq. 13, norms account for") == shown
    way = {"slower": "more slowly", "faster": "more quickly"}[scope]
    assert sentence.endswith(f"turning {way} is inconclusive in layers 1-2.") != shown


def test_where_nothing_differs_nothing_is_said() -> None:
    assert accounted_findings(accounted()) == accounted_findings(NOTHING) == []


def test_one_image_has_no_brackets() -> None:
    sentence = said(accounted("slower").drop(columns=[*INTERVAL]))
    assert "norms account for 81 % of turning more slowly in layers 1-2." in sentence
    assert "[" not in sentence
