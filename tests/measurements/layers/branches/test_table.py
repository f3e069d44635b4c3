"""Intervals and bands of branches.csv, of tokens that are known exactly."""

import numpy as np
import pandas as pd
import pytest
from support.slow_bands import assert_bands
from support.slow_bootstrap import SAMPLES, assert_intervals, slow_draws, use_few_draws
from support.token_rows import tokens_of

from normprobe.measurements.layers.branches import RATIO_METRICS, branches_table
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


def test_geometric_means_are_over_the_tokens_that_a_branch_moves() -> None:
    table = branches_table(branch_rows()).set_index(KEYS)
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


def test_every_mean_and_ratio_has_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    use_few_draws(monkeypatch)
    rows = branch_rows()
    table = branches_table(rows)
    columns = [f"{metric}_{mean}" for metric in BRANCH_METRICS for mean in ("mean", "sample_mean")]
    columns += [f"{metric}_geometric_mean" for metric in RATIO_METRICS]
    columns += [*RATIOS, *(f"{metric}_ratio_to_text" for metric in RATIO_METRICS)]
    assert_intervals(table, slow_draws(rows, branches_table, KEYS), KEYS, columns)


@pytest.mark.parametrize("branch", [ATTENTION, MLP])
@pytest.mark.parametrize("ratio", RATIOS)
def test_each_branch_has_a_band_of_its_own_over_its_layers(branch: str, ratio: str) -> None:
    rows = branch_rows()
    table = branches_table(rows)
    chosen = [(layer, branch, VISUAL) for layer in (1, 2)]
    assert_bands(table, rows, branches_table, KEYS, {ratio: "log"}, chosen)
    text = table[table["group"] == TEXT]
    assert text[[f"{ratio}_band_low", f"{ratio}_band_high"]].isna().all(axis=None)
