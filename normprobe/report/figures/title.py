"""The line above a figure: which model, which data, how many samples."""

import numpy as np
import pandas as pd

from normprobe.report.figures.glyphs import drawable
from normprobe.runs.run_store import RunStore


def title(run: RunStore, table: pd.DataFrame) -> str:
    """E.g. ``llava-hf/llava-1.5-7b-hf, mmbench, 1000 samples``.

    Args:
        run: ``model`` and ``data`` of its record are used when there, its own name otherwise.
        table: the table that is drawn; the samples are counted here, so that the number is that
            of the drawing.
    """
    record = run.record
    names = [str(record[key]).rstrip("/") for key in ("model", "data") if record.get(key)]
    parts = [short_name(name) for name in names] or [run.name]
    if record.get("alignment"):
        parts.insert(1, "aligned")
    if "samples" in table and table["samples"].notna().any():
        runs = table.groupby("run")["samples"] if "run" in table else table["samples"]
        least, most = (int(number) for number in (np.min(runs.max()), np.max(runs.max())))
        counted = f"{most}" if least == most else f"{least} to {most}"
        parts.append(f"{counted} sample{'' if most == 1 else 's'}")
    return drawable(", ".join(parts))


def short_name(name: str) -> str:
    """A hub id as it is; of a longer path the last name."""
    return name if name.count("/") == 1 and name[0] not in "./~" else name.split("/")[-1]
