"""What theory.csv and assumptions.csv say, in sentences."""

import math

import pandas as pd

from normprobe.measurements.layers.theory.assumptions import (
    ASSUMED,
    EXEMPT,
    FAILS,
    HOLDS,
    OPEN,
    STATES,
    states_by_layer,
)
from normprobe.report.layer_words import layer_ranges
from normprobe.report.significant import of_one_size, significant

#: What the words of assumptions.csv mean; shown below it.
LEGEND = (
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
_BALANCED = " (balanced norms, the paper's second case)"


def theory_verdict(theory: pd.DataFrame, assumptions: pd.DataFrame) -> str:
    """Where each assumption holds, Eq. 15 and the lag angle."""
    if assumptions.empty:
        return ""
    one_image = bool(assumptions["worst_band_low"].isna().all())
    judged = "One image judges no assumption." if one_image else _judgement(assumptions)
    sentences = [judged, _decay(assumptions), _lag(theory)]
    return " ".join(filter(None, sentences))


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


def _judgement(assumptions: pd.DataFrame) -> str:
    """What holds everywhere, and where everything else does what."""
    by_name = assumptions.groupby(["assumption", "source"], sort=False)
    states = {
        str(name if source == ASSUMED else source): states_by_layer(judged)
        for (name, source), judged in by_name
    }
    assumed = list(assumptions.loc[assumptions["source"] == ASSUMED, "assumption"].unique())
    applying = [name for name in assumed if set(states[name].values()) - {EXEMPT}]
    holding = [name for name in states if set(states[name].values()) == {HOLDS}]
    held = [name for name in holding if name in assumed]
    sentence = f"{len(held)} of {len(applying)} assumptions hold{'s' * (len(held) == 1)}"
    sentence += f" in every layer{': ' * bool(held)}{', '.join(held)}"
    if equations := [name for name in holding if name not in assumed]:
        sentence += f", and so do{'es' * (len(equations) == 1)} {' and '.join(equations)}"
    rest = [
        f"{name} {_where(of_layers)}"
        + _BALANCED * (name == assumed[0] and EXEMPT in of_layers.values())
        for name, of_layers in states.items()
        if name not in holding
    ]
    return " ".join(f"{part}." for part in (sentence, "; ".join(rest)) if part)


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


def _decay(assumptions: pd.DataFrame) -> str:
    """The largest miss of Eq. 15."""
    row = assumptions[assumptions["source"] == "Eq. 15"].iloc[0]
    if pd.isna(row["worst"]):
        return ""
    miss = with_interval(row["worst"], row["worst_band_low"], row["worst_band_high"])
    return (
        "One layer on from the measured cross-modal cosine, the largest miss of Eq. 15 is "
        f"{miss}, in layer {int(row['worst_layer'])}."
    )


def _lag(theory: pd.DataFrame) -> str:
    lags = theory[theory["lag_angle_mean"].notna() & (theory["layer"] > 0)]
    if lags.empty:
        return ""
    last = lags.iloc[-1]
    having, samples = int(last["lag_angle_samples"]), int(last["samples"])
    few = f", in the {having} of {samples} samples that begin with a cosine above 0"
    return (
        f"The lag angle (Eq. 17) is {_number(last, 'lag_angle_mean')} rad after layer "
        f"{int(last['layer'])}{few * (having < samples)}; by algebra it is never negative, so "
        "it is no evidence."
    )


def _number(row: "pd.Series[float]", column: str) -> str:
    return with_interval(*(float(row[f"{column}{end}"]) for end in ("", "_ci_low", "_ci_high")))
