"""The numbers of one batch once more, on a way that shares nothing with the hooks.

States come from replaced forwards and from ``output_hidden_states``, visual tokens are the
positions that other pixels change, and the arithmetic is NumPy in float64 on the CPU.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from normprobe.inputs.pixels import pixel_inputs, with_other_pixels
from normprobe.measurements.layers.measure import observe, rows
from normprobe.model.captured_states import CapturedStates, captured_states
from normprobe.model.find.overrides import CROSS_ATTENTION, DISCRETE
from normprobe.model.measured_model import MeasuredModel, text_ids
from normprobe.schema import PADDING, TEXT, TOKEN_GROUPS, TOKEN_METRICS, VISUAL

Array = NDArray[np.float64]

#: Quantities beside the metrics of ``schema.TOKEN_METRICS``.
STATES, TOKENS = "hidden_states", "visual_tokens"

#: These are compared as a share of the recomputed number, the others as they are.
_RELATIVE = ("norm", "update_norm", "relative_update")


def differences(model: MeasuredModel, inputs: Mapping[str, Any]) -> dict[str, float]:
    """How far the measured numbers of a batch are from recomputed ones.

    Args:
        model: on its device.
        inputs: what the processor returned, on the same device.

    Returns:
        By quantity the largest difference over layers, groups and samples: of the group means of
        each metric (norms as a share of the recomputed mean; cosines; angles in radians), of
        ``hidden_states`` (what enters the layers against what the model itself returns, as a share
        of the largest number; missing where it returns none, or those of another stack) and of
        ``visual_tokens`` (positions that are visual to one way alone). Infinite where one way has a
        number and the other none.
    """
    captured = captured_states(model.model, model.decoder_layers, inputs)
    groups = model.batch(inputs).groups_at(model.read_stream(captured.entered[0])).numpy()
    masks, disputed = _masks(model, inputs, captured, groups)
    found = _of_metrics(model, captured, masks, rows(observe(model, inputs), None))
    found[TOKENS] = float(disputed)
    # A model may return the states of another stack, such as its text encoder's.
    if captured.told and _apart(captured.told[0], captured.entered[0]) == 0:
        found[STATES] = _of_states(captured.told, captured)
    return found


def in_doubt(found: Mapping[str, float], dtype: torch.dtype) -> list[str]:
    """The quantities of ``differences`` that rounding does not explain."""
    # Two forwards of a half-precision model may take kernels that round differently.
    tolerance = 1e-4 if dtype == torch.float32 else 1e-2
    return [name for name, value in found.items() if not value <= tolerance * (name != TOKENS)]


def _masks(
    model: MeasuredModel, inputs: Mapping[str, Any], captured: CapturedStates, groups: NDArray[Any]
) -> tuple[dict[str, NDArray[np.bool_]], int]:
    """Visual and text tokens ``[batch, seq]``, and how many visual ones are in dispute."""
    visual, text = (groups == TOKEN_GROUPS.index(group) for group in (VISUAL, TEXT))
    fusion = model.parts.fusion
    # Other pixels may give the same image tokens, or reach no position of the decoder.
    if not pixel_inputs(inputs) or fusion in (DISCRETE, CROSS_ATTENTION):
        return {VISUAL: visual, TEXT: text}, 0
    other = captured_states(model.model, model.decoder_layers[:1], with_other_pixels(inputs))
    before, after = (model.read_stream(seen.entered[0]) for seen in (captured, other))
    moved = (before != after).any(-1).numpy() & ~_padding(model, inputs, groups)
    return {VISUAL: moved, TEXT: text & ~moved}, int((moved != visual).sum())


def _padding(
    model: MeasuredModel, inputs: Mapping[str, Any], groups: NDArray[Any]
) -> NDArray[np.bool_]:
    _, mask = text_ids(inputs, model.parts)
    if mask is None or mask.shape != groups.shape:  # visual tokens have no place in the prompt
        return np.asarray(groups == PADDING)
    return np.asarray(mask.cpu().numpy() == 0)


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


def _of_metrics(
    model: MeasuredModel,
    captured: CapturedStates,
    masks: Mapping[str, NDArray[np.bool_]],
    table: pd.DataFrame,
) -> dict[str, float]:
    measured = table.set_index(["sample_id", "layer", "group"])
    found = dict.fromkeys(TOKEN_METRICS, 0.0)
    pairs = zip(captured.entered, captured.left, strict=True)
    for layer, states in enumerate(pairs, start=1):
        x, h = (model.read_stream(state).double().numpy() for state in states)
        metrics = _token_metrics(x, h)
        for group, mask in masks.items():
            for sample, of_sample in enumerate(mask):
                kept = of_sample & np.isfinite(metrics[:, sample]).all(axis=0)
                if not kept.any():
                    continue
                place = (str(sample), layer, group)
                means = metrics[:, sample, kept].mean(axis=-1)
                for name, mean in zip(TOKEN_METRICS, means, strict=True):
                    value = measured.at[place, f"{name}_mean"] if place in measured.index else None
                    found[name] = max(found[name], _difference(name, value, mean))
    return found


def _difference(name: str, measured: Any, recomputed: float) -> float:
    if measured is None or not np.isfinite(measured):
        return float("inf")
    scale = recomputed if name in _RELATIVE and recomputed else 1.0
    return float(abs(measured - recomputed) / scale)


@np.errstate(divide="ignore", invalid="ignore")
def _token_metrics(x: Array, h: Array) -> Array:
    """``[6, batch, seq]`` in the order of ``schema.TOKEN_METRICS``."""
    update = h - x
    x_norm, h_norm, update_norm = (np.linalg.norm(state, axis=-1) for state in (x, h, update))
    return np.stack(
        [
            h_norm,
            (x * h).sum(axis=-1) / (x_norm * h_norm),
            _angle(x, h),
            update_norm,
            update_norm / x_norm,
            _angle(update, x),
        ]
    )


def _angle(a: Array, b: Array) -> Array:
    """Between vectors, of their unit vectors' sum and difference; arccos loses digits near 1."""
    a, b = (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True) for vectors in (a, b))
    angle: Array = 2.0 * np.arctan2(np.linalg.norm(a - b, axis=-1), np.linalg.norm(a + b, axis=-1))
    return angle
