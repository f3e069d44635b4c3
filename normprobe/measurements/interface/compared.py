"""Runs of ``interface`` side by side: what ranks them, and how they are shown."""

import pandas as pd
from matplotlib.figure import Figure

from normprobe.measurements.interface.words import visual_stage
from normprobe.report.dots import figure_of_runs
from normprobe.report.figures.draw import Drawing
from normprobe.report.figures.lines import Given
from normprobe.report.figures.style import GROUP_LOOKS
from normprobe.report.ranking import ATTENDED, DISPARITY
from normprobe.report.ratio_words import Estimate, estimate_of, ratio_of
from normprobe.schema import (
    DECODER_INPUT,
    OTHER_MEDIA,
    PROJECTOR_OUTPUT,
    TEXT,
    VISION_ENCODER,
    VISUAL,
)
from normprobe.tidy import select

#: Header and column of each number of the ranking.
COLUMNS = {
    "x prompt": "disparity_input",
    "x table": "ratio_to_table",
    "visual": "visual_norm",
    "text": "text_norm",
}
NOTES = (
    "Norms at the decoder input, visual / text. x prompt: geometric means, the text",
    "tokens of the prompts. x table: means, the non-zero effective text embeddings",
    "(Eq. 11). Ranked by |log x prompt|.",
)
#: The first of them, in words.
RANKED = "visual / text norm at the decoder input"
#: What the intervals need of the sample rows: they are in the table.
ROW_COLUMNS = ()


def measures(interface: pd.DataFrame, _rows: pd.DataFrame | None = None) -> dict[str, Estimate]:
    """Disparity of one run at the decoder input, each number with its 95 % interval."""
    disparity, here = "geometric_ratio_to_prompt", DECODER_INPUT
    numbers: dict[str, Estimate] = {
        DISPARITY: ratio_of(interface, disparity, stage=here, group=VISUAL),
        "ratio_to_table": ratio_of(interface, "ratio_to_table", stage=here, group=VISUAL),
        "visual_norm": estimate_of(interface, "norm", stage=here, group=VISUAL),
        "text_norm": estimate_of(interface, "norm", stage=here, group=TEXT),
    }
    for group in OTHER_MEDIA:
        ratio = ratio_of(interface, disparity, stage=here, group=group)
        if ratio.usable:
            numbers[f"disparity_{group}"] = ratio
    stage = visual_stage(interface)
    if stage != here:
        numbers[ATTENDED] = ratio_of(interface, disparity, stage=stage, group=VISUAL)
    return numbers


_STAGES = (VISION_ENCODER, PROJECTOR_OUTPUT, DECODER_INPUT)


def drawings(_compare: pd.DataFrame) -> list[Drawing]:
    """The figures of ``compare.csv``."""
    return [Drawing("compare_interface", ("compare",), draw_runs)]


def draw_runs(title: str, compare: pd.DataFrame, ax: Given = None) -> Figure:
    """Visual and text tokens on the way to the decoder, all runs on one axis."""
    looks = {group: GROUP_LOOKS[group] for group in (VISUAL, TEXT)}
    parts = [select(compare, "norm", stage=stage) for stage in _STAGES]
    rows = pd.concat(parts).assign(panel=lambda row: row["stage"].str.replace("_", " "))
    order = list(dict.fromkeys(compare["run"]))
    rows = rows.sort_values("run", key=lambda run: run.map(order.index), kind="stable")
    rows = rows.sort_values("stage", key=lambda stage: stage.map(_STAGES.index), kind="stable")
    return figure_of_runs(title, rows, looks, ax)
