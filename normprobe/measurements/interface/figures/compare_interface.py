"""Norms on the way to the decoder, run by run."""

import pandas as pd
from matplotlib.figure import Figure

from normprobe.report.figures.dots import dot_panels
from normprobe.report.figures.lines import Given
from normprobe.report.figures.style import GROUP_LOOKS
from normprobe.schema import DECODER_INPUT, PROJECTOR_OUTPUT, TEXT, VISION_ENCODER, VISUAL

TABLES = ("compare",)

_STAGES = (VISION_ENCODER, PROJECTOR_OUTPUT, DECODER_INPUT)


def figure(title: str, compare: pd.DataFrame, ax: Given = None) -> Figure:
    """Visual and text tokens at each stage, all runs on one axis."""
    looks = {group: GROUP_LOOKS[group] for group in (VISUAL, TEXT)}
    parts = [compare[compare["stage"] == stage] for stage in _STAGES]
    rows = pd.concat(parts).assign(panel=lambda row: row["stage"].str.replace("_", " "))
    order = list(dict.fromkeys(compare["run"]))
    rows = rows.sort_values("run", key=lambda run: run.map(order.index), kind="stable")
    rows = rows.sort_values("stage", key=lambda stage: stage.map(_STAGES.index), kind="stable")
    return dot_panels(title, rows, looks, ax)
