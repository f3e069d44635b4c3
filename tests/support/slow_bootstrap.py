"""A bootstrap that repeats the sample rows of each drawn image, draw by draw."""

import re
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm as normal
from scipy.stats import t as student

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
    """The table of every draw, below each other; the first level of the index numbers the draws."""
    draws = draw_weights(len(UNITS), DRAWS).astype(int)
    tables = [table_of(repeated(rows, counts)) for counts in draws]
    return pd.concat(tables, keys=range(len(tables)), names=["of draws"]).groupby(keys)


def assert_intervals(table: pd.DataFrame, slow, keys: list[str], columns: list[str]) -> None:
    """Percentiles of the random draws, moved away from the estimate as t asks for."""
    found = table.set_index(keys)
    units = len(UNITS)
    widening = student.ppf(0.975, units - 1) / normal.ppf(0.975) * np.sqrt(units / (units - 1))
    for column in columns:
        for key, of_draws in slow[column]:
            forward, back, least, most = scale_of(column)
            numbers = of_draws.droplevel([*range(1, of_draws.index.nlevels)])
            if not np.isfinite(numbers[0]):
                expected = np.array([np.nan, np.nan])
            else:
                with np.errstate(all="ignore"):
                    turned = forward(numbers.to_numpy())
                if not np.isfinite(turned[~np.isnan(numbers)]).all():
                    turned, back = numbers.to_numpy(), np.asarray
                inside = np.nanquantile(turned[numbers.index > units], [0.025, 0.975])
                expected = back(turned[0] + widening * (inside - turned[0])).clip(least, most)
            ends = found.loc[key if len(keys) > 1 else key[0] if isinstance(key, tuple) else key]
            ends = [ends[f"{column}_ci_{end}"] for end in ("low", "high")]
            message = f"{key} {column}"
            np.testing.assert_allclose(ends, expected, rtol=1e-7, atol=1e-12, err_msg=message)


def scale_of(column: str):
    """Ratios and sizes by their logarithm, cosines by Fisher's, shares by the logit."""
    if re.search(r"_(gap|difference|residual_mean|slope|std)$|^log_", column):
        return np.asarray, np.asarray, -np.inf, np.inf
    if re.search(r"cosine|correlation|^retention|^visual_turn_|^text_turn_|^turn_to_turn", column):
        return np.arctanh, np.tanh, -1, 1
    if re.fullmatch(r"(massive|sink|high_norm|still|top10?_share)_mean", column):
        return (lambda p: np.log(p / (1 - p))), (lambda x: 1 / (1 + np.exp(-x))), 0, 1
    if re.search(r"ratio|(norm|rms|update|angle|geometric)(_without_massive)?_mean$", column):
        return np.log, np.exp, 0, np.inf
    if re.search(r"norm_sample_mean$", column):
        return np.log, np.exp, 0, np.inf
    return np.asarray, np.asarray, -np.inf, np.inf
