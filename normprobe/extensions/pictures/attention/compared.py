"""Runs of ``attention`` side by side: before and after alignment, or two models on one picture."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from normprobe.extensions.pictures.attention.figures import HEATMAPS
from normprobe.report.charts import Panel, by_series, draw_panel
from normprobe.report.figures.draw import Drawing
from normprobe.report.figures.lines import Given, entries, legend_below, panels
from normprobe.report.figures.style import DOUBLE_WIDTH, drawable
from normprobe.report.ratio_words import Estimate, Ratio
from normprobe.runs.run_folder import RunStore
from normprobe.tidy import wide

_HEIGHT = 2.8  # inches
_PANELS = {
    "share": "(a) attention on visual tokens",
    "entropy": "(b) entropy of attention (1: even)",
    "vertical_center": "(c) vertical center",
}
#: Header and column of each number of the ranking.
COLUMNS = {
    "share / even": "share_to_even",
    "share": "share",
    "entropy": "entropy",
    "vertical center": "vertical_center",
}
NOTES = (
    "Attention of all text to visual tokens, means over layers. share / even: against",
    "an even spread; its |log| ranks. entropy: 1: even. vertical center: 0 is the top",
    "of the image, 1 its bottom. One prompt a run, no intervals.",
)
#: The first of them, in words.
RANKED = "attention on visual tokens / that of an even spread"
#: No interval: there are no sample rows.
ROW_COLUMNS = ()


def drawings(_compare: pd.DataFrame) -> list[Drawing]:
    """The figures of ``compare.csv``, and the maps where the pictures are the same."""
    return [Drawing("compare_attention", ("compare",), draw_runs), HEATMAPS]


def draw_runs(title: str, compare: pd.DataFrame, ax: Given = None) -> Figure:
    """Attention of all text to the image: how much, how widely, how high; a line a run."""
    drawing, grid = panels(title, DOUBLE_WIDTH, _HEIGHT, (1, len(_PANELS)), ax)
    told = compare[compare["query"] == compare["query"].iloc[0]]
    told = told.assign(run=told["run"].map(lambda run: drawable(str(run))))
    for axes, (quantity, words) in zip(grid[0], _PANELS.items(), strict=True):
        axes.set_title(words, loc="left")
        panel = Panel(words, by_series(told, "run", quantity), "signed")
        draw_panel(axes, panel, told, int(compare["layer"].max()), clip_on=False)
        axes.set_xlim(left=0.6)
        axes.set_ylim(0, 1)
    grid[0, 2].invert_yaxis()  # the top of the image is 0
    grid[0, 2].set_yticks([0, 0.5, 1], ["top", "middle", "bottom"])
    legend_below(drawing, grid, [*entries(grid).values()][::-1])
    return drawing


def measures(attention: pd.DataFrame, _rows: pd.DataFrame | None = None) -> dict[str, Estimate]:
    """How much, how widely and where the text of one run attends to the image."""
    told = wide(attention[attention["query"] == attention["query"].iloc[0]])
    means = told[told["heads"] > 0].reindex(columns=[*_PANELS, "even_share"]).mean()
    numbers = {name: Estimate(float(means[name])) for name in _PANELS}
    return {"share_to_even": Ratio(float(means["share"] / means["even_share"])), **numbers}


def shared(runs: Sequence[RunStore], labels: Sequence[str]) -> dict[str, pd.DataFrame]:
    """The heat maps of all runs below each other, where they are of the same pictures."""
    pictures = [list((run.record.get("image_hashes") or {}).values()) for run in runs]
    if any(of_run != pictures[0] for of_run in pictures):
        return {}
    maps = [run.rows_of("heatmaps") for run in runs]
    known = [(table, label) for table, label in zip(maps, labels, strict=True) if table is not None]
    if len(known) < len(runs):
        return {}
    joined = pd.concat([table.assign(run=label) for table, label in known], ignore_index=True)
    return {"heatmaps": joined}
