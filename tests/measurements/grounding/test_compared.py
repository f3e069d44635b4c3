"""What ranks runs of ``grounding``: gaps over layers, with intervals of drawn images."""

import numpy as np
import pandas as pd
import pytest
from support import made_tables
from support.slow_bootstrap import SAMPLES, UNITS, ends_of, slow_draws, use_few_draws

from normprobe.measurements.compare.table import ranking
from normprobe.measurements.grounding.compared import measures


def sample_rows() -> pd.DataFrame:
    random = np.random.default_rng(3)
    return pd.DataFrame(
        {"sample_id": sample, "image_hash": image, "left_out": "", "layer": layer}
        | {"cosine_gap": random.normal(), "score_gap": random.normal() if layer else np.nan}
        for sample, image in SAMPLES
        for layer in range(3)
    )


def table_of(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.groupby("layer")[["cosine_gap", "score_gap"]].mean().reset_index()


def test_gaps_are_means_over_the_layers_behind_the_decoder_input() -> None:
    found = measures(made_tables.grounding())
    assert found["cosine_gap"] == pytest.approx(np.mean([0, 0.02, 0.04, 0.06]))
    assert found["score_gap"] == pytest.approx(np.mean([0, 0.4, 0.8, 1.2]))
    assert found["weight_ratio"] == pytest.approx(np.exp(0.6))
    assert np.isnan(found["score_gap_ci_low"])


def test_intervals_are_those_of_drawn_images(monkeypatch: pytest.MonkeyPatch) -> None:
    use_few_draws(monkeypatch)
    rows = sample_rows()
    left_out = pd.DataFrame(
        [{"sample_id": "h", "image_hash": "w", "left_out": "too small", "layer": 0}]
    )
    found = measures(table_of(rows), pd.concat([rows, left_out], ignore_index=True))
    drawn = slow_draws(rows, table_of, ["layer"]).tables
    for name in ("cosine_gap", "score_gap"):
        values = np.array([table.loc[1:, name].mean() for table in drawn])
        expected = ends_of(values, name, len(UNITS))
        ends = [found[f"{name}_ci_low"], found[f"{name}_ci_high"]]
        np.testing.assert_allclose(ends, expected)
    assert found["weight_ratio_ci_low"] == pytest.approx(np.exp(found["score_gap_ci_low"]))


def test_the_larger_score_gap_ranks_first() -> None:
    small = made_tables.grounding()
    large = small.assign(score_gap=2 * small["score_gap"])
    found = ranking([measures(small), measures(large)], ["small", "large"])
    assert found["run"].tolist() == ["large", "small"]


def test_a_run_without_scores_has_no_rank() -> None:
    found = measures(made_tables.grounding().assign(score_gap=np.nan))
    assert np.isnan(found["weight_ratio"])
    assert found["cosine_gap"] > 0
