"""Norms from the vision encoder to the input of decoder layer 1 (Tables 1-3).

One sample a forward, because tiles and packed patches have no sample axis. The forward ends before
decoder layer 1: no decoder layer runs.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor, nn

from normprobe.hooks import attached, observing, on_input, run_until
from normprobe.measurements.interface.table import SCALE_COLUMN, interface_table, table_rows
from normprobe.model.embedding_table import embedding_scale
from normprobe.model.find.overrides import CROSS_ATTENTION
from normprobe.model.measured_model import MeasuredModel, text_ids
from normprobe.model.tracing.find_or_trace import find_or_trace
from normprobe.model.vision_stages import VisionStages
from normprobe.schema import (
    DECODER_INPUT,
    NON_VISUAL,
    SPECIAL,
    TEXT,
    TOKEN_GROUPS,
    VISUAL,
)
from normprobe.statistics.sample_statistics import statistics_of
from normprobe.statistics.token_metrics import token_norms


def probe_interface(
    model: nn.Module,
    inputs: Mapping[str, Any],
    *,
    named: Mapping[str, Any] | None = None,
    special_token_ids: Iterable[int] | None = None,
) -> pd.DataFrame:
    """Measure the way from pixels to the decoder input on one batch of a model in memory.

    Where the structure of the model does not tell its parts, a trace of three forwards finds them.

    Args:
        model: a transformers vision-language model, vision encoder or language model.
        inputs: what its processor returned, on the model's device.
        named: parts named by hand, as ``find_parts`` takes them.
        special_token_ids: ids to report as ``special`` rather than ``text``.

    Returns:
        The rows of interface.csv without intervals: one row a stage and token group. The batch
        counts as one sample.

    Raises:
        NormprobeError: when the parts are not found, or the batch does not fit the model.
    """
    parts, found_by = find_or_trace(model, named or {}, lambda: inputs)
    measured = MeasuredModel(model, parts, [*(special_token_ids or ())], found_by=found_by)
    return interface_table(sample_rows(measured, inputs), table_rows(parts, None))


def sample_rows(
    model: MeasuredModel, inputs: Mapping[str, Any], sample_ids: Sequence[str] | None = None
) -> pd.DataFrame:
    """One forward up to decoder layer 1, one row a (stage, token group).

    Args:
        model: on the device of ``inputs``.
        inputs: what the processor returned for one sample: tiles and packed patches have no sample
            axis, so a batch of several counts as one.
        sample_ids: the id of the sample; None: ``0``.

    Returns:
        Sample rows; merge them with ``interface_table``.

    Raises:
        NormprobeError: the batch does not fit the model.
    """
    # Before a hook is there: the batch may run the vision side to tell its token groups.
    batch = model.batch(inputs) if model.has_decoder else None
    stages = VisionStages(model.parts)
    handles = stages.handles()
    decoder_input: list[Tensor] = []
    first_layer = model.decoder_layers[0] if batch is not None else None
    if first_layer is not None:
        handles.append(on_input(first_layer, decoder_input.append))
    # A dual encoder such as CLIP wants texts too: its vision side runs alone.
    encoder = model.parts.vision_encoder
    runs = encoder.module if encoder is not None and batch is None else model.model
    with observing(model.model), attached(*handles):
        run_until(runs, inputs, entering=first_layer)
        rows = stages.rows()
        if batch is not None:
            x = model.read_stream(decoder_input[0])
            groups = batch.groups_at(x)
            if not _shows_an_image(model, groups):
                rows = []  # some code always wants pixels, and of text alone gets blank ones
            ids, _ = text_ids(inputs, model.parts)
            assert ids is not None
            scale = embedding_scale(model.parts, ids, x, groups)
            rows.extend(_decoder_input_rows(x, groups, scale))
    (sample_id,) = sample_ids or ["0"]
    return pd.DataFrame({"sample_id": sample_id, **row} for row in rows)


def _shows_an_image(model: MeasuredModel, groups: Tensor) -> bool:
    """Whether text can read what the vision side made."""
    attends = model.parts.fusion == CROSS_ATTENTION
    return attends or bool((groups == TOKEN_GROUPS.index(VISUAL)).any())


def _decoder_input_rows(x: Tensor, groups: Tensor, scale: float | None) -> list[dict[str, Any]]:
    norms, codes = token_norms(x).cpu().numpy(), groups.cpu().numpy()
    masks = {group: codes == code for code, group in enumerate(TOKEN_GROUPS)}
    masks[NON_VISUAL] = masks[TEXT] | masks[SPECIAL]
    common = {"hidden_size": x.shape[-1], SCALE_COLUMN: np.nan if scale is None else scale}
    return [
        {
            "stage": DECODER_INPUT,
            "group": group,
            **common,
            **statistics_of(norms[None, mask], ["norm"]),
        }
        for group, mask in masks.items()
        if mask.any()
    ]
