"""The line above a figure: which model, which data, how many of what."""

import numpy as np
import pandas as pd

from normprobe.report.figures.glyphs import drawable, shortened
from normprobe.runs.run_folder import RunStore
from normprobe.schema import IMAGE

_LONGEST = 60  # characters of a prompt

#: Bundled data: what they are and what a sample of them is. Their ids are those of benchmarks.
_BUNDLED = {
    "sample": ("the bundled sample", "question"),
    "boxes": ("the bundled sample", "question"),
    "pairs": ("the bundled pairs of photographs", "question"),
    "text": ("the bundled text", "prompt"),
}
_BATCH = "fixed inputs"  # that a processor made: nobody knows of what


def title(run: RunStore, table: pd.DataFrame) -> str:
    """E.g. ``llava-hf/llava-1.5-7b-hf, 1000 samples of mmbench``."""
    record = run.record
    parts = [_short(str(record["model"]))] if record.get("model") else []
    if record.get("base") and "base_norm" in table:
        parts = [f"{parts[0] if parts else run.name} against {_short(str(record['base']))}"]
    if record.get("alignment"):
        parts.append("aligned")
    if prompt := (record.get("options") or {}).get("prompt"):
        parts.append(f'"{shortened(" ".join(str(prompt).split()), _LONGEST)}"')
        return drawable(", ".join(parts))
    data = str(record.get("data") or "")
    if record.get("compared") == "attention":
        return drawable(", ".join([*parts, "one prompt"]))
    if data == _BATCH:
        data = ""
    whole, sample = _BUNDLED.get(data, (_short(data), "sample"))
    told = [_counted(table, sample, "photograph" if data in _BUNDLED else "picture"), whole]
    if any(told):
        parts.append(" of ".join(part for part in told if part))
    return drawable(", ".join(parts if record.get("model") or data else [run.name, *parts]))


def _counted(table: pd.DataFrame, sample: str, picture: str) -> str:
    """How many samples or pictures a table holds; empty where it does not say."""
    if IMAGE in table:
        return _number(table[IMAGE].nunique(), picture)
    if "samples" not in table or table["samples"].isna().all():
        return ""
    runs = table.groupby("run")["samples"] if "run" in table else table["samples"]
    least, most = (int(number) for number in (np.min(runs.max()), np.max(runs.max())))
    return _number(most, sample, "" if least == most else f"{least} to ")


def _number(count: int, what: str, before: str = "") -> str:
    return f"{before}{count} {what}{'' if count == 1 else 's'}"


def _short(name: str) -> str:
    """A hub id as it is; of a longer path the last name."""
    name = name.rstrip("/")
    return name if name.count("/") == 1 and name[0] not in "./~" else name.split("/")[-1]
