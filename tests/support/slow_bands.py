"""Bands over several numbers of a table, from tables that each leave one image out."""

import math
from collections.abc import Callable, Collection

import numpy as np
import pandas as pd
from scipy.stats import t as student

from normprobe.statistics.bootstrap import draw_weights
from normprobe.statistics.resampling import image_units


def quantile_by_hand(values: list[float], share: float) -> float:
    """Linear between the two nearest of the ordered values."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    lower = math.floor(place)
    upper = min(lower + 1, len(ordered) - 1)
    return ordered[lower] + (place - lower) * (ordered[upper] - ordered[lower])


def t_by_hand(values: list[float]) -> float:
    """|t| of the mean of some numbers; 0 where they are all alike."""
    mean = sum(values) / len(values)
    squares = sum((value - mean) ** 2 for value in values)
    if squares <= 1e-9 * sum(value**2 for value in values):
        return 0.0
    return abs(mean) / math.sqrt(squares / (len(values) - 1) / len(values))


def largest_t_by_hand(cells: list[list[float]], rate: float) -> list[float]:
    """How many standard errors the band reaches from each cell, image by image, draw by draw."""
    images = len(cells[0])
    bonferroni = student.ppf(1 - rate / 2 / len(cells), images - 1)
    if images < 5:
        return [bonferroni * math.sqrt(images / (images - 1))] * len(cells)
    centred = [[value - sum(cell) / images for value in cell] for cell in cells]
    draws = []
    for counts in draw_weights(images)[1 + min(images, 200) :].astype(int).tolist():
        if sum(count > 0 for count in counts) >= images / 2:
            taken = [image for image, count in enumerate(counts) for _ in range(count)]
            draws.append([t_by_hand([cell[image] for image in taken]) for cell in centred])
    typical = [quantile_by_hand([ts[cell] for ts in draws], 0.95) for cell in range(len(cells))]
    moved = [cell for cell, t in enumerate(typical) if t > 0]
    if not moved:
        return [bonferroni] * len(cells)
    least = quantile_by_hand([typical[cell] for cell in moved], 0.9)
    scales = {cell: max(typical[cell], least) for cell in moved}
    largest = [max(ts[cell] / scale for cell, scale in scales.items()) for ts in draws]
    together = quantile_by_hand(largest, 1 - rate)
    few = rate * len(draws) < 5  # draws beyond that quantile
    found = [
        scales[cell] * together if cell in scales else bonferroni for cell in range(len(cells))
    ]
    return [max(reach, bonferroni) if few else reach for reach in found]


def half_widths_by_hand(shares: list[list[float]], holds: list[list[bool]]) -> list[float]:
    """How far a band reaches from each cell, of each image's shares, by which images hold it."""
    known = [
        cell for cell, of_images in enumerate(shares) if any(of_images) and sum(holds[cell]) > 1
    ]
    sets = {tuple(holds[cell]) for cell in known}
    found = [0.0 if sum(of_cell) > 1 else math.nan for of_cell in holds]
    for held in sets:
        cells = [cell for cell in known if tuple(holds[cell]) == held]
        parts = [[s for s, has in zip(shares[c], held, strict=True) if has] for c in cells]
        reaches = largest_t_by_hand(parts, 0.05 * len(cells) / len(known))
        images = sum(held)
        for cell, reach in zip(cells, reaches, strict=True):
            squares = sum(share**2 for share in shares[cell])
            found[cell] = reach * math.sqrt((images - 1) / images * squares)
    return found


def assert_bands(
    table: pd.DataFrame,
    rows: pd.DataFrame,
    table_of: Callable[[pd.DataFrame], pd.DataFrame],
    keys: list[str],
    scales: dict[str, str],
    chosen: Collection[object],
    without_it: Collection[str] = (),
) -> None:
    """The bands of a table reach as far as the largest t of images that are drawn by hand.

    Args:
        table: with ``_band_`` columns of all of ``scales``.
        rows: sample rows it was made of.
        table_of: sample rows to such a table.
        keys: columns that name its rows.
        scales: by column ``log``, ``fisher``, ``logit`` or ``linear``.
        chosen: the rows that have one band together; the others are not looked at.
        without_it: images that hold nothing of these.
    """
    units = image_units(rows)
    names = sorted(set(units))
    assert len(names) > 1
    without = [table_of(rows[units != name]).set_index(keys) for name in names]
    whole = table.set_index(keys)
    estimates = {
        (key, column): whole.loc[key, column]
        for key in chosen
        for column in scales
        if np.isfinite(whole.loc[key, column])
    }
    assert estimates
    found_of, all_deviations, holds = {}, [], [name not in without_it for name in names]
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
    reaches = half_widths_by_hand(all_deviations, [holds] * len(all_deviations))
    for ((key, column), (middle, back)), reach in zip(found_of.items(), reaches, strict=True):
        low, high = back(middle - reach), back(middle + reach)
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
