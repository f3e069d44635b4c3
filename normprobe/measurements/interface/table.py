"""Sample rows of the interface, and the embedding tables, to the tables of a run."""

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normprobe.model.find.parts import Parts, weight_of
from normprobe.model.measured_model import MeasuredModel
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
from normprobe.statistics.loud_tokens import loudest_tokens
from normprobe.statistics.resampling import Resampled, add_intervals
from normprobe.statistics.sample_statistics import GROWTH, histogram_of, merge, reported_groups
from normprobe.statistics.weights import embedding_statistics, row_norms
from normprobe.tidy import COUNTS, ESTIMATES, QUANTITY, Numbers, Table, declared, select, tidy

#: Column of the sample rows: decoder input / table row, NaN where no scalar does it.
SCALE_COLUMN = "embedding_scale"

_BY = ["stage", "group"]
_TABLE = ((EFFECTIVE_EMBEDDING, NONZERO_ROWS), (EFFECTIVE_EMBEDDING, PROMPT_ROWS))
_PROMPT = ((DECODER_INPUT, TEXT),)
_BEFORE = ((PROJECTOR_INPUT, VISUAL), (VISION_ENCODER, VISUAL))
#: Of each ratio which mean norm, and the stage and group by whose it is divided: of these the first
#: that is there. Sentences say the geometric ones, but no embedding table keeps geometric means.
_RATIOS = {
    "ratio_to_table": ("mean", _TABLE),
    "ratio_to_prompt": ("mean", _PROMPT),
    "ratio_to_before_projector": ("mean", _BEFORE),
    "geometric_ratio_to_prompt": ("geometric_mean", _PROMPT),
    "geometric_ratio_to_before_projector": ("geometric_mean", _BEFORE),
}


def tables(rows: pd.DataFrame, model: MeasuredModel) -> dict[str, pd.DataFrame]:
    """Everything that a run of ``interface`` contains."""
    rows = reported_groups(rows)
    embedded = table_rows(model.parts, model.vocabulary_ids)
    written = {"interface": interface_table(rows, embedded)}
    if "loudest_position" in rows:
        written["loudest"] = loudest_tokens(rows, _BY, model.token_text)
    histogram = visual_table_histogram(rows, model.parts)
    if len(histogram):
        written["histogram"] = histogram
    return written


def table_rows(parts: Parts, tokenizer_ids: Iterable[int] | None) -> pd.DataFrame:
    """The embedding tables as rows of interface.csv, by table and scope; none without tables."""
    tables = (
        (TEXT_EMBEDDING_TABLE, parts.text_embedding, tokenizer_ids),
        (VISUAL_EMBEDDING_TABLE, parts.visual_embedding, None),
    )
    statistics = [
        embedding_statistics(weight_of(part), tokenizer_ids=ids, table=stage)
        for stage, part, ids in tables
        if part is not None
    ]
    if not statistics:
        return pd.DataFrame()
    rows = pd.concat(statistics, ignore_index=True)
    rows = rows[rows[QUANTITY].isin(_declared().numbers)]
    return rows.rename(columns={"table": "stage", "rows": "group"})


def _declared() -> Table:
    return declared(__package__)["interface"]


def interface_table(
    rows: pd.DataFrame, embedded: pd.DataFrame, *, intervals: bool = True
) -> pd.DataFrame:
    """Sample rows, and those of the embedding tables, to interface.csv."""
    if len(embedded):
        scales = rows.loc[rows["stage"] == DECODER_INPUT, SCALE_COLUMN]
        if scales.notna().all():
            embedded = pd.concat([embedded, _scaled(embedded, scales.median())])
        else:
            rows = pd.concat([rows, _of_prompts(rows)], ignore_index=True)
    cells, numbers = _numbers(rows, embedded)
    if intervals:
        _add_intervals(cells, numbers, rows)
    table = tidy(cells, numbers)
    place = table["stage"].map(STAGES.index)
    return table.loc[place.sort_values(kind="stable").index].reset_index(drop=True)


def _scaled(embedded: pd.DataFrame, scale: float) -> pd.DataFrame:
    """The text table as it enters layer 1."""
    effective = embedded[embedded["stage"] == TEXT_EMBEDDING_TABLE].copy()
    sizes = [name for name in ESTIMATES if name in effective and name not in COUNTS]
    effective.loc[effective[QUANTITY] == "norm", sizes] *= scale
    return effective.assign(stage=EFFECTIVE_EMBEDDING)


def _of_prompts(rows: pd.DataFrame) -> pd.DataFrame:
    """The same where no scalar does it: the prompts' text stands for it."""
    prompts = rows[(rows["stage"] == DECODER_INPUT) & (rows["group"] == TEXT)]
    return prompts.assign(stage=EFFECTIVE_EMBEDDING, group=PROMPT_ROWS)


def _numbers(rows: pd.DataFrame, embedded: pd.DataFrame) -> tuple[pd.DataFrame, Numbers]:
    """The cells of interface.csv, and what is measured of each."""
    cells, merged = merge(rows, _BY, ["norm"])
    groups = rows.groupby(_BY, sort=False)
    width = groups["hidden_size"].first().to_numpy()
    of_samples: Numbers = {"hidden_size": {"mean": width}, **merged}
    if "loudest_share" in rows:
        of_samples["loudest_share"] = {"mean": groups["loudest_share"].mean().to_numpy()}
    table = pd.concat([tidy(cells, of_samples), embedded], ignore_index=True)
    cells = table[[*_BY, *COUNTS]].drop_duplicates(_BY).reset_index(drop=True)
    found = {name: cells[_BY].merge(select(table, name), "left", _BY) for name in of_samples}
    numbers: Numbers = {
        name: {each: of_cells[each].to_numpy() for each in ESTIMATES if each not in COUNTS}
        for name, of_cells in found.items()
    }
    norm = found["norm"]
    numbers["rms"] = {"mean": norm["mean"] / np.sqrt(found["hidden_size"]["mean"])}
    for ratio, (estimate, place) in _references(cells).items():
        to = norm[estimate] / norm[estimate].iloc[place]
        if cells["stage"].iloc[place] in dict(_BEFORE):  # what stands there is of images
            to = to.mask(cells["group"].isin(OTHER_MEDIA))
        numbers[ratio] = {"mean": to}
    return cells, numbers


def _references(cells: pd.DataFrame) -> dict[str, tuple[str, int]]:
    """Of each ratio the mean, and the cell by whose mean it is divided, where there is one."""
    places = {
        cell: place for place, cell in enumerate(cells[_BY].itertuples(index=False, name=None))
    }
    found = {}
    for ratio, (estimate, references) in _RATIOS.items():
        held = [places[cell] for cell in references if cell in places]
        if held:
            found[ratio] = estimate, held[0]
    return found


def _add_intervals(cells: pd.DataFrame, numbers: Numbers, rows: pd.DataFrame) -> None:
    """The ends of the means and ratios.

    Rows of an embedding table are no sample: their norms have no interval, the ratios of the
    prompts' tokens to them have one.
    """
    resampled = Resampled(cells, rows, _BY)
    drawn = resampled.of_tokens(["norm"])
    drawn["rms", "mean"] = drawn["norm", "mean"] / np.sqrt(numbers["hidden_size"]["mean"])
    sampled = np.asarray(resampled.held.any(axis=0))
    for ratio, (estimate, place) in _references(cells).items():
        norms = np.where(sampled, drawn["norm", estimate], numbers["norm"][estimate])
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = norms / norms[:, [place]]
        told = (sampled | sampled[place]) & ~np.isnan(np.asarray(numbers[ratio]["mean"]))
        drawn[ratio, "mean"] = np.where(told, ratios, np.nan)
    # A row of an embedding table is in no image: what has an interval there are its ratios.
    held = resampled.held | ~sampled
    add_intervals(numbers, drawn, resampled.units, held, table=_declared())


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
