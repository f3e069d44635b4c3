"""``interface``: norms from the vision encoder to the decoder's door (Tables 1-3).

One sample a forward, because tiles and packed patches have no sample axis. The forward ends where
the decoder layers begin: none of them runs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from transformers import BatchFeature

from normprobe.analyses.embeddings import embedding_statistics, weight_of
from normprobe.analyses.inputs import inputs_for
from normprobe.analyses.token_rows import (
    constant_rows,
    first_layer,
    groups_of,
    place_groups,
    read_stream,
    text_ids,
)
from normprobe.analyses.vision_stages import VisionStages
from normprobe.hooks import attached, observing, on_input, run_until
from normprobe.model.parts import Parts, find_parts
from normprobe.probes.sample_statistics import merge, statistics_of
from normprobe.probes.token_metrics import token_norms
from normprobe.schema import (
    DECODER_INPUT,
    EFFECTIVE_EMBEDDING,
    NON_VISUAL,
    NONZERO_ROWS,
    PROMPT_ROWS,
    SPECIAL,
    STAGES,
    TEXT,
    TEXT_EMBEDDING_TABLE,
    TOKEN_GROUPS,
    VISUAL_EMBEDDING_TABLE,
)

#: What the ratios divide by: the norm of the first of these groups that the stage has.
REFERENCES = {
    "ratio_to_table": (EFFECTIVE_EMBEDDING, (NONZERO_ROWS, PROMPT_ROWS)),
    "ratio_to_prompt": (DECODER_INPUT, (TEXT,)),
}

_SCALE = "embedding_scale"  # sample row column: decoder input / table row, NaN if no scalar


def probe_interface(
    model: nn.Module,
    inputs: Mapping[str, Any],
    *,
    special_token_ids: Iterable[int] | None = None,
) -> pd.DataFrame:
    """Measure the way from pixels to the decoder input on one batch of a model in memory.

    Args:
        model: a transformers vision-language model, vision encoder or language model.
        inputs: what its processor returned, on the model's device.
        special_token_ids: ids to report as ``special`` rather than ``text``.

    Returns:
        The rows and columns of interface.csv: one row a stage and token group. The batch counts
        as one sample.

    Raises:
        NormprobeError: when the parts are not found, or the batch does not fit the model.
    """
    parts = find_parts(model)
    groups, constants = None, None
    if parts.decoder_layers is not None:
        groups = groups_of(model, parts, inputs, special_token_ids)
        constants = constant_rows(model, parts, inputs, groups)
    rows = interface_rows(model, parts, inputs, "0", groups, constants)
    return interface_table(rows, table_rows(parts, None))


def measure_interface(
    model: nn.Module,
    parts: Parts,
    batches: Iterable[tuple[Sequence[str], BatchFeature]],
    special_token_ids: Iterable[int],
) -> Iterator[pd.DataFrame]:
    """Sample rows, sample by sample.

    Args:
        model: on its device.
        parts: of ``find_parts(model)``.
        batches: of one sample each: its id and what the processor returned for it.
        special_token_ids: ids that count as special.

    Yields:
        The rows of ``interface_rows``.
    """
    special = list(special_token_ids)
    constants = None
    for (sample_id,), batch in batches:
        inputs = inputs_for(model, batch)
        groups = None
        if parts.decoder_layers is not None:
            groups = groups_of(model, parts, inputs, special)
            if constants is None:
                constants = constant_rows(model, parts, inputs, groups)
        yield interface_rows(model, parts, inputs, sample_id, groups, constants)


def interface_rows(
    model: nn.Module,
    parts: Parts,
    inputs: Mapping[str, Any],
    sample_id: str,
    groups: Tensor | None,
    constants: Tensor | None = None,
) -> pd.DataFrame:
    """One forward up to the decoder's door, one sample row a (stage, group).

    Args:
        model: on the device of ``inputs``.
        parts: of ``find_parts(model)``.
        inputs: what the processor returned for one sample.
        sample_id: names the rows.
        groups: of ``groups_of``; None for a bare vision encoder.
        constants: structural rows, of ``constant_rows``.

    Returns:
        Sample rows; merge them with ``interface_table``.
    """
    stages = VisionStages(parts)
    handles = stages.handles()
    decoder_input: list[Tensor] = []
    door = None
    if parts.decoder_layers is not None:
        door = first_layer(parts)
        handles.append(on_input(door, decoder_input.append))
    # A dual encoder such as CLIP wants texts too: its vision side runs alone.
    alone = parts.vision_encoder is not None and door is None
    subject = parts.vision_encoder.module if alone and parts.vision_encoder else model
    with observing(model), attached(*handles):
        run_until(subject, inputs, entering=door)
        rows = stages.rows()
        if groups is not None:
            x = read_stream(model, parts)(decoder_input[0])
            groups = place_groups(groups, x, parts, constants)
            ids, _ = text_ids(inputs, parts)
            assert ids is not None
            scale = embedding_scale(parts, ids, x, groups)
            rows.extend(_decoder_input_rows(x, groups, scale))
    return pd.DataFrame({"sample_id": sample_id, **row} for row in rows)


def _decoder_input_rows(x: Tensor, groups: Tensor, scale: float | None) -> list[dict[str, Any]]:
    norms, codes = token_norms(x).cpu().numpy(), groups.cpu().numpy()
    masks = {group: codes == code for code, group in enumerate(TOKEN_GROUPS)}
    masks[NON_VISUAL] = masks[TEXT] | masks[SPECIAL]
    common = {"hidden_size": x.shape[-1], _SCALE: np.nan if scale is None else scale}
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


def embedding_scale(parts: Parts, input_ids: Tensor, x: Tensor, groups: Tensor) -> float | None:
    """The one scalar between table rows and decoder input, if there is one.

    Gemma scales inside the embedding module, Granite after it; position terms make it more than a
    scalar. Measured on the text tokens of the prompt: x = s w up to rounding.
    """
    assert parts.text_embedding is not None
    if groups.shape != input_ids.shape:  # rows before or behind the prompt come with positions
        return None
    weight = weight_of(parts.text_embedding)
    text = (groups == TOKEN_GROUPS.index(TEXT)).to(input_ids.device)
    w = weight[input_ids[text].to(weight.device)].float()
    x = x[text.to(x.device)].to(w).float()
    length = torch.linalg.vecdot(w, w)
    w, x, length = w[length > 0], x[length > 0], length[length > 0]
    if not len(w):
        return None
    scales = torch.linalg.vecdot(x, w) / length
    scale = float(scales.median())
    rounding = max(4 * torch.finfo(weight.dtype).eps, 1e-5)
    misfit = token_norms(x - scale * w) / token_norms(x)
    return scale if bool((misfit <= rounding).all()) else None


def table_rows(parts: Parts, tokenizer_ids: Iterable[int] | None) -> pd.DataFrame:
    """The embedding tables as rows of interface.csv, one a table and scope; none without tables."""
    tables = (
        (TEXT_EMBEDDING_TABLE, parts.text_embedding, tokenizer_ids),
        (VISUAL_EMBEDDING_TABLE, parts.visual_embedding, None),
    )
    statistics = [
        embedding_statistics(weight_of(part), tokenizer_ids=ids).assign(stage=stage)
        for stage, part, ids in tables
        if part is not None
    ]
    if not statistics:
        return pd.DataFrame()
    rows = pd.concat(statistics, ignore_index=True)
    return rows.rename(columns={"rows": "group", "count": "tokens"})


def interface_table(rows: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Sample rows to interface.csv.

    Args:
        rows: of ``interface_rows``, of any number of samples.
        table: of ``table_rows``.

    Returns:
        One row a stage and group. ``ratio_to_table`` divides ``norm_mean`` by that of the
        effective embedding's non-zero rows, ``ratio_to_prompt`` by that of the text tokens at the
        decoder input. ``rms_mean`` is norm / sqrt(hidden_size), which compares widths.
    """
    merged = merge(rows, ["stage", "group", "hidden_size"], ["norm"])
    if len(table):
        merged = pd.concat(
            [merged, table[table.columns.intersection(merged.columns)]], ignore_index=True
        )
        merged = pd.concat([merged, _effective_rows(rows, merged)], ignore_index=True)
    merged["rms_mean"] = merged["norm_mean"] / np.sqrt(merged["hidden_size"])
    for column, (stage, groups) in REFERENCES.items():
        reference = merged.loc[reference_rows(merged, stage, groups), "norm_mean"]
        merged[column] = merged["norm_mean"] / (reference.iloc[0] if len(reference) else np.nan)
    order = {stage: place for place, stage in enumerate(STAGES)}
    return merged.sort_values("stage", key=lambda c: c.map(order), kind="stable").reset_index(
        drop=True
    )


def _effective_rows(rows: pd.DataFrame, merged: pd.DataFrame) -> pd.DataFrame:
    """The table as it enters layer 1: scaled; where no scalar does it, the prompts' text rows."""
    scales = rows.loc[rows["stage"] == DECODER_INPUT, _SCALE]
    if scales.notna().all():
        effective = merged[merged["stage"] == TEXT_EMBEDDING_TABLE].copy()
        norms = effective.columns[effective.columns.str.startswith("norm_")]
        effective[norms] *= scales.median()
    else:
        prompt = (merged["stage"] == DECODER_INPUT) & (merged["group"] == TEXT)
        effective = merged[prompt].assign(group=PROMPT_ROWS)
    return effective.assign(stage=EFFECTIVE_EMBEDDING)


def reference_rows(table: pd.DataFrame, stage: str, groups: tuple[str, ...]) -> "pd.Series[bool]":
    """Which rows of interface.csv a ratio may divide by; the first of them is taken."""
    return (table["stage"] == stage) & table["group"].isin(groups)
