"""Does the paper's theory describe this model? A verdict on each assumption of Section 3.1.

Each assumption has one number a layer in theory.csv, and a range in which the number is called
compatible with it. The ranges are this tool's choice: the paper's assumptions are exact.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from normprobe.report.layer_words import layer_ranges
from normprobe.report.ratio_words import ALIKE

ANGLE = 0.1  # radians: sin, which turns a token, differs by at most 0.1
COSINE = 0.1
FOLLOWS = -0.5  # a correlation; without spread of update sizes and angles it is near -1


_COLUMNS = ["assumption", "source", "number", "low", "high", "median", "worst", "worst_layer"]
_COLUMNS += ["holds_in", "fails_in", "verdict"]


@dataclass(frozen=True)
class Assumption:
    """One assumption or consequence of the theory, and how it is judged.

    Attributes:
        name: as in the paper.
        source: where in the paper.
        number: what the measure is.
        measure: theory.csv to one number a layer; NaN where the theory says nothing.
        low: smallest number that is compatible, given the hidden size.
        high: largest number that is compatible, given the hidden size.
    """

    name: str
    source: str
    number: str
    measure: Callable[[pd.DataFrame], "pd.Series[float]"]
    low: Callable[[int], float]
    high: Callable[[int], float]


def _chance(hidden_size: int) -> float:
    """Two standard deviations of the cosine between a fixed and a random direction."""
    return float(2 / np.sqrt(hidden_size))


def _larger_turn(theory: pd.DataFrame) -> "pd.Series[float]":
    first, second = theory["visual_turn_to_text_mean"], theory["text_turn_to_visual_mean"]
    return first.where(first.abs() >= second.abs(), second)


def _always(value: float) -> Callable[[int], float]:
    return lambda hidden_size: value


#: Every one that is judged; a new one is a row here.
ASSUMPTIONS = (
    Assumption(
        "Modality Norm Imbalance",
        "Section 3.1",
        "visual / text norm",
        lambda theory: theory["norm_ratio_mean"],
        _always(ALIKE),
        _always(np.inf),
    ),
    Assumption(
        "Uniform Update Magnitude",
        "Section 3.1",
        "visual / text update norm",
        lambda theory: theory["update_norm_ratio_mean"],
        _always(1 / ALIKE),
        _always(ALIKE),
    ),
    Assumption(
        "Consistent Update Geometry",
        "Section 3.1",
        "visual - text update angle, radians",
        lambda theory: theory["update_angle_visual_mean"] - theory["update_angle_text_mean"],
        _always(-ANGLE),
        _always(ANGLE),
    ),
    Assumption(
        "Random Rotational Direction",
        "Section 3.1",
        "mean cosine between one modality's turn and the other's states, the larger of both",
        _larger_turn,
        lambda hidden_size: -_chance(hidden_size),
        _chance,
    ),
    Assumption(
        "angle against norm",
        "Eq. 13",
        "correlation of log angle and log norm over visual and text tokens",
        lambda theory: theory["norm_angle_correlation_both"],
        _always(-np.inf),
        _always(FOLLOWS),
    ),
    Assumption(
        "cross-modal cosine",
        "Eq. 15",
        "measured - predicted cross-modal cosine",
        lambda theory: (
            theory["cross_modal_cosine_mean"] - theory["predicted_cross_modal_cosine_mean"]
        ).where(theory["layer"] > 0),
        _always(-COSINE),
        _always(COSINE),
    ),
)


def assumptions_table(theory: pd.DataFrame) -> pd.DataFrame:
    """A verdict on each assumption.

    Args:
        theory: of ``theory_table``.

    Returns:
        The rows of assumptions.csv: assumption, source, number (what it is), low and high (the
        range in which it holds), median over layers, worst (the number farthest out of the range,
        or closest to its end) and worst_layer, holds_in and fails_in (layers such as ``1-3, 6``,
        empty for none), verdict (``holds``, ``fails``, or ``holds in some layers``). An assumption
        without a number in any layer has no row.
    """
    if theory.empty:
        return pd.DataFrame(columns=_COLUMNS)
    hidden_size = int(theory["hidden_size"].iloc[0])
    rows = []
    for assumption in ASSUMPTIONS:
        numbers = assumption.measure(theory).set_axis(theory["layer"]).dropna()
        if numbers.empty:
            continue
        low, high = assumption.low(hidden_size), assumption.high(hidden_size)
        excess = pd.concat([low - numbers, numbers - high], axis=1).max(axis=1)
        holds, worst = excess <= 0, int(excess.to_numpy().argmax())
        rows.append(
            {
                "assumption": assumption.name,
                "source": assumption.source,
                "number": assumption.number,
                "low": low,
                "high": high,
                "median": numbers.median(),
                "worst": numbers.iloc[worst],
                "worst_layer": numbers.index[worst],
                "holds_in": layer_ranges(numbers.index[holds].tolist()),
                "fails_in": layer_ranges(numbers.index[~holds].tolist()),
                "verdict": _verdict(holds),
            }
        )
    return pd.DataFrame(rows, columns=_COLUMNS)


def _verdict(holds: "pd.Series[bool]") -> str:
    if holds.all():
        return "holds"
    return "holds in some layers" if holds.any() else "fails"
