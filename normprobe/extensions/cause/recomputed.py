"""The angles of one batch once more: states of replaced forwards, and NumPy in float64.

What interventions do has no second way in a model that nobody has taken apart: tests compare it
with forwards that are written out.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from normprobe.extensions.cause.measure import angles_of
from normprobe.model.captured_states import (
    TOKENS,
    captured_states,
    largest_difference,
    traced_groups,
)
from normprobe.model.measured_model import MeasuredModel
from normprobe.model.tracing.trace import TracedParts
from normprobe.schema import TEXT, VISUAL


def differences(
    model: MeasuredModel, inputs: Mapping[str, Any], traced: TracedParts
) -> dict[str, float | str]:
    """How far the measured numbers of a batch are from recomputed ones."""
    captured = captured_states(model.model, model.decoder_layers, inputs)
    masks, disputed = traced_groups(model, inputs, captured.entered[0], traced)
    measured = angles_of(model, inputs)
    found: dict[str, float | str] = {TOKENS: disputed}
    for group, column in ((VISUAL, 0), (TEXT, 2)):
        expected = []
        for x, h in zip(captured.entered, captured.left, strict=True):
            a, b = (state.double().numpy() for state in (x, h))
            a, b = (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True) for vectors in (a, b))
            sizes = (np.linalg.norm(vectors, axis=-1) for vectors in (a - b, a + b))
            with np.errstate(divide="ignore"):
                logs = np.log(2.0 * np.arctan2(*sizes))
            logs = np.where(masks[group] & np.isfinite(logs), logs, np.nan)
            expected += np.nanmean(logs, axis=-1).tolist()
        told = pd.Series(np.concatenate([layer[column] for layer in measured]))
        found[f"{group}_angle"] = largest_difference(told, pd.Series(expected), relative=False)
    return found
