"""Sample rows drawn again by image: what the confidence intervals of a table rest on.

Questions about one picture share its visual tokens: they are drawn together, as one unit. A sample
without an image is a unit of its own.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normprobe.schema import OWN, TEXT
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


def image_units(rows: pd.DataFrame) -> "pd.Series[str]":
    """The unit of each sample row: its image, or the sample where it has none."""
    return rows["image_hash"].where(rows["image_hash"].notna(), rows["sample_id"])


class Resampled:
    """The sample rows of a table, drawn again and again by unit.

    Args:
        table: its rows are the cells of every result.
        rows: sample rows with columns ``sample_id``, ``image_hash`` and those of ``by``.
        by: the columns that name a row of the table.

    Attributes:
        units: how many are drawn from.
        held: ``[units, rows of the table]`` which of them hold something of each row.
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
        """``[units, rows of the table]``: which units have a number in a column."""
        known = self._rows[column].notna().to_numpy()
        return self._sums(known.astype(np.float64)) > 0

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

    def geometric_means(self, metric: str) -> NDArray[np.float64]:
        """``[draws, rows of the table]`` over tokens, of one of ``schema.GEOMETRIC``."""
        means: NDArray[np.float64] = np.exp(self.means(f"{metric}_log_mean", by_tokens=True))
        return means

    def of_tokens(self, metrics: Iterable[str]) -> dict[str, NDArray[np.float64]]:
        """``[draws, rows of the table]`` of each metric's means, by column.

        Over tokens, over samples, and the geometric mean where the rows hold logarithms.
        """
        drawn = {}
        for metric in metrics:
            drawn[f"{metric}_mean"] = self.means(f"{metric}_mean", by_tokens=True)
            drawn[f"{metric}_sample_mean"] = self.means(f"{metric}_mean", by_tokens=False)
            if f"{metric}_log_mean" in self._rows:
                drawn[f"{metric}_geometric_mean"] = self.geometric_means(metric)
        return drawn

    def to_text(self, means: NDArray[np.float64]) -> NDArray[np.float64]:
        """``[draws, rows of the table]``: each mean over that of the text tokens beside it."""
        keys = [name for name in self._by if name not in ("group", "hidden_size")]
        cells = [*self._table[keys].itertuples(index=False, name=None)]
        is_text = self._table["group"] == TEXT
        of_text = {cell: place for place, cell in enumerate(cells) if is_text.iloc[place]}
        beside = np.array([of_text.get(cell, -1) for cell in cells])
        with np.errstate(divide="ignore", invalid="ignore"):  # layer 0 turns nothing
            ratios: NDArray[np.float64] = np.where(beside >= 0, means / means[:, beside], np.nan)
        return ratios

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


class Together(NamedTuple):
    """Cells that one sentence could name, and so have one band."""

    columns: Sequence[str]  # of the table
    rows: "pd.Series[bool] | None" = None  # which of its rows; None: all


def with_intervals(
    table: pd.DataFrame,
    drawn: Mapping[str, NDArray[np.float64]],
    units: int,
    held: Held | Mapping[str, Held] | None = None,
    together: Sequence[Together] = (),
) -> pd.DataFrame:
    """Add the ends of 95 % intervals, and of bands, behind a table.

    Args:
        table: what was measured.
        drawn: ``[draws, rows of the table]`` by column.
        units: how many images were drawn from.
        held: ``[units, rows of the table]`` which of them hold something of each row, or that by
            column; None: all.
        together: for which cells there are bands.

    Returns:
        With ``<column>_ci_low`` and ``_ci_high`` for each column that was drawn, empty where there
        is one image alone; with ``_band_low`` and ``_band_high`` for those of ``together``: in 95 %
        of all data sets all of its cells lie between them at once.
    """
    if not isinstance(held, Mapping):
        all_hold: Held = np.ones((units, len(table)), dtype=bool)
        held = dict.fromkeys(drawn, all_hold if held is None else held)
    columns: dict[str, NDArray[np.float64]] = {}
    for name in [name for name in table.columns if name in drawn]:
        ends = interval(drawn[name], units, scale_of(name), held[name].sum(axis=0))
        columns[f"{name}_ci_low"], columns[f"{name}_ci_high"] = ends
    for names, rows in together:
        names = [name for name in names if name in columns or name in drawn]
        chosen = np.arange(len(table)) if rows is None else np.flatnonzero(rows)
        of_names = [drawn[name][:, chosen] for name in names]
        of_units = [held[name][:, chosen] for name in names]
        bands = band(of_names, units, [*map(scale_of, names)], of_units)
        for name, found in zip(names, bands, strict=True):
            low, high = columns[f"{name}_ci_low"], columns[f"{name}_ci_high"]
            ends = np.full((2, len(table)), np.nan)
            if f"{name}_band_low" in columns:  # of other rows
                ends = np.stack([columns[f"{name}_band_{end}"] for end in ("low", "high")])
            # What lies outside of its interval cannot be inside of its band.
            ends[0, chosen] = np.minimum(found[0], low[chosen])
            ends[1, chosen] = np.maximum(found[1], high[chosen])
            columns[f"{name}_band_low"], columns[f"{name}_band_high"] = ends
    return pd.concat([table, pd.DataFrame(columns, index=table.index)], axis=1)


def scale_of(column: str) -> Scale:
    """The scale of a column's intervals."""
    if column.startswith(OWN):
        return LINEAR  # nothing is known of it
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
