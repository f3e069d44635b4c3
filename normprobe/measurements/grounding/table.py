"""Sample rows of ``grounding`` to the tables of a run."""

import pandas as pd

from normprobe.errors import NormprobeError
from normprobe.measurements.grounding.measure import LEFT_OUT, QUANTITIES, SIDES
from normprobe.model.measured_model import MeasuredModel
from normprobe.statistics.resampling import Resampled, Together, with_intervals

_MEANS = tuple(f"{quantity}_{side}" for quantity in QUANTITIES for side in SIDES)


def tables(rows: pd.DataFrame, model: MeasuredModel | None = None) -> dict[str, pd.DataFrame]:
    """Everything that a run of ``grounding`` contains."""
    del model
    out = rows[rows[LEFT_OUT] != ""]
    measured = rows[rows[LEFT_OUT] == ""]
    if measured.empty:
        raise NormprobeError(
            f"no sample could be measured; {out['sample_id'].iloc[0]}: {out[LEFT_OUT].iloc[0]}",
            "pass other --data, with boxes around parts of the picture",
        )
    found = {"grounding": with_gap_intervals(grounding_table(measured), measured)}
    if len(out):
        reasons = out[["sample_id", LEFT_OUT]].rename(columns={LEFT_OUT: "reason"})
        found[LEFT_OUT] = reasons.reset_index(drop=True)
    return found


def grounding_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Sample rows to grounding.csv."""
    by_layer = rows.groupby("layer")
    table = by_layer[list(_MEANS)].mean()
    table.insert(0, "samples", by_layer["cosine_gap"].count())
    table.insert(1, "score_samples", by_layer["score_gap"].count())
    return table.reset_index()


def with_gap_intervals(table: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Add ``<column>_ci_low`` and ``_ci_high`` for every mean, by a bootstrap over images."""
    resampled = Resampled(table, rows, ["layer"])
    draws = {column: resampled.means(column, by_tokens=False) for column in _MEANS}
    together = [Together([column]) for column in _MEANS if column.endswith("_gap")]
    held = {column: resampled.holding(column) for column in _MEANS}
    return with_intervals(table, draws, resampled.units, held, together)
