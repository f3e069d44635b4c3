"""``probe_layers``: every decoder layer on one batch, in a line of Python."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
from torch import nn

from normprobe.measurements.layers.measure import observe, rows
from normprobe.measurements.layers.table import layers_table
from normprobe.model.measured_model import MeasuredModel
from normprobe.model.tracing.trace import find_or_trace


def probe_layers(
    model: nn.Module,
    inputs: Mapping[str, Any],
    *,
    named: Mapping[str, Any] | None = None,
    special_token_ids: Iterable[int] | None = None,
) -> pd.DataFrame:
    """Measure every decoder layer on one batch of a model in memory.

    ``Probe`` does the same repeatedly, and finds the parts once. Where the structure of the model
    does not tell its parts, a trace of three more forwards finds them.

    Args:
        model: a transformers vision-language or language model.
        inputs: what its processor returned, on the model's device.
        named: parts named by hand, as ``find_parts`` takes them.
        special_token_ids: ids to report as ``special`` rather than ``text``,
            usually ``tokenizer.all_special_ids``.

    Returns:
        The rows of layers.csv without intervals: one row a layer (0 is the decoder input) and
        token group.

    Raises:
        NormprobeError: when the parts are not found, or the batch does not fit the model.
    """
    parts, found_by = find_or_trace(model, named or {}, lambda: inputs)
    measured = MeasuredModel(model, parts, [*(special_token_ids or ())], found_by=found_by)
    return layers_table(rows(observe(measured, inputs), None))
