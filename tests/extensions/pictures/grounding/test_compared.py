"""What ranks runs of ``grounding`` has the intervals of drawn images."""

import numpy as np
import pandas as pd
import pytest
from support.flat import tidied
from support.slow_bootstrap import SAMPLES, UNITS, ends_of, slow_draws, use_few_draws

from normprobe.extensions.pictures.grounding.compared import measures


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


def test_intervals_are_those_of_drawn_images(monkeypatch: pytest.MonkeyPatch) -> None:
    use_few_draws(monkeypatch)
    rows = sample_rows()
    left_out = pd.DataFrame(
        [{"sample_id": "h", "image_hash": "w", "left_out": "too small", "layer": 0}]
    )
    table = tidied("grounding", table_of(rows))
    found = measures(table, pd.concat([rows, left_out], ignore_index=True))
    drawn = slow_draws(rows, table_of, ["layer"]).tables
    for name in ("cosine_gap", "score_gap"):
        values = np.array([of_draw.loc[1:, name].mean() for of_draw in drawn])
        expected = ends_of(values, name, len(UNITS))
        np.testing.assert_allclose([found[name].low, found[name].high], expected)
    assert found["weight_ratio"].low == pytest.approx(np.exp(found["score_gap"].low))
