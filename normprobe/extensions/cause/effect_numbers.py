"""The effects of a run as numbers: which outcomes, of what, how they are printed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from normprobe.model.intervention_plan import read_label
from normprobe.report.ratio_words import Estimate
from normprobe.report.sentences import layer_names
from normprobe.tidy import INTERVAL, QUANTITY, select

#: Doses of more turning and of less.
TURNING_DOSES = ("scale-to-text", "scale", "gain")
_DECIMALS = 4  # a smaller effect is none


@dataclass(frozen=True)
class Outcome:
    """What becomes of the answers."""

    quantity: str  # of cause.csv
    scale: float  # from its unit to that of a sentence; below 0: less is worse
    decimals: int | None  # of its numbers; None: as many as the narrowest interval asks for
    unit: str  # in a sentence
    more: str  # the verb of more of it
    less: str  # of less of it
    changed: str  # what an intervention has no measurable effect on
    named: str  # the quantity


_GREEDY = "accuracy of its own answers"
RIGHT = (
    Outcome("nll", 1, None, "nats", "costs", "gains", "NLL", "NLL"),
    Outcome("accuracy", -100, 1, "points", "costs", "gains", "accuracy", "accuracy"),
    Outcome("greedy_accuracy", -100, 1, "points", "costs", "gains", _GREEDY, _GREEDY),
)
_OWN = (
    Outcome("changed", 100, 1, "%", "changes", "", "the model's own answers", "answers"),
    Outcome(
        "kl",
        1,
        None,
        "nats",
        "moves the answers' probabilities by",
        "",
        "the answers' probabilities",
        "KL",
    ),
)


def outcomes(cause: pd.DataFrame) -> list[Outcome]:
    """Of right answers where there are any, else of the model's own."""
    known = set(cause.loc[cause["mean"].notna(), QUANTITY])
    return [one for one in (RIGHT if "nll" in known else _OWN) if one.quantity in known]


def effect_rows(cause: pd.DataFrame, intervention: str, quantity: str) -> pd.DataFrame:
    """The rows of one number of one intervention that are known."""
    rows = select(cause, quantity, intervention=intervention)
    return rows[rows["mean"].notna()]


def on_map(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Which rows a sentence may rest on."""
    return ~rows["off_map"].eq(True)


def effects(rows: pd.DataFrame, ends: Sequence[str] = INTERVAL) -> list[Estimate]:
    """The effect of each row with its 95 % interval, or its band."""
    numbers = rows[["mean", *ends]].astype(float)
    return [Estimate(*row) for row in numbers.itertuples(index=False)]


def base_of(intervention: str) -> str:
    """``freeze`` of ``freeze:loudest_5@12-20``."""
    return read_label(intervention)[0]


def by_turning(cause: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The answers' rows of doses under which visual tokens turn more, and of others less.

    Those of a class of visual tokens are none: it speaks of these, not of inertia.
    """
    keys = ["intervention", "dose"]
    of_all = ~cause["intervention"].str.contains(":")
    dosed = cause["intervention"].map(base_of).isin(TURNING_DOSES) & of_all
    angles = cause[(cause[QUANTITY] == "visual_angle") & dosed]
    turned = np.log(angles["mean"]).groupby([angles[key].fillna(0) for key in keys]).mean()
    rows = cause[dosed & (cause["layer"] == 0) & cause["mean"].notna()]
    of_row = turned.reindex(pd.MultiIndex.from_frame(rows[keys].fillna(0))).to_numpy()
    return rows[of_row > 0], rows[of_row < 0]


def rounded(
    numbers: Sequence[Estimate], scale: float = 1.0, decimals: int | None = None
) -> tuple[list[Estimate], int]:
    """Numbers in other units as they are printed, and their decimals.

    Unless these are said: two digits of the narrowest interval.
    """
    if decimals is None:
        sizes = [abs(n.high - n.low if n.has_interval else n.value) * abs(scale) for n in numbers]
        least = min((size for size in sizes if 0 < size < math.inf), default=0.1)
        decimals = min(_DECIMALS, max(0, 1 - math.floor(math.log10(least))))
    found = []
    for n in numbers:
        ends = n.value * scale, *sorted((n.low * scale, n.high * scale))
        found.append(Estimate(*(round(end, decimals) + 0.0 for end in ends)))
    return found, decimals


def in_words(numbers: Sequence[Estimate], decimals: int, unit: str = "") -> str:
    """``0.021 to 0.034 nats [0.004, 0.057]``: smallest and largest number, and their ends."""
    values = [of(number.value for number in numbers) for of in (min, max)]
    text = " to ".join(dict.fromkeys(f"{value:.{decimals}f}" for value in values))
    text += f" {unit}" * bool(unit)
    known = [number for number in numbers if number.has_interval]
    if not known:
        return text
    low, high = min(number.low for number in known), max(number.high for number in known)
    return f"{text} [{low:.{decimals}f}, {high:.{decimals}f}]"


def which(rows: pd.DataFrame) -> str:
    """`` in layers 1-3``; `` by 0.5, 2``; nothing: the whole model, without a dose."""
    if (rows["layer"] > 0).all():
        return f" in {layer_names([int(layer) for layer in rows['layer']])}"
    doses = rows["dose"].dropna()
    return f" by {', '.join(f'{dose:g}' for dose in doses)}" if len(doses) else ""
