"""Confidence by drawing whole images again: intervals that cover, and bands over many layers.

Every mean here is a ratio of sums over images. A draw repeats some images and leaves others out, so
all draws are two matrix products (Efron and Tibshirani, 1993, chapters 6 and 13). What a statistic
is in all draws lies in one array ``[draws, cells]``: first of the images as they are, then without
each image in turn, then of the random draws.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

DRAWS = 1000
LEVEL = 0.95
SEED = 0  # the same rows give the same intervals

#: Of more images than these, groups are left out in turn.
MOST_LEFT_OUT = 200

#: Of fewer images there are too few that can be drawn: bands are Bonferroni's then.
FEWEST_DRAWN = 5

#: In a band this part of the cells share one reach. Those whose |t| varies more have their own: a
#: single loud image in one layer widens no other.
SHARED = 0.9

#: A quantile of which fewer draws lie beyond is not known: Bonferroni's is the least then.
FEWEST_BEYOND = 5
Array = NDArray[np.float64]
Held = NDArray[np.bool_]  # [units, cells]: which unit holds something of each cell


class Scale(NamedTuple):
    """Where the draws of a quantity lie evenly around it."""

    forward: Callable[[Array], Array]  # from the quantity to that scale
    back: Callable[[Array], Array]  # from there
    least: float = -math.inf  # the smallest that the quantity can be
    most: float = math.inf  # the largest


def _logit(share: Array) -> Array:
    logits: Array = np.log(share) - np.log1p(-share)
    return logits


LINEAR = Scale(np.asarray, np.asarray)
LOGARITHM = Scale(np.log, np.exp, least=0.0)  # sizes and ratios of sizes
FISHER = Scale(np.arctanh, np.tanh, -1.0, 1.0)  # cosines and correlations
LOGIT = Scale(_logit, lambda logit: 1 / (1 + np.exp(-logit)), 0.0, 1.0)  # shares of tokens


def draw_weights(units: int, draws: int = DRAWS, seed: int = SEED) -> Array:
    """How often each unit counts, ``[1 + units left out + draws, units]``.

    Of more than ``MOST_LEFT_OUT`` units, as many groups of them are left out in turn.
    """
    random = np.random.default_rng(seed)
    drawn = random.multinomial(units, np.full(units, 1 / units), size=draws).astype(np.float64)
    groups = np.arange(units) % left_out(units)
    without = (np.arange(left_out(units))[:, None] != groups).astype(np.float64)
    return np.vstack([np.ones(units), without, drawn])


def left_out(units: int) -> int:
    """How many units, or groups of them, are left out in turn."""
    return min(units, MOST_LEFT_OUT)


def ratio_draws(weights: Array, numerators: Array, denominators: Array) -> Array:
    """The ratio of sums in every draw.

    Args:
        weights: ``[draws, units]`` of ``draw_weights``.
        numerators: ``[units, cells]`` sums of each unit.
        denominators: ``[units, cells]``, likewise.

    Returns:
        ``[draws, cells]``; NaN where a draw holds nothing of a cell.
    """
    with np.errstate(invalid="ignore"):
        ratios: Array = (weights @ numerators) / (weights @ denominators)
    return ratios


def interval(
    drawn: Array, units: int, scale: Scale, held: NDArray[np.integer[Any]] | None = None
) -> Array:
    """The ends of the 95 % intervals, ``[2, cells]``.

    The ends between which ``LEVEL`` of the draws lie are too close to the estimate where there are
    few images: as far as t lies beyond the normal distribution, and as a deviation from their own
    mean falls short. So they are moved away from it by that factor, on the scale of the quantity
    (Hesterberg, 2015, section 3.5). docs/explanation/statistics.md has the coverage.

    Args:
        drawn: ``[draws, cells]`` of the weights of ``draw_weights(units)``. Draws without a cell
            have no say in it.
        units: images that were drawn from.
        scale: of the quantity.
        held: ``[cells]`` in how many units there is something of the cell; None: in all.

    Returns:
        NaN where fewer than two units hold the cell.
    """
    count = np.full(drawn.shape[1], units) if held is None else np.asarray(held)
    # Without the only image that holds it, there is nothing of a cell.
    many = (count > 1) & ~np.isnan(drawn[1 : 1 + left_out(units)]).any(axis=0)
    shift = 1 + left_out(units)
    ends = np.full((2, drawn.shape[1]), np.nan)
    for turned, back, cells in _on_scale(drawn, scale):
        inside = _quantiles(turned[shift:])
        wider = np.array([_widening(number) if number > 1 else np.nan for number in count[cells]])
        ends[:, cells] = back(turned[0] + (inside - turned[0]) * wider)
    return np.where(many, ends.clip(scale.least, scale.most), np.nan)


def band(
    drawn: Sequence[Array],
    units: int,
    scales: Sequence[Scale],
    held: Sequence[Held] | None = None,
) -> list[Array]:
    """Ends between which all cells of all statistics lie together, in ``LEVEL`` of all data sets.

    The largest |t| of any cell is compared with those of data sets whose images are drawn from the
    ones there are: a studentised bootstrap, which knows how skewed images are (Hall, 1992; Romano
    and Wolf, 2005). docs/explanation/statistics.md has how often a layer is named by chance.

    Args:
        drawn: statistics, each as in ``interval``.
        units: likewise.
        scales: one a statistic.
        held: of each statistic which unit holds something of each cell; None: all hold all.

    Returns:
        ``[2, cells]`` a statistic; NaN where fewer than two units hold the cell, or the only one of
        those left out in turn that does.
    """
    bands = [np.full((2, of_one.shape[1]), np.nan) for of_one in drawn]
    if units < 2:
        return bands
    groups = left_out(units)
    parts = [
        (place, turned, back, cells)
        for place, (of_one, scale) in enumerate(zip(drawn, scales, strict=True))
        for turned, back, cells in _on_scale(of_one[: 1 + groups], scale)
    ]
    if not parts:
        return bands
    shares = np.hstack([turned[0] - turned[1:] for _, turned, _, _ in parts])
    holds = np.ones(shares.shape, dtype=bool)
    if held is not None:
        by_unit = np.hstack([held[place][:, cells] for place, _, _, cells in parts])
        holds = np.array([by_unit[group::groups].any(axis=0) for group in range(groups)])
    reach, ends = _reach(shares - shares.mean(axis=0), holds), 0
    for place, turned, back, cells in parts:
        start, ends = ends, ends + len(cells)
        around = [turned[0] - reach[start:ends], turned[0] + reach[start:ends]]
        with np.errstate(over="ignore"):  # of two images there may be no end
            bands[place][:, cells] = back(np.stack(around))
    return [found.clip(scale.least, scale.most) for found, scale in zip(bands, scales, strict=True)]


def _quantiles(draws: Array) -> Array:
    """The ends between which ``LEVEL`` of the draws lie, ``[2, cells]``."""
    shares = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    ends = np.quantile(draws, shares, axis=0)
    for cell in np.flatnonzero(np.isnan(draws).any(axis=0)):
        held = draws[~np.isnan(draws[:, cell]), cell]
        ends[:, cell] = np.quantile(held, shares) if held.size else np.nan
    return ends


def _on_scale(
    drawn: Array, scale: Scale
) -> list[tuple[Array, Callable[[Array], Array], NDArray[np.intp]]]:
    """The draws on their scale, or as they are where that has no place for one of them."""
    with np.errstate(divide="ignore", invalid="ignore"):
        turned = scale.forward(drawn)
    known = np.isfinite(drawn[0])
    on_it = known & (np.isfinite(turned) | np.isnan(drawn)).all(axis=0)
    found = []
    for cells, values, back in ((on_it, turned, scale.back), (known & ~on_it, drawn, np.asarray)):
        places = np.flatnonzero(cells)
        if len(places):
            found.append((values[:, places], back, places))
    return found


def _reach(shares: Array, holds: Held) -> Array:
    """How far a band reaches from each cell, ``[cells]``; NaN where fewer than two images hold it.

    Cells that other images hold are other data sets. They part the errors that are left to all
    bands, each by its number of cells (Bonferroni).

    Args:
        shares: ``[images, cells]`` of each image in the deviation; each cell sums to zero.
        holds: likewise, which images hold something of the cell.
    """
    squares = np.square(shares).sum(axis=0)
    images = holds.sum(axis=0)
    reach = np.where((images > 1) & (squares == 0), 0.0, np.nan)  # one that no image changes
    known = np.flatnonzero((images > 1) & (squares > 0))
    own, _ = pd.factorize(np.array([holds[:, cell].tobytes() for cell in known], dtype=object))
    for number in range(own.max(initial=-1) + 1):
        cells = known[own == number]
        of_these = shares[np.ix_(holds[:, cells[0]], cells)]
        count = len(of_these)
        largest = _largest_t(of_these, (1 - LEVEL) * len(cells) / len(known))
        reach[cells] = largest * np.sqrt((count - 1) / count * squares[cells])
    return reach


def _largest_t(shares: Array, rate: float) -> Array:
    """Which |t| each cell stays below, all at once but for ``rate`` of data sets, ``[cells]``.

    Args:
        shares: ``[images, cells]`` of each image in the deviation, of those that hold all cells.
        rate: how often any cell may lie beyond.
    """
    images, cells = shares.shape
    reach = np.full(cells, student_t(images - 1, 1 - rate / (2 * cells)))
    if images < FEWEST_DRAWN:  # of unequal images t is wider (docs/explanation/statistics.md)
        return reach * math.sqrt(images / (images - 1))
    ts = np.abs(drawn_t(shares))
    typical = np.quantile(ts, LEVEL, axis=0)
    moved = typical > 0
    if not moved.any():
        return reach
    ts, typical = ts[:, moved], typical[moved]
    typical = np.maximum(typical, np.quantile(typical, SHARED))
    found = typical * np.quantile((ts / typical).max(axis=1), 1 - rate)
    reach[moved] = np.maximum(found, reach[moved]) if rate * len(ts) < FEWEST_BEYOND else found
    return reach


def drawn_t(shares: Array) -> Array:
    """Of each cell t where images are drawn from these, ``[draws, cells]``.

    Each draw has its own standard error. One that leaves less than half of the images has hardly
    any, and is none.
    """
    images, draws = len(shares), _draws_of_half(len(shares))
    shares = shares - shares.mean(axis=0)
    means, squares = draws @ shares / images, draws @ np.square(shares) / images
    variances = squares - means**2
    apart = variances > 1e-9 * squares  # images that are all alike have no t
    ts: Array = means / np.sqrt(np.where(apart, variances, np.inf) / (images - 1))
    return ts


@lru_cache
def _draws_of_half(images: int) -> Array:
    """How often each image counts, ``[draws, images]``, where half of them do at all."""
    draws: Array = draw_weights(images)[1 + left_out(images) :]
    half: Array = draws[2 * (draws > 0).sum(axis=1) >= images]
    return half


@lru_cache
def _widening(units: int) -> float:
    units = min(units, 1000)  # from there on it is 1.00
    normal = NormalDist().inv_cdf((1 + LEVEL) / 2)
    return student_t(units - 1, (1 + LEVEL) / 2) / normal * math.sqrt(units / (units - 1))


@lru_cache
def student_t(freedom: int, below: float) -> float:
    """The quantile of Student's t distribution, found by bisection.

    Args:
        freedom: degrees of freedom, from 1.
        below: which share of the distribution lies below, 0.5 to 1.
    """
    low, high = 0.0, 1.0
    while _t_below(freedom, high) < below:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_below(freedom, middle) < below else (low, middle)
    return (low + high) / 2


def _t_below(freedom: int, t: float) -> float:
    """The distribution function of t for whole degrees of freedom (a finite sum of cosines)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine = math.cos(angle)
    term, total, start = (cosine, 0.0, 3) if freedom % 2 else (1.0, 0.0, 2)
    for step in range(start, freedom + 1, 2):
        total += term
        term *= cosine**2 * (step - 1) / step
    inside = math.sin(angle) * total
    if freedom % 2:
        inside = 2 / math.pi * (angle + inside)
    return 0.5 + inside / 2


#: With fewer models a correlation says nothing: four are in order by chance once in 24 times.
FEWEST = 5


class Correlation(NamedTuple):
    """A rank correlation and its 95 % interval."""

    models: int  # how many have both numbers
    # -1 to 1; NaN with fewer than ``FEWEST`` models, or where one number never differs
    value: float = np.nan
    low: float = np.nan  # the lower end of the interval; NaN as ``value``
    high: float = np.nan  # the upper end, likewise


def spearman(first: Array, second: Array) -> float:
    """Spearman's rank correlation, ties at their mean rank; NaN where one number never differs."""
    ranks = pd.DataFrame(np.stack([first, second], axis=1)).rank().to_numpy().T
    with np.errstate(invalid="ignore"):  # of numbers that never differ there is no correlation
        return round(float(np.corrcoef(*ranks)[0, 1]), 12)  # 1, not almost 1


def rank_correlation(first: Iterable[float], second: Iterable[float]) -> Correlation:
    """Spearman's rank correlation of two numbers of each model; ties get their mean rank.

    The interval is that of Fisher's z with the variance of Bonett and Wright (2000): draws of a few
    models repeat some of them, and their ranks go together by that alone.

    Args:
        first: one a model; NaN: the model has no say.
        second: likewise, in the same order.
    """
    pairs = np.array([list(first), list(second)], dtype=np.float64)
    pairs = pairs[:, ~np.isnan(pairs).any(axis=0)]
    models = pairs.shape[1]
    if models < FEWEST:
        return Correlation(models)
    value = spearman(*pairs)
    if math.isnan(value):
        return Correlation(models)
    reach = NormalDist().inv_cdf((1 + LEVEL) / 2) * math.sqrt((1 + value**2 / 2) / (models - 3))
    # Of ranks in perfect order z has no end: one pair out of order is the next they could be.
    most = 1 - 6 * 2 / (models * (models**2 - 1))
    z = math.atanh(max(-most, min(most, value)))
    low, high = math.tanh(z - reach), math.tanh(z + reach)
    return Correlation(models, value, min(low, value), max(high, value))
