"""Intervals of effects on answers, which few images may carry.

Beside what ``bootstrap`` does for sizes and ratios: costs are skewed, changed answers are counts,
and where nothing changed it still might. docs/explanation/statistics.md has how often they hold.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from normprobe.statistics.bootstrap import (
    LEVEL,
    Array,
    Held,
    drawn_t,
    left_out,
    student_t,
)

#: Of fewer images that an effect rests on there is no interval.
FEWEST_CARRIERS = 5
#: A share of images that is no larger may hide: as many images as ``FEWEST_SHOWN`` show one of them
#: in ``SURE`` of data sets. In ``LEVEL`` would be too few: where these carry all of an effect most
#: data sets have no interval, so that of those that have one more hold none of them.
RARE, SURE = 0.04, 0.99
FEWEST_SHOWN = math.ceil(math.log(1 - SURE) / math.log(1 - RARE))
#: What is counted beside the images, so that few of them claim no certainty.
ONE_WON_ONE_LOST = (1.0, -1.0)  # of differences (Bonett and Price, 2012)
TWO_OF_EACH = (1.0, 1.0, 0.0, 0.0)  # of shares (Agresti and Coull, 1998)


def unseen_share(images: float) -> float:
    """The largest share of images of which none is among these, in 1 - ``SURE`` of data sets."""
    return float(1 - (1 - SURE) ** (1 / images))


def mean_interval(drawn: Array, units: int, held: Held) -> Array:
    """The ends of the 95 % intervals of means that few images may carry, ``[2, cells]``.

    The wider of Student's t and a studentised bootstrap, and on the side to which images are skewed
    wider by their skewness over the root of their number: those beyond are not among them yet.

    Args:
        drawn: ``[draws, cells]`` of the weights of ``draw_weights(units)``.
        units: images that were drawn from.
        held: ``[units, cells]`` which image holds something of each cell.

    Returns:
        NaN where fewer than ``FEWEST_CARRIERS`` images carry the effect, counted by the sums of
        their absolute and squared parts.
    """
    ends = np.full((2, drawn.shape[1]), np.nan)
    for cell in np.flatnonzero(np.isfinite(drawn[0])):
        parts = _parts(drawn[:, cell], units, held[:, cell])
        if _carriers(drawn[0, cell] + parts) >= FEWEST_CARRIERS:
            ends[:, cell] = drawn[0, cell] + _reaches(parts)
    return ends


def share_interval(drawn: Array, units: int, held: Held, beside: Sequence[float]) -> Array:
    """The same of shares of images, or of differences of shares; exact where none is counted.

    Args:
        drawn: as of ``mean_interval``.
        units: likewise.
        held: likewise.
        beside: images that are counted beside those that are there.
    """
    images, least = held.sum(axis=0), min(0.0, *beside)
    ends = np.full((2, drawn.shape[1]), np.nan)
    for cell in np.flatnonzero((images > 1) & np.isfinite(drawn[0])):
        mean, count = drawn[0, cell], images[cell]
        parts = _parts(drawn[:, cell], units, held[:, cell])
        spread = np.square(parts).mean() * count / len(parts)
        if spread == 0:  # Clopper and Pearson (1934): in all of them the same
            reach = 1 - ((1 - LEVEL) / 2) ** (1 / count)
            ends[:, cell] = mean - reach, mean + reach
            continue
        more = count + len(beside)
        middle = (count * mean + sum(beside)) / more
        squares = (count * (spread + mean**2) + np.square(beside).sum()) / more
        reach = student_t(int(count) - 1, (1 + LEVEL) / 2) * math.sqrt(
            (squares - middle**2) / (more - 1)
        )
        ends[:, cell] = min(mean, middle - reach), max(mean, middle + reach)
    found: Array = ends.clip(least, 1.0)
    return found


def _parts(drawn: Array, units: int, held: NDArray[np.bool_]) -> Array:
    """How far each image, or group of them, lies from the mean: by leaving it out."""
    groups = left_out(units)
    holds = np.array([held[group::groups].any() for group in range(groups)])
    parts: Array = (holds.sum() - 1) * (drawn[0] - drawn[1 : 1 + groups][holds])
    return parts


def beyond(drawn: Array, units: int, held: Held) -> Array:
    """By which factors ends lie further where images are skewed, ``[2, cells]``: below and above.

    Images far on one side are not among few of them: 1 + skewness over the root of their number.
    """
    factors = np.ones((2, drawn.shape[1]))
    for cell in np.flatnonzero(np.isfinite(drawn[0])):
        skewed = _skewed(_parts(drawn[:, cell], units, held[:, cell]))
        factors[:, cell] += max(0.0, -skewed), max(0.0, skewed)
    return factors


def _skewed(parts: Array) -> float:
    """Skewness over the root of the number of images: from 0 to 1, where one is unlike the others.

    Nothing but rounding is no skewness.
    """
    deviations = parts - parts.mean() if len(parts) else parts
    variance = np.square(deviations).mean() if len(parts) > 1 else 0.0
    if variance <= 1e-18 * np.square(parts).max(initial=0.0):
        return 0.0
    return float((deviations**3).mean() / variance**1.5 / math.sqrt(len(parts)))


def _carriers(effects: Array) -> float:
    """How many images carry a sum of effects: all that are alike, or few that are large."""
    squares = float(np.square(effects).sum())
    return float(np.abs(effects).sum() ** 2 / squares) if squares else 0.0


def _reaches(parts: Array) -> Array:
    """From a mean to its ends."""
    count, skewed = len(parts), _skewed(parts)
    error = math.sqrt(np.square(parts - parts.mean()).sum() / (count * (count - 1)))
    least = student_t(count - 1, (1 + LEVEL) / 2)
    drawn = np.quantile(drawn_t(parts[:, None]), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    below = max(least, drawn[1]) * (1 + max(0.0, -skewed))
    above = max(least, -drawn[0]) * (1 + max(0.0, skewed))
    return error * np.array([-below, above])
