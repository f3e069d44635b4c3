"""Bands over several numbers of a table, from tables that each leave one image out."""

from collections.abc import Callable, Collection

import numpy as np
import pandas as pd
from scipy.stats import t as student

from normprobe.statistics.resampling import image_units

#: From six images on signs are flipped instead; tests/statistics has that.
MOST_IMAGES = 5


def assert_bands(
    table: pd.DataFrame,
    rows: pd.DataFrame,
    table_of: Callable[[pd.DataFrame], pd.DataFrame],
    keys: list[str],
    scales: dict[str, str],
    chosen: Collection[object],
) -> None:
    """The bands of a table are those of Bonferroni's t, of deviations by the jackknife.

    Args:
        table: with ``_band_`` columns of all of ``scales``.
        rows: sample rows it was made of.
        table_of: sample rows to such a table.
        keys: columns that name its rows.
        scales: by column ``log``, ``fisher``, ``logit`` or ``linear``.
        chosen: the rows that have one band together; the others are not looked at.
    """
    units = image_units(rows)
    names = sorted(set(units))
    assert 1 < len(names) <= MOST_IMAGES
    without = [table_of(rows[units != name]).set_index(keys) for name in names]
    whole = table.set_index(keys)
    estimates = {
        (key, column): whole.loc[key, column]
        for key in chosen
        for column in scales
        if np.isfinite(whole.loc[key, column])
    }
    assert estimates
    reach = student.ppf(1 - 0.05 / 2 / len(estimates), len(names) - 1)
    for (key, column), estimate in estimates.items():
        left = np.array([table.loc[key, column] for table in without])
        forward, back = SCALES[scales[column]]
        with np.errstate(all="ignore"):
            turned = forward(np.array([estimate, *left]))
        if not np.isfinite(turned).all():
            turned, back = np.array([estimate, *left]), SCALES["linear"][1]
        deviations = [value - np.mean(turned[1:]) for value in turned[1:]]
        share = (len(names) - 1) / len(names)
        error = np.sqrt(share * sum(deviation**2 for deviation in deviations))
        low, high = back(turned[0] - reach * error), back(turned[0] + reach * error)
        if scales[column] != "linear":
            low, high = np.clip([low, high], *LIMITS[scales[column]])
        row = whole.loc[key]
        # A band is never inside of the interval of one number alone.
        expected = min(low, row[f"{column}_ci_low"]), max(high, row[f"{column}_ci_high"])
        found = row[f"{column}_band_low"], row[f"{column}_band_high"]
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9, err_msg=f"{key} {column}")


SCALES = {
    "linear": (np.asarray, np.asarray),
    "log": (np.log, np.exp),
    "fisher": (lambda r: np.log((1 + r) / (1 - r)) / 2, np.tanh),
    "logit": (lambda p: np.log(p / (1 - p)), lambda x: 1 / (1 + np.exp(-x))),
}
LIMITS = {"log": (0, np.inf), "fisher": (-1, 1), "logit": (0, 1)}
