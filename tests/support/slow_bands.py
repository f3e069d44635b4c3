"""Bands over several numbers of a table, from tables that each leave one image out."""

import math
from collections.abc import Callable, Collection

import numpy as np
import pandas as pd
from scipy.stats import t as student

from normprobe.statistics.resampling import image_units

#: From seven images on signs are flipped instead; tests/statistics has that.
MOST_IMAGES = 6


def freedom_by_hand(shares: list[list[float]]) -> int:
    """Satterthwaite's degrees of freedom, of which chance has its part back."""
    groups, cells = len(shares[0]), len(shares)
    parts = [[share**2 / sum(s**2 for s in cell) for share in cell] for cell in shares]
    held = [sum(cell[image] for cell in parts) / cells for image in range(groups)]
    correlations = [
        sum(a * b for a, b in zip(one, other, strict=True))
        / math.sqrt(sum(a * a for a in one) * sum(b * b for b in other))
        for one in shares
        for other in shares
    ]
    squared = sum(correlation**2 for correlation in correlations) / cells**2
    chance = (1 + 2 * squared) / (groups + 2)
    unequal = max(0.0, sum(part**2 for part in held) - chance)
    return max(1, round(1 / (1 / groups + unequal) - 1))


def assert_bands(
    table: pd.DataFrame,
    rows: pd.DataFrame,
    table_of: Callable[[pd.DataFrame], pd.DataFrame],
    keys: list[str],
    scales: dict[str, str],
    chosen: Collection[object],
) -> None:
    """The bands of a table are those of Bonferroni's t, of deviations by the jackknife, widened.

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
    found_of, all_deviations = {}, []
    for (key, column), estimate in estimates.items():
        left = np.array([table.loc[key, column] for table in without])
        forward, back = SCALES[scales[column]]
        with np.errstate(all="ignore"):
            turned = forward(np.array([estimate, *left]))
        if not np.isfinite(turned).all():
            turned, back = np.array([estimate, *left]), SCALES["linear"][1]
        deviations = [value - np.mean(turned[1:]) for value in turned[1:]]
        found_of[key, column] = turned[0], back
        all_deviations.append(deviations)
    images = len(names)
    moved = [of_cell for of_cell in all_deviations if any(of_cell)]  # the others cannot be missed
    reach = 0.0
    if moved:
        reach = student.ppf(1 - 0.05 / 2 / len(moved), images - 1)
        reach *= student.ppf(0.975, freedom_by_hand(moved)) / student.ppf(0.975, images - 1)
        reach *= np.sqrt(images / (images - 1))
    for ((key, column), (middle, back)), deviations in zip(
        found_of.items(), all_deviations, strict=True
    ):
        error = np.sqrt((images - 1) / images * sum(deviation**2 for deviation in deviations))
        low, high = back(middle - reach * error), back(middle + reach * error)
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
