"""Sample rows drawn again by image: what the confidence intervals of a table rest on.

Questions about one picture share its visual tokens: they are drawn together, as one unit. A sample
without an image is a unit of its own.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normprobe.schema import TEXT
from normprobe.statistics.bootstrap import (
    FISHER,
    LINEAR,
    LOGARITHM,
    LOGIT,
    Held,
    Scale,
    band,
    draw_weights,
    interval,
    ratio_draws,
)
from normprobe.statistics.sample_statistics import tokens_of
from normprobe.tidy import BAND, INTERVAL, Numbers, Table, ends_of

#: ``[draws, cells]`` by quantity and estimate; the first draw is the estimate itself.
Draws = dict[tuple[str, str], NDArray[np.float64]]


def image_units(rows: pd.DataFrame) -> "pd.Series[str]":
    """The unit of each sample row: its image, or the sample where it has none."""
    return rows["image_hash"].where(rows["image_hash"].notna(), rows["sample_id"])


class Resampled:
    """The sample rows of a table, drawn again and again by unit.

    Args:
        table: the cells of every result, a row each.
        rows: sample rows with columns ``sample_id``, ``image_hash`` and those of ``by``.
        by: the columns that name a cell.

    Attributes:
        units: how many are drawn from.
        held: ``[units, cells]`` which of them hold something of each cell.
    """

    def __init__(self, table: pd.DataFrame, rows: pd.DataFrame, by: list[str]) -> None:
        cells = pd.MultiIndex.from_frame(table[by]).get_indexer(pd.MultiIndex.from_frame(rows[by]))
        self._rows, self._cells = rows[cells >= 0], cells[cells >= 0]
        self._table, self._by = table, by
        # Factorised in sorted order: the draws do not depend on the order of the rows.
        codes, units = pd.factorize(image_units(rows), sort=True)
        self._codes, self.units = codes[cells >= 0], len(units)
        self._width = len(table)
        self._weights = draw_weights(self.units)
        self.held: Held = self._sums(np.ones(len(self._cells))) > 0

    def holding(self, column: str) -> Held:
        """``[units, cells]``: which units have a number in a column."""
        known = self._rows[column].notna().to_numpy()
        return self._sums(known.astype(np.float64)) > 0

    def means(self, column: str, *, by_tokens: bool, tokens: str = "tokens") -> NDArray[np.float64]:
        """``[draws, cells]``: means over tokens, or over samples.

        Args:
            column: what to average.
            by_tokens: whether a row counts as often as it has tokens.
            tokens: the column that counts them.
        """
        values = self._rows[column].to_numpy(dtype=np.float64)
        held = ~np.isnan(values)
        counts = tokens_of(self._rows, column, tokens) if by_tokens else pd.Series(held * 1.0)
        weight = counts.to_numpy(dtype=np.float64)
        return ratio_draws(
            self._weights,
            self._sums(np.where(held, values * weight, 0.0)),
            self._sums(np.where(held, weight, 0.0)),
        )

    def geometric_means(self, metric: str) -> NDArray[np.float64]:
        """``[draws, cells]`` over tokens, of one of ``schema.GEOMETRIC``."""
        means: NDArray[np.float64] = np.exp(self.means(f"{metric}_log_mean", by_tokens=True))
        return means

    def of_tokens(self, metrics: Iterable[str]) -> Draws:
        """Each metric's means: over tokens, over samples, and the geometric one over tokens.

        That is there where the rows hold logarithms.
        """
        drawn: Draws = {}
        for metric in metrics:
            drawn[metric, "mean"] = self.means(f"{metric}_mean", by_tokens=True)
            drawn[metric, "sample_mean"] = self.means(f"{metric}_mean", by_tokens=False)
            if f"{metric}_log_mean" in self._rows:
                drawn[metric, "geometric_mean"] = self.geometric_means(metric)
        return drawn

    def to_text(self, means: NDArray[np.float64]) -> NDArray[np.float64]:
        """``[draws, cells]``: each mean over that of the text tokens beside it."""
        keys = [name for name in self._by if name not in ("group", "hidden_size")]
        columns = (self._table[name] for name in keys)  # there may be none
        cells = [*zip(*columns, strict=True)] or [()] * len(self._table)
        is_text = self._table["group"] == TEXT
        of_text = {cell: place for place, cell in enumerate(cells) if is_text.iloc[place]}
        beside = np.array([of_text.get(cell, -1) for cell in cells])
        with np.errstate(divide="ignore", invalid="ignore"):  # layer 0 turns nothing
            ratios: NDArray[np.float64] = np.where(beside >= 0, means / means[:, beside], np.nan)
        return ratios

    def covariance(
        self, first: str, second: str, products: str, *, tokens: str = "tokens"
    ) -> NDArray[np.float64]:
        """``[draws, cells]``: population covariance over tokens.

        Args:
            first: column of the means of the one.
            second: column of the means of the other; the same column for a variance.
            products: column of the sums of products of deviations from both.
            tokens: the column that counts the tokens.
        """
        columns = self._rows[[tokens, first, second, products]].assign(
            **{tokens: tokens_of(self._rows, first, tokens)}
        )
        columns = columns.where(columns.notna().all(axis=1), 0.0)  # a row without such tokens
        weight, *means, within = columns.to_numpy(dtype=np.float64).T
        count = self._sums(weight)
        with np.errstate(invalid="ignore"):
            # From the mean of all rows: squares of the means themselves would cancel.
            centers = [self._sums(weight * mean).sum(axis=0) / count.sum(axis=0) for mean in means]
        a, b = (mean - center[self._cells] for mean, center in zip(means, centers, strict=True))
        # Within the rows, then between them (Chan et al., 1979).
        product, shift_a, shift_b = (
            ratio_draws(self._weights, self._sums(values), count)
            for values in (within + weight * a * b, weight * a, weight * b)
        )
        covariance: NDArray[np.float64] = product - shift_a * shift_b
        return covariance

    def _sums(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        places = self._codes * self._width + self._cells
        sums = np.bincount(places, values, self.units * self._width).astype(np.float64)
        return sums.reshape(self.units, self._width)


class Together(NamedTuple):
    """Numbers that one sentence could name, and so have one band."""

    quantities: Sequence[str]
    cells: "pd.Series[bool] | NDArray[np.bool_] | None" = None  # which of them; None: all


def add_intervals(
    numbers: Numbers,
    drawn: Draws,
    units: int,
    held: Held | Mapping[tuple[str, str], Held] | None = None,
    together: Sequence[Together] = (),
    *,
    table: Table,
) -> None:
    """Add the ends of 95 % intervals, and of bands, to what was measured.

    An interval is ``low`` and ``high`` of a mean, ``sample_low``, ``geometric_low`` and so on of
    the others; it is empty where there is one image alone. In 95 % of all data sets all means of
    ``together`` lie between their ``band_low`` and ``band_high`` at once.

    Args:
        numbers: by quantity and estimate, an entry a cell.
        drawn: which of them were drawn.
        units: how many images were drawn from.
        held: ``[units, cells]`` which of them hold something of each cell, or that by number; None:
            all.
        together: for which there are bands.
        table: the declaration of their table, which knows their scales.
    """
    if not isinstance(held, Mapping):
        some = next(iter(drawn.values()), np.empty((0, 0)))
        all_hold: Held = np.ones((units, some.shape[1]), dtype=bool)
        held = dict.fromkeys(drawn, all_hold if held is None else held)
    for (quantity, estimate), draws in drawn.items():
        scale = scale_of(table, quantity, estimate)
        ends = interval(draws, units, scale, held[quantity, estimate].sum(axis=0))
        numbers[quantity] |= dict(zip(ends_of(estimate), ends, strict=True))
    for names, cells in together:
        keys = [(name, "mean") for name in names if (name, "mean") in drawn]
        width = max((drawn[key].shape[1] for key in keys), default=0)
        chosen = np.arange(width) if cells is None else np.flatnonzero(cells)
        bands = band(
            [drawn[key][:, chosen] for key in keys],
            units,
            [scale_of(table, *key) for key in keys],
            [held[key][:, chosen] for key in keys],
        )
        for (name, _), found in zip(keys, bands, strict=True):
            estimates = numbers[name]
            for end, inner, beyond, ends in zip(
                BAND, INTERVAL, (np.minimum, np.maximum), found, strict=True
            ):
                reached = np.array(estimates.get(end, np.full(width, np.nan)))  # of other cells
                # What lies outside of its interval cannot be inside of its band.
                reached[chosen] = beyond(ends, np.asarray(estimates[inner])[chosen])
                estimates[end] = reached


_SCALES = {"": LINEAR, "log": LOGARITHM, "fisher": FISHER, "logit": LOGIT}


def scale_of(table: Table, quantity: str, estimate: str = "mean") -> Scale:
    """The scale of a number's intervals; of a number of the user's own nothing is known."""
    if estimate == "geometric_mean":
        return LOGARITHM
    known = table.numbers.get(quantity)
    return _SCALES[known.scale if known else ""]
