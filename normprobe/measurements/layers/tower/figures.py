"""What is drawn of a tower."""

import pandas as pd
from matplotlib.figure import Figure

from normprobe.measurements.layers.figures import METRICS
from normprobe.report.charts import Panel, by_group, draw_panels
from normprobe.report.figures.draw import Drawing
from normprobe.report.figures.lines import Given
from normprobe.runs.run_folder import RunStore

#: Numbers that decoder layers do not have, or not in this place.
TOWER_PANELS = (
    Panel("patches of high norm a picture", by_group("high_norm_a_picture")),
    Panel("largest magnitude, output", by_group("peak")),
    Panel("largest magnitude, inside", by_group("inner_peak")),
)


def drawings(run: RunStore) -> list[Drawing]:
    """The figures of a run."""
    return [
        _drawing("tower", METRICS[:2], 2),
        _drawing("tower_turning", METRICS[2:4], 2),
        _drawing("headroom", TOWER_PANELS, 3),
    ]


def _drawing(name: str, panels: tuple[Panel, ...], columns: int) -> Drawing:
    def draw(title: str, tower: pd.DataFrame, ax: Given = None) -> Figure:
        drawn = draw_panels(title, panels, tower, ax, columns=columns, height=2.1)
        for axes in drawn.axes:
            if axes.get_xlabel() == "decoder layer":
                axes.set_xlabel("block of the tower")
        return drawn

    return Drawing(name, ("tower",), draw)
