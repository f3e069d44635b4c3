"""The numbers of one batch once more, on a way that shares nothing with the hooks.

States come from replaced forwards and from ``output_hidden_states``, visual tokens are the
positions that other pixels change, and the arithmetic is NumPy in float64 on the CPU.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from normprobe.measurements.layers.measure import observe, rows
from normprobe.measurements.layers.theory import theory_table
from normprobe.model.captured_states import (
    TOKENS,
    CapturedStates,
    Masks,
    captured_states,
    largest_difference,
    traced_groups,
)
from normprobe.model.measured_model import MeasuredModel
from normprobe.model.tracing.trace import TracedParts
from normprobe.schema import (
    ATTENTION_INPUT,
    PAIR,
    PAIR_METRICS,
    SAMPLE_METRICS,
    TEXT,
    TOKEN_METRICS,
    VISUAL,
)
from normprobe.statistics.token_metrics import POOLED_GROUPS
from normprobe.tidy import select

Array = NDArray[np.float64]

#: Quantities beside the columns of the sample rows.
STATES, RETENTION = "hidden_states", "retention"

#: Of ``PAIR_METRICS``: of states, of what attention reads, and of turns.
_CROSSED, _READ, _TURNS = PAIR_METRICS[:2], PAIR_METRICS[2], PAIR_METRICS[3:]

#: These are compared as a share of the recomputed number, the others as they are.
_RELATIVE = ("norm", "update_norm", "relative_update")

_PLACE = ["sample_id", "layer", "group"]


def differences(
    model: MeasuredModel, inputs: Mapping[str, Any], traced: TracedParts
) -> dict[str, float | str]:
    """How far the measured numbers of a batch are from recomputed ones."""
    captured = captured_states(model.model, model.decoder_layers, inputs)
    x = model.read_stream(captured.entered[0])
    masks, disputed = traced_groups(model, inputs, x, traced)
    measured = rows(observe(model, inputs), None)
    recomputed = pd.DataFrame(_rows(model, captured, masks))
    found: dict[str, float | str] = {**_of_columns(measured, recomputed), TOKENS: disputed}
    found[ATTENTION_INPUT] = found[_READ] = "hooks alone look into a layer"
    if PAIR in recomputed["group"].unique():
        found[RETENTION] = _of_retention(measured, recomputed)
    if captured.told and _apart(captured.told[0], captured.entered[0]) == 0:
        found[STATES] = _of_states(captured.told, captured)
    else:
        found[STATES] = "the model returns none, or those of another stack"
    return found


def _of_states(told: Sequence[Tensor], captured: CapturedStates) -> float:
    """The model returns what enters each layer; where something is added, what left the last."""
    if len(told) != len(captured.entered) + 1:
        return float("inf")
    largest = 0.0
    for number, state in enumerate(told[:-1]):
        same = [captured.entered[number], *captured.left[max(number - 1, 0) : number]]
        largest = max(largest, min(_apart(state, other) for other in same))
    return largest


def _apart(one: Tensor, other: Tensor) -> float:
    if one.shape != other.shape:
        return float("inf")
    a, b = (state.double().nan_to_num() for state in (one, other))
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))


def _of_columns(measured: pd.DataFrame, recomputed: pd.DataFrame) -> dict[str, float]:
    there = measured.reindex(columns=recomputed.columns).set_index(_PLACE)
    expected = recomputed.set_index(_PLACE)
    found = {}
    for column in expected:
        name = str(column).removesuffix("_mean")
        relative = name in _RELATIVE
        found[name] = largest_difference(there[column], expected[column], relative=relative)
    return found


def _of_retention(measured: pd.DataFrame, recomputed: pd.DataFrame) -> float:
    """Product of both modalities' mean cosines (Eq. 16), the mean over samples."""
    cosines = recomputed.pivot(index=_PLACE[:2], columns="group", values="cosine_mean")
    expected = (cosines[VISUAL] * cosines[TEXT]).dropna().groupby("layer").mean()
    there = select(theory_table(measured.assign(image_hash=None)), RETENTION).set_index("layer")
    return largest_difference(there["mean"], expected, relative=False)


def _rows(
    model: MeasuredModel, captured: CapturedStates, masks: Masks
) -> Iterator[dict[str, object]]:
    """The columns of the sample rows that are compared, layer by layer."""
    entered, left = (
        [model.read_stream(state).double().numpy() for state in states]
        for states in (captured.entered, captured.left)
    )
    yield from _rows_of_layer(0, entered[0], entered[0], masks)
    for layer, (x, h) in enumerate(zip(entered, left, strict=True), start=1):
        yield from _rows_of_layer(layer, x, h, masks)


def _rows_of_layer(layer: int, x: Array, h: Array, masks: Masks) -> Iterator[dict[str, object]]:
    # Layer 0 turns nothing: it has norms, and cosines between its tokens.
    metrics = _token_metrics(x, h) if layer else {"norm": np.linalg.norm(h, axis=-1)}
    finite: NDArray[np.bool_] = np.all(np.isfinite(x) & np.isfinite(h), axis=-1)
    pooled, within_modal = SAMPLE_METRICS
    for sample in range(len(x)):
        place = {"sample_id": str(sample), "layer": layer}
        of_groups = {
            group: (x[sample, mask[sample]], h[sample, mask[sample]])
            for group, mask in masks.items()
            if mask[sample].any()
        }
        for group, states in of_groups.items():
            kept = masks[group][sample] & finite[sample]
            if kept.any():
                values: dict[str, object] = {
                    f"{name}_mean": _mean(of[sample, kept]) for name, of in metrics.items()
                }
                if layer and group in POOLED_GROUPS:
                    values[pooled] = np.dot(*map(mean_direction, states))
                if group in (VISUAL, TEXT):
                    values[within_modal] = cosine_within(states[1])
                yield {**place, "group": group, **values}
        if VISUAL in of_groups and TEXT in of_groups:
            entered, left = zip(of_groups[VISUAL], of_groups[TEXT], strict=True)
            crossed = [cosine_across(*left), centered_cosine_across(*left)]
            turns = cosines_of_turns(entered, left) if layer else []
            yield {
                **place,
                "group": PAIR,
                **dict(zip(_CROSSED + _TURNS, crossed + turns, strict=False)),
            }


def _mean(values: Array) -> float:
    """Of those tokens that have a value: a zero state has no angle."""
    there = values[np.isfinite(values)]
    return float(there.mean()) if len(there) else float("nan")


@np.errstate(divide="ignore", invalid="ignore")
def _token_metrics(x: Array, h: Array) -> dict[str, Array]:
    """``[batch, seq]`` by the names of ``schema.TOKEN_METRICS``."""
    update = h - x
    x_norm, h_norm, update_norm = (np.linalg.norm(state, axis=-1) for state in (x, h, update))
    values = (
        h_norm,
        (x * h).sum(axis=-1) / (x_norm * h_norm),
        _angle(x, h),
        update_norm,
        update_norm / x_norm,
        _angle(update, x),
    )
    return dict(zip(TOKEN_METRICS, values, strict=True))


def _angle(a: Array, b: Array) -> Array:
    """Between vectors, of their unit vectors' sum and difference; arccos loses digits near 1."""
    a, b = (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True) for vectors in (a, b))
    angle: Array = 2.0 * np.arctan2(np.linalg.norm(a - b, axis=-1), np.linalg.norm(a + b, axis=-1))
    return angle


# --- mean cosines over pairs of tokens of one sample, formed pair by pair ------------------------
#
# A token that is zero or not finite has no direction, and is in no pair. Tokens are ``[tokens,
# hidden]``, of visual or of text tokens.


def unit(vectors: Array) -> Array:
    """Of length 1; the zero vector stays."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    units: Array = vectors / np.where(norms > 0, norms, 1.0)
    return units


def mean_direction(states: Array) -> Array:
    """The mean vector of finite tokens as a unit vector, ``[hidden]``."""
    finite = np.logical_and.reduce(np.isfinite(states), axis=-1)
    return unit(states[finite].mean(axis=0))


def cosine_within(states: Array) -> float:
    """Over pairs of different tokens; NaN where there are fewer than two."""
    pointing = unit(_pointing(states))
    first, second = np.triu_indices(len(pointing), k=1)
    return float((pointing @ pointing.T)[first, second].mean()) if len(first) else float("nan")


def cosine_across(visual: Array, text: Array) -> float:
    """Over (visual, text) pairs."""
    return _mean_cosine(unit(_pointing(visual)), unit(_pointing(text)))


def centered_cosine_across(visual: Array, text: Array) -> float:
    """``cosine_across`` without the mean of both modalities' mean unit vectors."""
    units = [unit(_pointing(states)) for states in (visual, text)]
    common = (units[0].mean(axis=0) + units[1].mean(axis=0)) / 2
    return _mean_cosine(unit(units[0] - common), unit(units[1] - common))


def cosines_of_turns(x: tuple[Array, Array], h: tuple[Array, Array]) -> list[float]:
    """Between turns and states: visual to text, text to visual, and between both turns.

    A turn is the part of the update that is orthogonal to x. One of zero counts as a cosine of 0.
    """
    visual, text = (unit(_pointing(states)) for states in x)
    turned_visual, turned_text = map(_turns, x, h)
    return [
        _mean_cosine(turned_visual, text),
        _mean_cosine(visual, turned_text),
        _mean_cosine(turned_visual, turned_text),
    ]


def _turns(x: Array, h: Array) -> Array:
    """Unit vectors of the turns of those tokens that have one."""
    known = _points(x) & np.logical_and.reduce(np.isfinite(h), axis=-1)
    along = unit(x[known])
    update = h[known] - x[known]
    return unit(update - (update * along).sum(axis=-1, keepdims=True) * along)


def _pointing(states: Array) -> Array:
    return states[_points(states)]


def _points(states: Array) -> NDArray[np.bool_]:
    return np.array([np.isfinite(state).all() and state.any() for state in states], dtype=np.bool_)


def _mean_cosine(visual: Array, text: Array) -> float:
    return float((visual @ text.T).mean()) if len(visual) and len(text) else float("nan")
