"""A bootstrap that repeats the sample rows of each drawn image, draw by draw."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import scipy.special
import scipy.stats

from normprobe.statistics import resampling
from normprobe.statistics.bootstrap import FISHER, LINEAR, LOGARITHM, LOGIT, Scale, draw_weights

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
) -> "Slow":
    """The table of the rows as they are, without each unit in turn, and of every draw."""
    draws = draw_weights(len(UNITS), DRAWS).astype(int)
    tables = [table_of(repeated(rows, counts)).set_index(keys) for counts in draws]
    unit = rows["image_hash"].fillna(rows["sample_id"])
    named = [key for key in keys if key in rows]
    held = unit.groupby([rows[key] for key in named]).nunique() if named else None
    return Slow(tables, held)


class Slow(NamedTuple):
    """Tables by draw, and in how many units there is something of each of their rows."""

    tables: list[pd.DataFrame]
    held: "pd.Series[int] | None"


def scale_named(column: str) -> Scale:
    """The scale of an interval, as the name of a flat column tells it."""
    # The same quantity of fewer tokens, or by samples.
    column = column.replace("_without_massive", "").replace("_sample_mean", "_mean")
    if column.startswith(_SPREADS):
        return LOGARITHM
    if column.endswith(_DIFFERENCES) or column.startswith("log_"):
        return LINEAR
    if "cosine" in column or "correlation" in column or column.startswith(_COSINES):
        return FISHER
    if column.endswith(_SHARES):
        return LOGIT
    return LOGARITHM if column.endswith(_SIZES) or "ratio" in column else LINEAR


_SPREADS = ("update_norm_cv", "update_angle_std", "log_norm_std")
_DIFFERENCES = ("_gap", "_difference", "_residual_mean", "_slope", "_std")
_COSINES = ("visual_turn_to", "text_turn_to", "turn_to_turn", "retention")
_SHARES = tuple(
    f"{name}_mean"
    for name in ("massive", "sink", "high_norm", "still", "top1_share", "top10_share")
)
_SIZES = (
    "geometric_mean",
    "norm_mean",
    "rms_mean",
    "update_mean",
    "angle_mean",
    "visual_angle",
    "text_angle",
    "at_text_norm",
)


def ends_of(values: np.ndarray, column: str, units: int) -> np.ndarray:
    """The interval of one number: percentiles on the scale of its flat column, widened by t.

    Args:
        values: as they are, without each unit in turn, and of every draw.
        column: its name.
        units: that hold it.
    """
    forward, back, least, most = _SCALES[scale_named(column)]
    if np.isnan(values[0]) or units < 2:
        return np.full(2, np.nan)
    with np.errstate(all="ignore"):
        turned = forward(values)
    if not (np.isfinite(turned) | np.isnan(values)).all():
        turned, back = values, np.asarray
    ends = np.nanquantile(turned[1 + len(UNITS) :], [0.025, 0.975])
    wider = scipy.stats.t.ppf(0.975, units - 1) / scipy.stats.norm.ppf(0.975)
    wider *= np.sqrt(units / (units - 1))
    return back(turned[0] + (ends - turned[0]) * wider).clip(least, most)


def assert_intervals(table: pd.DataFrame, slow: Slow, keys: list[str], columns: list[str]) -> None:
    """The intervals of a flat table are those of flat tables, draw by draw."""
    found = table.set_index(keys)
    for column in columns:
        drawn = pd.concat([of_draw[column] for of_draw in slow.tables], axis=1)
        for cell in found.index:
            told = found.loc[cell, [f"{column}_ci_low", f"{column}_ci_high"]].astype(float)
            units = len(UNITS) if slow.held is None else slow.held.get(cell, len(UNITS))
            expected = ends_of(drawn.loc[cell].to_numpy(float), column, units)
            np.testing.assert_allclose(told, expected, rtol=1e-7, atol=1e-12, err_msg=column)


_SCALES = {
    LINEAR: (np.asarray, np.asarray, -np.inf, np.inf),
    LOGARITHM: (np.log, np.exp, 0, np.inf),
    FISHER: (np.arctanh, np.tanh, -1, 1),
    LOGIT: (scipy.special.logit, scipy.special.expit, 0, 1),
}
