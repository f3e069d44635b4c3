"""Intervals of interface.csv against repeating the rows of each drawn image, draw by draw."""

import numpy as np
import pandas as pd
import pytest
from normprobe.measurements.interface.intervals import interface_intervals
from support.slow_bootstrap import SAMPLES, assert_intervals, slow_draws, use_few_draws

from normprobe.measurements.interface.table import interface_table
from normprobe.schema import (
    DECODER_INPUT,
    PROJECTOR_INPUT,
    PROJECTOR_OUTPUT,
    TEXT,
    VISION_ENCODER,
    VISUAL,
)
from normprobe.statistics.sample_statistics import statistics_of


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    use_few_draws(monkeypatch)


def interface_rows(scale: float) -> pd.DataFrame:
    random = np.random.default_rng(1)
    made = [
        {"sample_id": sample, "image_hash": image, "stage": DECODER_INPUT, "group": group}
        | {"hidden_size": 16, "embedding_scale": scale}
        | statistics_of(random.gamma(3.0, 1.0, (1, random.integers(2, 9))), ["norm"])
        for sample, image in SAMPLES
        for group in ((VISUAL, TEXT) if image else (TEXT,))
    ]
    return pd.DataFrame(made)


EMBEDDING = pd.DataFrame(
    {"stage": "text_embedding_table", "group": ["all_rows", "nonzero_rows"], "tokens": 9}
    | {"hidden_size": 16, "norm_mean": [1.0, 1.5], "norm_std": 0.1}
)


def test_the_scale_of_the_table_is_the_median_of_the_samples() -> None:
    rows = interface_rows(2.0)
    rows.loc[[0, len(rows) - 1], "embedding_scale"] = [1.5, 7.0]
    table = interface_table(rows, EMBEDDING).set_index("stage")
    effective = table.loc["effective_embedding", ["norm_mean", "norm_std"]]
    np.testing.assert_allclose(effective, [[2.0, 0.2], [3.0, 0.2]], rtol=1e-12)


@pytest.mark.parametrize("scale", [2.0, float("nan")])
def test_means_and_ratios_have_their_intervals(scale: float) -> None:
    """With a scale the table's norms are constants; without, the prompts' rows stand for them."""
    rows = interface_rows(scale)
    table = interface_intervals(interface_table(rows, EMBEDDING), rows)
    at_decoder = table[table["stage"] == DECODER_INPUT]
    keys = ["stage", "group"]
    slow = slow_draws(
        rows,
        lambda drawn: interface_table(drawn, EMBEDDING).query("stage == 'decoder_input'"),
        keys,
    )
    columns = ["norm_mean", "norm_sample_mean", "rms_mean", "ratio_to_table", "ratio_to_prompt"]
    assert_intervals(at_decoder, slow, keys, columns)
    weights = table[table["stage"] == "text_embedding_table"]
    assert weights["norm_mean_ci_low"].isna().all()
    assert weights["ratio_to_prompt_ci_low"].notna().all()


@pytest.mark.parametrize("before", [PROJECTOR_INPUT, VISION_ENCODER])
def test_what_the_projector_changes_is_drawn_in_pairs(before: str) -> None:
    """Every image's norm is halved: whatever images are drawn, so is their mean."""
    rows = interface_rows(2.0).query("group == 'visual'").assign(stage=before)
    halved = rows.assign(stage=PROJECTOR_OUTPUT, norm_mean=rows["norm_mean"] / 2)
    both = pd.concat([rows, halved], ignore_index=True)
    table = interface_intervals(interface_table(both, pd.DataFrame()), both)
    column = "ratio_to_before_projector"
    after = table.loc[table["stage"] == PROJECTOR_OUTPUT, table.columns.str.startswith(column)]
    np.testing.assert_allclose(after.to_numpy(), 0.5, rtol=1e-12)
