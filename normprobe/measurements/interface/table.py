"""Sample rows of the interface, and the embedding tables, to the tables of a run."""

from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd

from normprobe.measurements.interface.intervals import interface_intervals
from normprobe.measurements.interface.references import (
    GEOMETRIC_REFERENCES,
    REFERENCES,
    place_of_reference,
)
from normprobe.measurements.interface.visual_table import visual_table_histogram
from normprobe.model.find.parts import Parts, weight_of
from normprobe.model.measured_model import MeasuredModel
from normprobe.report.sentences import quoted
from normprobe.schema import (
    DECODER_INPUT,
    EFFECTIVE_EMBEDDING,
    PROMPT_ROWS,
    STAGES,
    TEXT,
    TEXT_EMBEDDING_TABLE,
    VISUAL_EMBEDDING_TABLE,
)
from normprobe.statistics.loud_tokens import loudest_columns
from normprobe.statistics.sample_statistics import merge
from normprobe.statistics.weights import embedding_statistics

#: Column of the sample rows: decoder input / table row, NaN where no scalar does it.
SCALE_COLUMN = "embedding_scale"


def tables(rows: pd.DataFrame, model: MeasuredModel) -> dict[str, pd.DataFrame]:
    """Everything that a run of ``interface`` contains."""
    embedded = table_rows(model.parts, model.vocabulary_ids)
    table = interface_table(rows, embedded, quoted(model.token_text))
    written = {"interface": interface_intervals(table, rows)}
    histogram = visual_table_histogram(rows, model.parts)
    if len(histogram):
        written["histogram"] = histogram
    return written


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


def interface_table(
    rows: pd.DataFrame, table: pd.DataFrame, token_text: Callable[[int], str] | None = None
) -> pd.DataFrame:
    """Sample rows to interface.csv."""
    by = ["stage", "group", "hidden_size"]
    merged = merge(rows, by, ["norm"])
    if "loudest_share" in rows:
        merged = merged.merge(loudest_columns(rows, by, token_text), on=by)
    if len(table):
        merged = pd.concat(
            [merged, table[table.columns.intersection(merged.columns)]], ignore_index=True
        )
        merged = pd.concat([merged, _effective_rows(rows, merged)], ignore_index=True)
    merged["rms_mean"] = merged["norm_mean"] / np.sqrt(merged["hidden_size"])
    for column in REFERENCES:
        place = place_of_reference(merged, column)
        reference = np.nan if place is None else merged["norm_mean"].iloc[place]
        merged[column] = merged["norm_mean"] / reference
    for column, arithmetic in GEOMETRIC_REFERENCES.items():
        place = place_of_reference(merged, arithmetic)
        means = merged["norm_geometric_mean"]
        merged[column] = means / (np.nan if place is None else means.iloc[place])
    order = {stage: place for place, stage in enumerate(STAGES)}
    return merged.sort_values("stage", key=lambda c: c.map(order), kind="stable").reset_index(
        drop=True
    )


def _effective_rows(rows: pd.DataFrame, merged: pd.DataFrame) -> pd.DataFrame:
    """The table as it enters layer 1: scaled; where no scalar does it, the prompts' text rows."""
    scales = rows.loc[rows["stage"] == DECODER_INPUT, SCALE_COLUMN]
    if scales.notna().all():
        effective = merged[merged["stage"] == TEXT_EMBEDDING_TABLE].copy()
        norms = effective.columns[effective.columns.str.startswith("norm_")]
        effective[norms] *= scales.median()
    else:
        prompt = (merged["stage"] == DECODER_INPUT) & (merged["group"] == TEXT)
        effective = merged[prompt].assign(group=PROMPT_ROWS)
    return effective.assign(stage=EFFECTIVE_EMBEDDING)
