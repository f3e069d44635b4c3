"""Sample rows of the interface, and the embedding tables, to the tables of a run."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normprobe.model.find.parts import Parts, weight_of
from normprobe.model.measured_model import MeasuredModel
from normprobe.report.sentences import quoted
from normprobe.schema import (
    DECODER_INPUT,
    EFFECTIVE_EMBEDDING,
    NONZERO_ROWS,
    OTHER_MEDIA,
    PROJECTOR_INPUT,
    PROMPT_ROWS,
    STAGES,
    TEXT,
    TEXT_EMBEDDING_TABLE,
    VISION_ENCODER,
    VISUAL,
    VISUAL_EMBEDDING_TABLE,
)
from normprobe.statistics.loud_tokens import loudest_columns
from normprobe.statistics.resampling import Resampled, with_intervals
from normprobe.statistics.sample_statistics import GROWTH, histogram_of, merge, with_images
from normprobe.statistics.weights import embedding_statistics, row_norms

#: Column of the sample rows: decoder input / table row, NaN where no scalar does it.
SCALE_COLUMN = "embedding_scale"

_BY = ["stage", "group", "hidden_size"]
_TABLE = ((EFFECTIVE_EMBEDDING, NONZERO_ROWS), (EFFECTIVE_EMBEDDING, PROMPT_ROWS))
_PROMPT = ((DECODER_INPUT, TEXT),)
_BEFORE = ((PROJECTOR_INPUT, VISUAL), (VISION_ENCODER, VISUAL))
#: Column -> the mean, and the stage and group by whose mean it is divided: of these the first that
#: is there. Sentences say the geometric ones, but no embedding table keeps geometric means.
_RATIOS = {
    "ratio_to_table": ("norm_mean", _TABLE),
    "ratio_to_prompt": ("norm_mean", _PROMPT),
    "ratio_to_before_projector": ("norm_mean", _BEFORE),
    "geometric_ratio_to_prompt": ("norm_geometric_mean", _PROMPT),
    "geometric_ratio_to_before_projector": ("norm_geometric_mean", _BEFORE),
}


def tables(rows: pd.DataFrame, model: MeasuredModel) -> dict[str, pd.DataFrame]:
    """Everything that a run of ``interface`` contains."""
    rows = with_images(rows)
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
    """Sample rows to interface.csv, without intervals."""
    merged = merge(rows, _BY, ["norm"])
    if "loudest_share" in rows:
        merged = merged.merge(loudest_columns(rows, _BY, token_text), on=_BY)
    if len(table):
        merged = pd.concat(
            [merged, table[table.columns.intersection(merged.columns)]], ignore_index=True
        )
        merged = pd.concat([merged, _effective_rows(rows, merged)], ignore_index=True)
    merged["rms_mean"] = merged["norm_mean"] / np.sqrt(merged["hidden_size"])
    merged = merged.assign(**dict.fromkeys(_RATIOS, np.nan))
    for column, (mean, place) in _references(merged).items():
        merged[column] = merged[mean] / merged[mean].iloc[place]
        if column.endswith("before_projector"):  # what stands there is of images
            merged.loc[merged["group"].isin(OTHER_MEDIA), column] = np.nan
    order = {stage: place for place, stage in enumerate(STAGES)}
    return merged.sort_values("stage", key=lambda c: c.map(order), kind="stable").reset_index(
        drop=True
    )


def _references(table: pd.DataFrame) -> dict[str, tuple[str, int]]:
    """Of each ratio the mean, and the row by whose mean it is divided, where there is one."""
    found = {}
    for column, (mean, references) in _RATIOS.items():
        for stage, group in references:
            rows = np.flatnonzero((table["stage"] == stage) & (table["group"] == group))
            if rows.size and column not in found:
                found[column] = mean, int(rows[0])
    return found


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


def interface_intervals(table: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Add ``<column>_ci_low`` and ``_ci_high`` for the means and ratios of interface.csv.

    Rows of an embedding table are no sample: their norms have no interval, the ratios of the
    prompts' tokens to them have one.
    """
    resampled = Resampled(table, rows, _BY)
    draws = resampled.of_tokens(["norm"])
    norms = draws["norm_mean"]
    # The effective embedding of some models is that of the prompts' text.
    prompt = (table["stage"] == DECODER_INPUT) & (table["group"] == TEXT)
    if prompt.any():
        norms[:, table["group"] == PROMPT_ROWS] = norms[:, prompt]
    draws["rms_mean"] = norms / np.sqrt(table["hidden_size"].to_numpy())
    # A row of an embedding table is in no image: what has an interval there are its ratios.
    held = resampled.held | ~resampled.held.any(axis=0)
    sampled: NDArray[np.bool_] = np.atleast_1d(np.isfinite(norms).any(axis=0))
    known = draws | {"norm_mean": np.where(sampled, norms, table["norm_mean"].to_numpy())}
    for column, (mean, place) in _references(table).items():
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = known[mean] / known[mean][:, [place]]
        held_by = (sampled | sampled[place]) & table[column].notna().to_numpy()
        draws[column] = np.where(held_by, ratios, np.nan)
    return with_intervals(table, draws, resampled.units, held)


# --- a visual table: each visual token is a sum of its rows, weighted by probabilities -----------
# The norm of a mixture lies below that of the rows unless one row takes it all or the rows point
# alike (paper: RQ4, Table 3).

#: Sources of histogram.csv of an ``interface`` run.
VISUAL_ROWS, VISUAL_TOKENS = "visual table rows", "visual tokens"
TEXT_ROWS, TEXT_TOKENS = "text table rows", "text tokens"
PROBABILITIES = "probabilities"

_TOKENS = {
    VISUAL_TOKENS: (DECODER_INPUT, VISUAL),
    TEXT_TOKENS: (DECODER_INPUT, TEXT),
    PROBABILITIES: (PROJECTOR_INPUT, VISUAL),
}


def visual_table_histogram(rows: pd.DataFrame, parts: Parts) -> pd.DataFrame:
    """Distribution of norms of table rows and of the tokens that come from them."""
    if parts.visual_embedding is None or parts.text_embedding is None:
        return pd.DataFrame(columns=["source", "left", "right", "count"])
    tables = {VISUAL_ROWS: parts.visual_embedding, TEXT_ROWS: parts.text_embedding}
    pieces = [
        _bins(source, *histogram_of(norms[np.isfinite(norms)]))
        for source, part in tables.items()
        for norms in [row_norms(weight_of(part))]
    ]
    pieces += [
        _bins(source, bins, counts)
        for source, (stage, group) in _TOKENS.items()
        for bins, counts in _sample_histograms(rows, stage, group)
    ]
    table = pd.concat(pieces, ignore_index=True)
    return table.groupby(["source", "left", "right"], sort=True)["count"].sum().reset_index()


def _sample_histograms(
    rows: pd.DataFrame, stage: str, group: str
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int64]]]:
    chosen = rows[(rows["stage"] == stage) & (rows["group"] == group)]
    yield from zip(chosen["norm_bins"], chosen["norm_counts"], strict=True)


def _bins(source: str, bins: NDArray[np.int32], counts: NDArray[np.int64]) -> pd.DataFrame:
    left = GROWTH ** np.asarray(bins, dtype=np.float64)
    table = pd.DataFrame({"source": source, "left": left, "right": left * GROWTH, "count": counts})
    return table[table["left"] > 0]
