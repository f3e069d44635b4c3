"""Whether disparity goes with inertia over models, the paper's third question: table and words."""

from collections.abc import Iterable

import pandas as pd

from normprobe.statistics.bootstrap import FEWEST, Correlation, rank_correlation

#: The name of the table.
CORRELATION = "correlation"


def correlation_table(disparity: Iterable[float], inertia: Iterable[float]) -> pd.DataFrame:
    """The row of correlation.csv: how the ranks of disparity and inertia go together."""
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
    """What correlation.csv says: which way, if its interval allows to say so."""
    models, *numbers = correlation.iloc[0]
    found = Correlation(int(models), *map(float, numbers))
    if found.models < FEWEST:
        return (
            f"Whether inertia goes with disparity takes {FEWEST} {of} with both numbers; "
            f"{found.models or 'none'} {'has' if found.models == 1 else 'have'} them."
        )
    if found.value != found.value:
        return f"All {found.models} {of} have the same disparity or inertia: no rank correlation."
    value, low, high = (round(number, 2) + 0.0 for number in found[1:])  # as printed; 0 has no sign
    told = f"rank correlation {value:.2f} [{low:.2f}, {high:.2f}]"
    over = f"{told} over {found.models} {of} (95 % interval over {of})"
    if low > 0:
        return f"Inertia goes with disparity: {over}."
    if high < 0:
        return f"Inertia goes against disparity: {over}."
    return f"Inertia with and against disparity are not told apart: {over}."
