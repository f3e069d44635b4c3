"""A bootstrap that repeats the sample rows of each drawn image, draw by draw."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from normprobe.statistics import resampling
from normprobe.statistics.bootstrap import draw_weights

#: Samples and their images.
SAMPLES = [("a", "x"), ("b", "x"), ("c", "y"), ("d", None), ("e", "z"), ("f", "z"), ("g", None)]
UNITS = sorted({image or sample for sample, image in SAMPLES})

DRAWS = 40  # each is a table of its own here


def use_few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the package draw as often as ``slow_draws`` does."""
    monkeypatch.setattr(resampling, "draw_weights", lambda units: draw_weights(units, DRAWS))


def repeated(rows: pd.DataFrame, counts: np.ndarray) -> pd.DataFrame:
    unit = rows["image_hash"].fillna(rows["sample_id"])
    parts = [rows[unit == name] for name, n in zip(UNITS, counts, strict=True) for _ in range(n)]
    return pd.concat(parts, ignore_index=True)


def slow_draws(
    rows: pd.DataFrame, table_of: Callable[[pd.DataFrame], pd.DataFrame], keys: list[str]
):
    """The table of every draw, below each other."""
    draws = draw_weights(len(UNITS), DRAWS).astype(int)
    return pd.concat([table_of(repeated(rows, counts)) for counts in draws]).groupby(keys)


def assert_intervals(table: pd.DataFrame, slow, keys: list[str], columns: list[str]) -> None:
    for column in columns:
        expected = slow[column].quantile([0.025, 0.975]).unstack()
        found = table.set_index(keys)
        for end, level in (("ci_low", 0.025), ("ci_high", 0.975)):
            both = pd.concat([found[f"{column}_{end}"], expected[level]], axis=1)
            np.testing.assert_allclose(both.iloc[:, 0], both.iloc[:, 1], rtol=1e-9, err_msg=column)
