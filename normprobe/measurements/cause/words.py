"""What cause.csv says, in sentences. Doses that are off the map have no say in them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from normprobe.quantities import BAND, INTERVAL
from normprobe.report.ranking import wider_for
from normprobe.report.ratio_words import FAST, Estimate, agreeing, brackets, ratios_by_layer
from normprobe.report.sentences import layer_names, layers_in_words
from normprobe.runs.run_folder import RunStore

#: Interventions as subjects of a sentence, in order.
SUBJECTS = {
    "freeze": "Freezing them in all layers",
    "freeze-layer": "Freezing them in one layer",
    "scale": "Scaling them at the decoder input",
    "scale-to-text": "Making them as loud as text at the decoder input",
    "swap": "Their norms on the directions of another picture's",
    "swap-norms": "Their directions with the norms of another picture's",
    "permute": "Putting them in another order",
    "blank": "A grey picture",
    "gain": "A gain on their updates",
    "scale-text": "Scaling all text rows",
    "placebo": "Scaling as many random text rows",
}
#: Where each branch reads states behind a norm, a scale s is a gain of 1/s on what is added.
OPENED_BY_A_NORM = ("pre", "pre-parallel", "sandwich")
_OFF = "as they move text states further than the placebo, or answers further than a grey picture"
_DECIMALS = 4  # a smaller effect is none
_OPEN = "is not shown to change"


@dataclass(frozen=True)
class Outcome:
    """What becomes of the answers."""

    quantity: str  # of cause.csv
    scale: float  # from its unit to that of a sentence; below 0: less is worse
    decimals: int | None  # of its numbers; None: as many as the narrowest interval asks for
    unit: str  # in a sentence
    more: str  # the verb of more of it
    less: str  # of less of it
    changed: str  # what an intervention is not shown to change


_RIGHT = (
    Outcome("nll", 1, None, "nats", "costs", "gains", "the probability of right answers"),
    Outcome("accuracy", -100, 1, "points", "costs", "gains", "accuracy"),
)
_OWN = (
    Outcome("changed", 100, 1, "%", "changes", "", "the model's own answers"),
    Outcome("kl", 1, None, "nats", "moves their probabilities by", "", "their probabilities"),
)


def verdict(run: RunStore) -> str:
    """What turning comes from, and what it is worth to the answers."""
    cause = run.table("cause")
    told = {name: _worth(cause, name) for name in SUBJECTS}
    if told["scale"] or told["scale-to-text"]:
        told["scale-to-text"] = f"{told['scale-to-text']} {_placement(run)}".strip()
    sentences = [_turning(cause), *told.values(), _left_out(cause), _closing(cause)]
    return " ".join(filter(None, sentences))


def main_sentences(run: RunStore) -> str:
    """What turning comes from, and what all of it is worth."""
    cause = run.table("cause")
    sentences = [_turning(cause), _worth(cause, "freeze"), _closing(cause)]
    return " ".join(filter(None, sentences))


def outcomes(cause: pd.DataFrame) -> list[Outcome]:
    """Of right answers where there are any, else of the model's own."""
    known = set(cause.loc[cause["effect"].notna(), "quantity"])
    return [one for one in (_RIGHT if "nll" in known else _OWN) if one.quantity in known]


def effect_rows(cause: pd.DataFrame, intervention: str, quantity: str) -> pd.DataFrame:
    """The rows of one number of one intervention that are known."""
    rows = cause[(cause["intervention"] == intervention) & (cause["quantity"] == quantity)]
    return rows[rows["effect"].notna()]


def on_map(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Which rows a sentence may rest on."""
    return ~rows["off_map"].eq(True)


def effects(rows: pd.DataFrame, ends: Sequence[str] = INTERVAL) -> list[Estimate]:
    """The effect of each row with its 95 % interval, or its band."""
    columns = ["effect", *(f"effect{end}" for end in ends)]
    return [Estimate(*row) for row in rows[columns].astype(float).itertuples(index=False)]


def together(rows: pd.DataFrame) -> list[Estimate]:
    """With ends that hold for all rows at once: of layers their band, of doses by Bonferroni."""
    return [
        known if known.has_interval else alone.widened(wider_for(len(rows)))
        for known, alone in zip(effects(rows, BAND), effects(rows), strict=True)
    ]


def rounded(
    numbers: Sequence[Estimate], scale: float = 1.0, decimals: int | None = None
) -> tuple[list[Estimate], int]:
    """Numbers in other units as they are printed, and their decimals.

    Unless these are said: two digits of the narrowest interval.
    """
    if decimals is None:
        sizes = [abs(n.high - n.low if n.has_interval else n.value) * abs(scale) for n in numbers]
        least = min((size for size in sizes if size > 0), default=0.1)
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


# --- sentences -----------------------------------------------------------------------------------


def _turning(cause: pd.DataFrame) -> str:
    """What becomes of turning where each layer by itself reads visual rows as loud as text."""
    rows = effect_rows(cause, "norm-at-layer", "visual_angle")
    turning = layers_in_words(ratios_by_layer(rows, "effect"), FAST)
    if not turning:
        return ""
    told = (
        f"Against untouched ones, visual tokens that a layer reads as loud as text turn {turning}"
    )
    text = effect_rows(cause, "norm-at-layer", "angle_ratio")
    removed = effects(effect_rows(cause, "norm-at-layer", "share_removed"))
    if text.empty or not removed:
        return f"{told}."
    before, after = (
        " to ".join(dict.fromkeys(agreeing([text[name].min(), text[name].max()])))
        for name in ("untouched", "value")
    )
    (share,), decimals = rounded(removed, 100, 0)
    percent = in_words([share], decimals, "%")
    caused = {
        1: f"norms cause {percent} of the difference",
        -1: f"norms cause none of the difference, but hide some ({percent})",
        None: f"that norms cause any of the difference ({percent}) is not shown",
    }[share.sign]
    return (
        f"{told}. Text turns {before} x as fast as they do untouched, and {after} x then: {caused} "
        "(Eq. 13's arithmetic is in `layers`)."
    )


def _worth(cause: pd.DataFrame, intervention: str) -> str:
    """What an intervention does to the answers; doses, or layers, to the first outcome by sign."""
    parts = []
    for place, outcome in enumerate(outcomes(cause)):
        rows = effect_rows(cause, intervention, outcome.quantity)
        rows = rows[on_map(rows)].sort_values(["layer", "dose"])
        several = bool((rows["layer"] > 0).any() or rows["dose"].notna().any())
        if several and place:
            break
        numbers = together(rows) if several else effects(rows)
        alike: dict[tuple[bool, int | None], list[int]] = {}
        for row, (number, dose) in enumerate(zip(numbers, rows["dose"], strict=True)):
            (printed,), _ = rounded([number], outcome.scale, outcome.decimals)
            louder = printed.sign is not None and dose > 1
            alike.setdefault((louder, printed.sign), []).append(row)
        for these_rows in alike.values():
            these = [numbers[row] for row in these_rows]
            told, decimals = rounded(these, outcome.scale, outcome.decimals)
            parts.append(_said(outcome, told, decimals) + _which(rows.iloc[these_rows]))
    if not parts:
        return ""
    sentence = f"{SUBJECTS[intervention]} {_joined(parts)}"
    if intervention == "freeze" and "[" in sentence and " gains " not in sentence:
        sentence += ": all that their turning is worth, the most that inertia can cost here"
    return f"{sentence}."


def _said(outcome: Outcome, numbers: Sequence[Estimate], decimals: int) -> str:
    """Numbers of one sign in the words of that sign."""
    sign = numbers[0].sign
    if sign == -1:
        numbers = [Estimate(-number.value, -number.high, -number.low) for number in numbers]
    told = in_words(numbers, decimals, outcome.unit)
    if sign is None:
        return f"{_OPEN} {outcome.changed} ({told})"
    told += f" of {outcome.changed}" * (outcome.unit == "%")
    return f"{outcome.more if sign == 1 else outcome.less} {told}"


def _joined(parts: Sequence[str]) -> str:
    """With a verb that all share said once."""
    for verb, word in (("costs", "and"), ("gains", "and"), ("changes", "and"), (_OPEN, "or")):
        if all(part.startswith(verb) for part in parts):
            return f" {word}".join([parts[0], *(part.removeprefix(verb) for part in parts[1:])])
    *head, last = parts
    return f"{', '.join(head)} and {last}" if head else last


def _which(rows: pd.DataFrame) -> str:
    """`` in layers 1-3``; `` by 0.5, 2``; nothing: the whole model, without a dose."""
    if (rows["layer"] > 0).all():
        return f" in {layer_names([int(layer) for layer in rows['layer']])}"
    doses = rows["dose"].dropna()
    return f" by {', '.join(f'{dose:g}' for dose in doses)}" if len(doses) else ""


def _placement(run: RunStore) -> str:
    """Where scales are no gains on updates."""
    named = str(run.record.get("norm_placement") or "").partition(":")[0]
    if not named or named in OPENED_BY_A_NORM:
        return ""
    return (
        f"Norm placement of this decoder: {named}. A scale need not be a gain on updates there, "
        "and inertia alone."
    )


def _left_out(cause: pd.DataFrame) -> str:
    """Which doses nothing is said of."""
    rows = cause[~on_map(cause) & (cause["layer"] == 0)].drop_duplicates(["intervention", "dose"])
    named = [
        f"{name}{_which(doses)}"
        for name, doses in rows.sort_values("dose").groupby("intervention", sort=False)
    ]
    return f"Off the map, {_OFF}: {'; '.join(named)}." if named else ""


def _closing(cause: pd.DataFrame) -> str:
    return brackets(effects(cause), int(cause["samples"].max()), "layers and doses")
