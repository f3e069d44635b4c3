"""Whether disparity goes with inertia over models, the paper's third question: table and words."""

from collections.abc import Iterable

import pandas as pd

from normprobe.statistics.bootstrap import FEW_UNITS
from normprobe.statistics.rank_correlation import FEWEST, Correlation, rank_correlation

#: The name of the table.
CORRELATION = "correlation"


def correlation_table(disparity: Iterable[float], inertia: Iterable[float]) -> pd.DataFrame:
    """The row of correlation.csv: how the ranks of disparity and inertia go together.

    Args:
        disparity: visual / text norm at the decoder input, one a model; NaN where it has none.
        inertia: text minus visual angle, radians a layer, in the same order.

    Returns:
        ``models`` (that have both), ``rank_correlation`` (Spearman) and its 95 % interval by a
        bootstrap over models; no numbers with fewer than ``FEWEST`` models.
    """
    found = rank_correlation(disparity, inertia)
    row = dict(
        zip(
            ("models", "rank_correlation", "rank_correlation_ci_low", "rank_correlation_ci_high"),
            found,
            strict=True,
        )
    )
    return pd.DataFrame([row])


def correlation_sentence(correlation: pd.DataFrame, of: str = "models") -> str:
    """What correlation.csv says: which way, if its interval allows to say so.

    Args:
        correlation: of ``correlation_table``.
        of: what has ranks.
    """
    models, *numbers = correlation.iloc[0]
    found = Correlation(int(models), *map(float, numbers))
    if found.models < FEWEST:
        return (
            f"Whether inertia goes with disparity takes {FEWEST} {of} with both numbers; "
            f"{found.models or 'none'} {'has' if found.models == 1 else 'have'} them."
        )
    if found.value != found.value:
        return f"All {found.models} {of} have the same disparity or inertia: no rank correlation."
    told = f"rank correlation {found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"
    few = "" if found.models >= FEW_UNITS else f"; fewer than {FEW_UNITS}: it is too narrow"
    over = f"{told} over {found.models} {of} (95 % interval over {of}{few})"
    if found.low > 0:
        return f"Inertia goes with disparity: {over}."
    if found.high < 0:
        return f"Inertia goes against disparity: {over}."
    return f"Whether inertia goes with disparity is open: {over}."
