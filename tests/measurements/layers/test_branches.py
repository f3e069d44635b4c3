"""branches.csv of tokens that are known exactly, its intervals and bands, and what it says."""

import numpy as np
import pandas as pd
import pytest
from support.flat import flat, tidied
from support.printed import words_of
from support.slow_bands import assert_bands
from support.slow_bootstrap import SAMPLES, assert_intervals, slow_draws, use_few_draws
from support.token_rows import tokens_of

from normprobe.measurements.layers.branches import (
    RATIO_METRICS,
    branches_findings,
    branches_table,
)
from normprobe.schema import BRANCH_METRICS, TEXT, TOKEN_METRICS, VISUAL
from normprobe.statistics.sample_statistics import statistics_by_layer

KEYS = ["layer", "branch", "group"]
ATTENTION, MLP = "attention", "mlp"
RATIOS = [f"{metric}_geometric_ratio_to_text" for metric in RATIO_METRICS]


def tokens_of_branches() -> dict[tuple[str, str], dict[str, np.ndarray]]:
    """``[2 layers, BRANCH_METRICS, tokens]`` by sample and group, and by branch.

    The numbers of a token go their own ways, and some branches add nothing to the first token.
    """
    random = np.random.default_rng(2)
    of_metrics = [TOKEN_METRICS.index(metric) for metric in BRANCH_METRICS]
    made = {}
    for key, tokens in tokens_of(0, SAMPLES).items():
        values = tokens[:, of_metrics]
        made[key] = {
            branch: values * random.lognormal(0, 0.5, values.shape) * random.lognormal(0, 0.5)
            for branch in (ATTENTION, MLP)
        }
        made[key][MLP][0, :, 0] *= random.integers(2)
    return made


def branch_rows() -> pd.DataFrame:
    made = []
    for (sample, group), by_branch in tokens_of_branches().items():
        row = {"layer": [1, 2], "sample_id": sample, "group": group}
        for branch, values in by_branch.items():
            row |= statistics_by_layer(values, [f"{branch}_{name}" for name in BRANCH_METRICS])
        made.append(pd.DataFrame(row))
    rows = pd.concat(made, ignore_index=True)
    return rows.assign(image_hash=rows["sample_id"].map(dict(SAMPLES)))


def flat_table(rows: pd.DataFrame) -> pd.DataFrame:
    """branches.csv of sample rows, flat."""
    return flat(branches_table(rows))


def test_geometric_means_are_over_the_tokens_that_a_branch_moves() -> None:
    table = flat_table(branch_rows()).set_index(KEYS)
    tokens, still = tokens_of_branches(), 0
    for layer, branch, group in table.index:
        of_group = [by_branch[branch] for (_, name), by_branch in tokens.items() if name == group]
        values = np.concatenate(of_group, axis=-1)[layer - 1]
        for metric in RATIO_METRICS:
            of_metric = values[BRANCH_METRICS.index(metric)]
            still += (of_metric == 0).sum()
            mean = np.exp(np.log(of_metric[of_metric > 0]).mean())
            row = table.loc[layer, branch, group]
            assert row[f"{metric}_geometric_mean"] == pytest.approx(mean)
            assert row[f"{metric}_mean"] == pytest.approx(of_metric.mean())
            text = table.loc[layer, branch, TEXT]
            for kind in ("", "geometric_"):
                ratio = row[f"{metric}_{kind}mean"] / text[f"{metric}_{kind}mean"]
                assert row[f"{metric}_{kind}ratio_to_text"] == pytest.approx(ratio)
    assert still > 4


def test_rows_without_branches_have_no_table() -> None:
    rows = branch_rows()
    assert branches_table(rows[[name for name in rows if "_" not in name]]).empty


def test_every_mean_and_ratio_has_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    use_few_draws(monkeypatch)
    rows = branch_rows()
    table = flat_table(rows)
    columns = [f"{metric}_{mean}" for metric in BRANCH_METRICS for mean in ("mean", "sample_mean")]
    columns += [f"{metric}_geometric_mean" for metric in RATIO_METRICS]
    columns += [*RATIOS, *(f"{metric}_ratio_to_text" for metric in RATIO_METRICS)]
    assert_intervals(table, slow_draws(rows, flat_table, KEYS), KEYS, columns)


@pytest.mark.parametrize("branch", [ATTENTION, MLP])
@pytest.mark.parametrize("ratio", RATIOS)
def test_each_branch_has_a_band_of_its_own_over_its_layers(branch: str, ratio: str) -> None:
    rows = branch_rows()
    table = flat_table(rows)
    chosen = [(layer, branch, VISUAL) for layer in (1, 2)]
    assert_bands(table, rows, flat_table, KEYS, {ratio: "log"}, chosen)
    text = table[table["group"] == TEXT]
    assert text[[f"{ratio}_band_low", f"{ratio}_band_high"]].isna().all(axis=None)


def rows(branch: str, group: str, *layers: tuple[float, float], spread: float = 0.1) -> list[dict]:
    """One row a layer: how large updates are, and how fast tokens turn, against text."""
    return [
        {"layer": number, "branch": branch, "group": group}
        | {
            f"{metric}_geometric_ratio_to_text{end}": value * factor
            for metric, value in (("update_norm", size), ("angle", turn))
            for end, factor in (("", 1), ("_band_low", 1 - spread), ("_band_high", 1 + spread))
        }
        # Neither arithmetic means nor the interval of one layer alone are told.
        | {
            f"{metric}_{kind}": 77.0
            for metric in ("update_norm", "angle")
            for kind in ("ratio_to_text", "geometric_ratio_to_text_ci_low")
        }
        for number, (size, turn) in enumerate(layers, start=1)
    ]


def said(made: list[dict[str, object]]) -> list[str]:
    return words_of(branches_findings(tidied("branches", pd.DataFrame(made)))).splitlines()


def test_each_branch_has_its_findings() -> None:
    made = rows("attention", "visual", (1.0, 0.5), (1.0, 0.25))
    made += rows("mlp", "visual", (3.0, 0.1), (1.0, 1.0)) + rows("mlp", "text", (1, 1), (1, 1))
    assert said(made) == [
        "Size of what the attention adds to visual and text tokens: about the same in layers 1-2 "
        "(1.00 x).",
        "The attention turns visual tokens more slowly than text tokens in layers 1-2: 2.0 to 4.0 "
        "x [3.6, 4.4] (layer 2).",
        "What the MLP adds is larger for visual than for text tokens in layer 1: 3.0 x [2.7, 3.3].",
        "Size of what the MLP adds to visual and text tokens: about the same in layer 2 (1.00 x).",
        "The MLP turns visual tokens more slowly than text tokens in layer 1: 10.0 x [9.1, 11.1].",
        "Angle by which the MLP turns visual and text tokens: about the same in layer 2 (1.00 x).",
    ]


def test_without_text_or_without_visual_tokens_nothing_is_said() -> None:
    assert said(rows("mlp", "visual", (float("nan"), float("nan")))) == []
    assert said(rows("mlp", "text", (1, 1))) == []


def test_a_band_that_holds_1_and_more_is_inconclusive() -> None:
    assert said(rows("mlp", "visual", (1.5, 0.5), (1.5, 0.9), spread=0.4)) == [
        "Size of what the MLP adds to visual and text tokens: inconclusive in layers 1-2.",
        "The MLP turns visual tokens more slowly than text tokens in layer 1: 2.00 x [1.43, 3.33].",
        "Angle by which the MLP turns visual and text tokens: inconclusive in layer 2.",
    ]
