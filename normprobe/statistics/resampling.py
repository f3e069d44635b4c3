"""Sample rows drawn again by image: what the confidence intervals of a table rest on.

Questions about one picture share its visual tokens: they are drawn together, as one unit. A sample
without an image is a unit of its own.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normprobe.statistics.bootstrap import draw_weights, percentile_interval, ratio_draws
from normprobe.statistics.sample_statistics import tokens_of


def image_units(rows: pd.DataFrame) -> "pd.Series[str]":
    """The unit of each sample row: its image, or the sample where it has none."""
    return rows["image_hash"].where(rows["image_hash"].notna(), rows["sample_id"])


class Resampled:
    """The sample rows of a table, drawn again and again by unit.

    Args:
        table: its rows are the cells of every result.
        rows: sample rows with columns ``sample_id``, ``image_hash`` and those of ``by``.
        by: the columns that name a row of the table.
        with_estimate: the first draw is the rows as they are, each once.
    """

    def __init__(
        self,
        table: pd.DataFrame,
        rows: pd.DataFrame,
        by: list[str],
        *,
        with_estimate: bool = False,
    ) -> None:
        cells = pd.MultiIndex.from_frame(table[by]).get_indexer(pd.MultiIndex.from_frame(rows[by]))
        self._rows, self._cells = rows[cells >= 0], cells[cells >= 0]
        # Factorised in sorted order: the draws do not depend on the order of the rows.
        codes, units = pd.factorize(image_units(rows), sort=True)
        self._codes, self.units = codes[cells >= 0], len(units)
        self._width = len(table)
        self._weights = draw_weights(self.units)
        if with_estimate:
            self._weights = np.vstack([np.ones(self.units), self._weights])

    def means(self, column: str, *, by_tokens: bool, tokens: str = "tokens") -> NDArray[np.float64]:
        """``[draws, rows of the table]``: means over tokens, or over samples.

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

    def covariance(
        self, first: str, second: str, products: str, *, tokens: str = "tokens"
    ) -> NDArray[np.float64]:
        """``[draws, rows of the table]``: population covariance over tokens.

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


def with_intervals(
    table: pd.DataFrame, draws: dict[str, NDArray[np.float64]], units: int
) -> pd.DataFrame:
    """Add ``<column>_ci_low`` and ``_ci_high`` behind a table, for each column that was drawn.

    Args:
        table: what was measured.
        draws: ``[draws, rows of the table]`` by column.
        units: how many images were drawn from; of one alone the intervals are empty.
    """
    columns: dict[str, Sequence[float] | NDArray[np.float64]] = {}
    for name in [name for name in table.columns if name in draws]:
        ends = percentile_interval(draws[name])
        low, high = ends if units > 1 else (np.full(len(table), np.nan),) * 2
        columns[f"{name}_ci_low"], columns[f"{name}_ci_high"] = low, high
    return pd.concat([table, pd.DataFrame(columns, index=table.index)], axis=1)
