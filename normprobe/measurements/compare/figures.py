"""What draws a comparison: the figures that the compared measurement offers, and the ranking."""

from functools import partial

import pandas as pd
from matplotlib.figure import Figure

from normprobe.measurements import measurement
from normprobe.report.dots import Dots, draw_dots
from normprobe.report.figures.draw import Drawing
from normprobe.report.figures.lines import Given
from normprobe.report.ranking import ranking_dots, series_colors
from normprobe.runs.run_folder import RunStore


def drawings(run: RunStore) -> list[Drawing]:
    """The figures of a run of ``compare``."""
    command = str(run.record["compared"])
    found: list[Drawing] = measurement(command).module("compared").drawings(run.table("compare"))
    ranked = run.rows_of("ranking")
    if ranked is None or compared_dots(command, ranked, run.table("compare")) is None:
        return found
    return [*found, Drawing("ranking", ("ranking", "compare"), partial(_draw, command))]


def compared_dots(command: str, ranking: pd.DataFrame, compare: pd.DataFrame) -> Dots | None:
    """The ranking as dots, each in the colour that its run has in other figures."""
    compared = measurement(command).module("compared")
    column = next(iter(compared.COLUMNS.values()))
    return ranking_dots(ranking, column, compared.RANKED, series_colors(compare))


def _draw(
    command: str, title: str, ranking: pd.DataFrame, compare: pd.DataFrame, ax: Given = None
) -> Figure:
    dots = compared_dots(command, ranking, compare)
    assert dots is not None  # or it is no figure of the run
    return draw_dots(title, dots, ax)
