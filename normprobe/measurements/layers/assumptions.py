"""Does the paper's theory describe this model? A verdict on each assumption of Section 3.1.

Each assumption is judged by one or more numbers a layer of theory.csv, each with a range in which
it is compatible with the assumption. The ranges are this tool's choice: the paper's assumptions are
exact. In a layer a number holds where its whole 95 % band lies in the range, fails where all of it
lies outside, and is open where it holds an end of the range. The band is one over all numbers and
layers: what holds or fails does so in all of them together. It is open, too, where visual or text
tokens are not finite: nothing is judged on what is left of them. One image judges nothing.
"""

import math
from collections.abc import Callable
from dataclasses import astuple, dataclass

import pandas as pd
from rich.console import Console
from rich.text import Text

from normprobe.report.ratio_words import ALIKE, Estimate
from normprobe.report.readable import MISSING, of_one_size, significant
from normprobe.report.sentences import layer_ranges
from normprobe.report.terminal import add_column, new_table, print_notes, print_table
from normprobe.report.verdict import Finding
from normprobe.schema import PAIR, TEXT, VISUAL
from normprobe.tidy import BAND, QUANTITY

ANGLE = 0.1  # radians: sin, which turns a token, differs by at most 0.1
NORMS_ALIKE = (1 / ALIKE, ALIKE)  # a ratio of norms: the paper's second case
COSINE = 0.1
DIRECTION = COSINE / 2  # two turns that lean this much change a cosine by less than COSINE
WIDEST = 0.25  # of the mean, as ALIKE
RELATED = 0.5  # a correlation
TOO_ALIKE = 0.05  # numbers that spread by less of their size have no relation worth a verdict
HOLDS, FAILS, OPEN, EXEMPT = "holds", "fails", "open", "does not apply"
STATES = (HOLDS, FAILS, OPEN, EXEMPT)
_RANGES_OF = {HOLDS: "holds_in", FAILS: "fails_in", OPEN: "open_in", EXEMPT: "exempt_in"}
_COLUMNS = ["assumption", "source", "number", QUANTITY, "group", "range_low", "range_high"]
_COLUMNS += ["median", "worst", *BAND, "worst_layer", *_RANGES_OF.values(), "verdict"]


Applies = Callable[[pd.DataFrame], "pd.Series[bool]"]


@dataclass(frozen=True)
class Criterion:
    """One number by which an assumption, or a consequence of the theory, is judged."""

    assumption: str  # as in the paper
    source: str  # where in the paper
    number: str  # what the number is
    quantity: str  # of theory.csv
    group: str  # whose, there
    low: float  # the smallest number that is compatible
    high: float  # the largest
    # the layers to those in which the number can say anything; None: all
    applies: Applies | None = None
    # a range outside of the other in which the number says neither: where the whole interval lies
    # in it the assumption does not apply, where it holds an end it is open
    neutral: tuple[float, float] | None = None


def _layers_of(theory: pd.DataFrame) -> pd.DataFrame:
    """A row a layer, a column an estimate of a quantity of a group."""
    return theory.pivot(index="layer", columns=[QUANTITY, "group"])


def _by_layer(
    layers: pd.DataFrame, quantity: str, group: str = PAIR, estimate: str = "mean"
) -> "pd.Series[float]":
    """A number of each layer, NaN where theory.csv has none."""
    column = estimate, quantity, group
    return layers[column] if column in layers else pd.Series(math.nan, index=layers.index)


def _enter_imbalanced(layers: pd.DataFrame) -> "pd.Series[bool]":
    low, high = (_by_layer(layers, "norm_ratio", estimate=end) for end in BAND)
    balanced = (low > NORMS_ALIKE[0]) & (high < NORMS_ALIKE[1])
    return ~balanced.shift(fill_value=False)  # without a band that is not known


def _updates_differ(modality: str) -> Applies:
    return lambda layers: (
        (_by_layer(layers, "log_norm_std", modality) >= TOO_ALIKE)
        & (_by_layer(layers, "update_norm_cv", modality) >= TOO_ALIKE)
    )


def _norms_ask_for_angles(modality: str) -> Applies:
    """By Eq. 13 the norms of the modality's tokens spread their angles enough to be seen."""
    return lambda layers: (
        _by_layer(layers, "log_norm_std", modality)
        * _by_layer(layers, "predicted_norm_angle_slope", modality).abs()
        >= TOO_ALIKE
    )


def _some_token_turns(layers: pd.DataFrame) -> "pd.Series[bool]":
    """Where nothing turns, no cosine changes, whatever the theory."""
    return (
        _by_layer(layers, "visual_turn_to_text").notna()
        | _by_layer(layers, "text_turn_to_visual").notna()
    )


ASSUMED = "Section 3.1"  # what the theory assumes; the equations follow from it
_IMBALANCE = "Modality Norm Imbalance", ASSUMED
_MAGNITUDE = "Uniform Update Magnitude", ASSUMED
_GEOMETRY = "Consistent Update Geometry", ASSUMED
_DIRECTION = "Random Rotational Direction", ASSUMED
_VELOCITY = "Angle by norm", "Eq. 13"
_DECAY = "Cross-modal cosine", "Eq. 15"
_INF = float("inf")

#: Every number that is judged; a new one is a row here.
CRITERIA = (
    Criterion(
        *_IMBALANCE, "visual / text norm", "norm_ratio", PAIR, ALIKE, _INF, neutral=NORMS_ALIKE
    ),
    Criterion(*_MAGNITUDE, "visual / text |D|", "update_norm_ratio", PAIR, 1 / ALIKE, ALIKE),
    *(
        Criterion(*_MAGNITUDE, f"spread of |D|, {name}", "update_norm_cv", name, -_INF, WIDEST)
        for name in (VISUAL, TEXT)
    ),
    *(
        Criterion(
            *_MAGNITUDE,
            f"|D| with |x|, {name}",
            "update_norm_correlation",
            name,
            -RELATED,
            RELATED,
            _updates_differ(name),
        )
        for name in (VISUAL, TEXT)
    ),
    Criterion(*_GEOMETRY, "phi, visual - text", "update_angle_difference", PAIR, -ANGLE, ANGLE),
    *(
        Criterion(*_GEOMETRY, f"spread of phi, {name}", "update_angle_std", name, -_INF, ANGLE)
        for name in (VISUAL, TEXT)
    ),
    *(
        Criterion(*_DIRECTION, number, quantity, PAIR, -DIRECTION, DIRECTION)
        for number, quantity in (
            ("visual turn, text state", "visual_turn_to_text"),
            ("text turn, visual state", "text_turn_to_visual"),
            ("visual turn, text turn", "turn_to_turn"),
        )
    ),
    *(
        Criterion(
            *_VELOCITY,
            f"angle with |x|, {name}",
            "norm_angle_correlation",
            name,
            -_INF,
            -RELATED,
            _norms_ask_for_angles(name),
        )
        for name in (VISUAL, TEXT)
    ),
    Criterion(
        *_VELOCITY,
        "angle ratio, miss",
        "angle_ratio_error",
        PAIR,
        1 / ALIKE,
        ALIKE,
        _enter_imbalanced,
    ),
    Criterion(
        *_DECAY,
        "measured - predicted",
        "cosine_residual",
        PAIR,
        -COSINE,
        COSINE,
        _some_token_turns,
    ),
)


def assumptions_table(theory: pd.DataFrame) -> pd.DataFrame:
    """A verdict on each number of ``CRITERIA``."""
    if theory.empty:
        return pd.DataFrame(columns=_COLUMNS)
    layers = _layers_of(theory)
    return pd.DataFrame([_judged(criterion, layers) for criterion in CRITERIA], columns=_COLUMNS)


def _judged(criterion: Criterion, layers: pd.DataFrame) -> dict[str, object]:
    states = _states(criterion, layers)
    row: dict[str, object] = {
        "assumption": criterion.assumption,
        "source": criterion.source,
        "number": criterion.number,
        QUANTITY: criterion.quantity,
        "group": criterion.group,
        "range_low": criterion.low,
        "range_high": criterion.high,
        "verdict": _verdict(set(states) - {EXEMPT}),
    }
    for state, column in _RANGES_OF.items():
        row[column] = layer_ranges(states.index[states == state].tolist())
    judged = states.index[(states != EXEMPT) & (_by_layer(layers, "nonfinite")[states.index] == 0)]
    if len(judged):
        numbers, *ends = (
            _by_layer(layers, criterion.quantity, criterion.group, name)[judged]
            for name in ("mean", *BAND)
        )
        excess = pd.concat([criterion.low - numbers, numbers - criterion.high], axis=1).max(axis=1)
        worst = judged[int(excess.to_numpy().argmax())]
        row["median"], row["worst"], row["worst_layer"] = numbers.median(), numbers[worst], worst
        row |= {name: end[worst] for name, end in zip(BAND, ends, strict=True)}
    return row


def _states(criterion: Criterion, layers: pd.DataFrame) -> "pd.Series[str]":
    """One of ``STATES`` for each layer that has the number."""
    number, low, high = (
        _by_layer(layers, criterion.quantity, criterion.group, name) for name in ("mean", *BAND)
    )
    states = pd.Series(OPEN, index=number.index)
    states[(low >= criterion.low) & (high <= criterion.high)] = HOLDS
    states[(high < criterion.low) | (low > criterion.high)] = FAILS
    if criterion.neutral is not None:
        start, end = criterion.neutral
        states[(states == FAILS) & (low < end) & (high > start)] = OPEN
        states[(low > start) & (high < end)] = EXEMPT
    if criterion.applies is not None:
        states[~criterion.applies(layers)] = EXEMPT
    spoiled = (_by_layer(layers, "nonfinite") > 0) & (states.index > 0)
    states[spoiled] = OPEN
    return states[number.notna() | spoiled]


def _verdict(states: set[str]) -> str:
    if not states:
        return EXEMPT
    if len(states) == 1:
        return states.pop()
    return "fails in some layers" if FAILS in states else OPEN


def states_by_layer(judged: pd.DataFrame) -> dict[int, str]:
    """The state of an assumption in each layer: that of all its numbers together."""
    together: dict[int, str] = {}
    for state in (EXEMPT, HOLDS, OPEN, FAILS):  # a later one has the say
        for ranges in judged[_RANGES_OF[state]].dropna():
            together |= dict.fromkeys(_layers_in(str(ranges)), state)
    return dict(sorted(together.items()))


def _layers_in(ranges: str) -> list[int]:
    """The layers of ``layer_ranges``."""
    ends = [part.split("-") for part in ranges.split(", ") if part]
    return [layer for end in ends for layer in range(int(end[0]), int(end[-1]) + 1)]


#: What the words of assumptions.csv mean; shown below it.
ASSUMPTIONS_LEGEND = (
    "x enters a layer, D is its update, phi the angle between them (radians). spread: deviation "
    "over tokens, of |D| as a share of its mean. with: correlation of the logarithms over tokens. "
    "turn: the part of D orthogonal to x, by mean cosine over pairs. angle ratio, miss: text / "
    "visual angle, measured over predicted by Eq. 13 from the norms alone. measured - predicted: "
    "cosine; Eq. 15 goes one layer on from the measured one. worst: farthest out, and in which "
    "layer. A number holds where its whole 95 % band (over images, for all numbers and layers "
    "together) is in the range, and is open where that holds an end, or a token is not finite. no "
    "say: norms are balanced, or tokens too alike. The paper's assumptions are exact; the "
    "ranges are this tool's."
)

_PREDICATES = {HOLDS: "holds", FAILS: "fails", OPEN: "is open", EXEMPT: "does not apply"}
_VERBS = {HOLDS: "Holds", FAILS: "Fails", OPEN: "Open"}
_BALANCED = " (balanced norms, the paper's second case)"


def theory_findings(assumptions: pd.DataFrame) -> list[Finding]:
    """Where each assumption holds, and the largest miss of Eq. 15."""
    if assumptions.empty:
        return []
    if bool(assumptions["band_low"].isna().all()):
        judged = [Finding("theory", "One image judges no assumption of the paper.")]
    else:
        judged = _judgements(assumptions)
    return [*judged, _decay(assumptions)]


def with_interval(value: float, low: float, high: float) -> str:
    """``1.6 [1.4, 1.7]``; the value alone where there is no interval."""
    if math.isnan(low) or math.isnan(high):
        return significant(value, 2)
    told, *ends = of_one_size([value, low, high])
    return f"{told} [{', '.join(ends)}]"


def between(low: float, high: float) -> str:
    """``[1.4, 1.7]``; empty where there is no interval."""
    if math.isnan(low) or math.isnan(high):
        return ""
    return f"[{', '.join(of_one_size([low, high]))}]"


def _judgements(assumptions: pd.DataFrame) -> list[Finding]:
    """What holds everywhere, and where everything else does what."""
    by_name = assumptions.groupby(["assumption", "source"], sort=False)
    states = {
        str(name if source == ASSUMED else source): states_by_layer(judged)
        for (name, source), judged in by_name
    }
    assumed = list(assumptions.loc[assumptions["source"] == ASSUMED, "assumption"].unique())
    applying = [name for name in assumed if set(states[name].values()) - {EXEMPT}]
    alike = {
        state: [name for name in states if set(states[name].values()) == {state}]
        for state in STATES
    }
    held = [name for name in alike[HOLDS] if name in assumed]
    told = f"Of the paper's assumptions, {len(held)} of {len(applying)} hold in every layer."
    found = [Finding("theory", told if applying else "No assumption of the paper applies here.")]
    for state, verb in _VERBS.items():
        if alike[state]:
            words = f"{verb} in every layer: {', '.join(alike[state])}."
            found.append(Finding(f"theory.{state}", words))
    for name, of_layers in states.items():
        if not any(name in names for names in list(alike.values())[:3]):
            words = f"{name} {_where(of_layers)}"
            words += _BALANCED * (name == assumed[0] and EXEMPT in of_layers.values())
            found.append(Finding(f"theory.{name}", f"{words}."))
    return found


def _where(states: dict[int, str]) -> str:
    """``holds in layers 1-2 and fails in layer 3``."""
    if not states:
        return _PREDICATES[EXEMPT]
    clauses = []
    for state in STATES:
        layers = [layer for layer, of_layer in states.items() if of_layer == state]
        if len(layers) == len(states):
            every = "" if state == EXEMPT else " in every layer"
            return _PREDICATES[state] + every
        if layers:
            noun = "layer" if len(layers) == 1 else "layers"
            clauses.append(f"{_PREDICATES[state]} in {noun} {layer_ranges(layers)}")
    return ", ".join(clauses[:-1]) + f" and {clauses[-1]}"


def _decay(assumptions: pd.DataFrame) -> Finding:
    """The largest miss of Eq. 15."""
    row = assumptions[assumptions["source"] == "Eq. 15"].iloc[0]
    if pd.isna(row["worst"]):
        return Finding("theory.Eq. 15.miss", "")
    number = Estimate(*map(float, row[["worst", "band_low", "band_high"]]))
    return Finding(
        "theory.Eq. 15.miss",
        "One layer on from the measured cross-modal cosine, Eq. 15 misses by up to "
        f"{with_interval(*astuple(number))}, in layer {int(row['worst_layer'])}.",
        {"cosine": number},
    )


_LAYERS = ("holds_in", "exempt_in")
_MOST_WIDE = 10  # characters for layers such as "1-3, 6, 9-31"


def print_assumptions(assumptions: pd.DataFrame, console: Console) -> None:
    """Print ``assumptions.csv``; nothing where it is empty."""
    if assumptions.empty:
        return
    table = new_table("Does the paper's theory hold here? (Section 3)")
    for header in ("assumption", "holds if", "worst", "95 % band", "layer", "holds in"):
        add_column(table, header, left=header in ("assumption", "holds in"))
    for (name, source), judged in assumptions.groupby(["assumption", "source"], sort=False):
        table.add_row(Text(f"{name}" if source == ASSUMED else f"{name} ({source})"))
        for _, row in judged.iterrows():
            layer = row["worst_layer"]
            table.add_row(
                Text(f"  {row['number']}"),
                Text(_range(float(row["range_low"]), float(row["range_high"]))),
                Text(significant(float(row["worst"]), 2)),
                Text(between(*row[[*BAND]].astype(float)) or MISSING),
                Text(MISSING if pd.isna(layer) else str(int(layer))),
                Text(_layers_where_it_holds(row)),
            )
    print_table(table, console)
    print_notes(console, ASSUMPTIONS_LEGEND)


def _range(low: float, high: float) -> str:
    if math.isinf(high):
        return f">= {low:g}"
    if math.isinf(low):
        return f"<= {high:g}"
    return f"±{high:g}" if math.isclose(low, -high) else f"{low:g}-{high:g}"


def _layers_where_it_holds(row: "pd.Series[str]") -> str:
    """The layers where it holds, in words where that is all or none."""
    layers, exempt = ("" if pd.isna(row[name]) else str(row[name]) for name in _LAYERS)
    if row["verdict"] == EXEMPT:
        return "no say"
    if row["verdict"] == HOLDS and not exempt:
        return "all layers"
    if len(layers) <= _MOST_WIDE:
        return layers or "none"
    return layers[: _MOST_WIDE - 4].rpartition(",")[0] + ", ..."
