"""From sample rows to tables: which samples say nothing, means over the others, their ratios."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from rich.console import Console

from normprobe.errors import NormprobeError, number_of
from normprobe.report.terminal import print_notes
from normprobe.runs.run_folder import RunStore
from normprobe.statistics.resampling import Draws, Resampled, Together, add_intervals
from normprobe.tidy import Numbers, Table, tidy

#: The column of sample rows that says why a sample was not measured, empty where it was; and the
#: table of those that were not.
LEFT_OUT = "left_out"


def measured_rows(rows: pd.DataFrame, done: str, remedy: str) -> pd.DataFrame:
    """The rows of samples that were measured.

    Args:
        rows: of all samples.
        done: what could be done with none of them, such as ``measured``.
        remedy: what to do then.

    Raises:
        NormprobeError: none was.
    """
    out, measured = rows[rows[LEFT_OUT] != ""], rows[rows[LEFT_OUT] == ""]
    if measured.empty:
        raise NormprobeError(
            f"no sample could be {done}; {out['sample_id'].iloc[0]}: {out[LEFT_OUT].iloc[0]}",
            remedy,
        )
    return measured


def left_out_table(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The samples that were not, and why; no table where there are none."""
    out = rows[rows[LEFT_OUT] != ""]
    if out.empty:
        return {}
    reasons = out[["sample_id", LEFT_OUT]].rename(columns={LEFT_OUT: "reason"})
    return {LEFT_OUT: reasons.reset_index(drop=True)}


def print_left_out(run: RunStore, console: Console) -> None:
    """Say below a table how many samples it lacks."""
    if run.has_table(LEFT_OUT):
        out = number_of(len(run.table(LEFT_OUT)), "sample")
        print_notes(console, f"{out} left out: {LEFT_OUT}.csv says why.")


def means_table(
    declaration: Table,
    cells: pd.DataFrame,
    rows: pd.DataFrame,
    quantities: Sequence[str],
    ratios: Mapping[str, tuple[str, str]],
    together: Sequence[Together],
) -> pd.DataFrame:
    """Means over samples, and ratios of these means, with intervals and bands over images.

    Args:
        declaration: of the table; what it has not is left out.
        cells: the keys of the table, in order.
        rows: sample rows, with these keys and a column a number.
        quantities: columns of ``rows``.
        ratios: by name the columns whose means are divided, above and below.
        together: the numbers that have a band.
    """
    keys = [*cells]
    ratios = {name: pair for name, pair in ratios.items() if name in declaration.numbers}
    columns = dict.fromkeys((*quantities, *(name for pair in ratios.values() for name in pair)))
    resampled = Resampled(cells, rows, keys)
    draws = {each: resampled.means(each, by_tokens=False) for each in columns}
    held = {each: resampled.holding(each) for each in columns}
    known = {each: rows[each].notna() for each in columns}
    for ratio, (above, below) in ratios.items():
        with np.errstate(divide="ignore", invalid="ignore"):
            draws[ratio] = draws[above] / draws[below]
        held[ratio], known[ratio] = held[above] & held[below], known[above] & known[below]
    names = [each for each in declaration.numbers if each in draws]
    counts = rows[keys].assign(**{each: known[each] for each in names}).groupby(keys)[names].sum()
    counts = counts.reindex(pd.MultiIndex.from_frame(cells) if len(keys) > 1 else cells[keys[0]])
    numbers: Numbers = {
        each: {"mean": draws[each][0], "samples": counts[each].to_numpy()} for each in names
    }
    drawn: Draws = {(each, "mean"): draws[each] for each in names}
    of_means = {(each, "mean"): held[each] for each in names}
    add_intervals(numbers, drawn, resampled.units, of_means, together, table=declaration)
    return tidy(cells, numbers)
