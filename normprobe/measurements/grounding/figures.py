"""What is drawn of ``grounding``: gaps by layer, and what they are the difference of."""

from functools import partial

import pandas as pd
from matplotlib.figure import Figure

from normprobe.measurements.grounding.measure import QUANTITIES
from normprobe.report.charts import Curve, Panel, draw_panels
from normprobe.report.figures.draw import Drawing
from normprobe.report.figures.lines import Given
from normprobe.report.figures.style import GROUP_LOOKS, series_look
from normprobe.runs.run_folder import RunStore
from normprobe.schema import STRUCTURAL, VISUAL

_SIDES = {"outside": GROUP_LOOKS[STRUCTURAL], "inside": GROUP_LOOKS[VISUAL]}

#: How far ahead the visual tokens are that a word means: by cosine and by attention score.
GAPS = tuple(
    Panel(title, [Curve("gap", f"{quantity}_gap", series_look(0))], "difference")
    for quantity, title in (
        ("cosine", "cosine with the word, inside - outside"),
        ("score", "attention score of the word, inside - outside"),
    )
)
#: What the gaps are the difference of.
SIDE_LOOKS = tuple(
    Panel(
        f"{quantity} of a word and visual tokens",
        [Curve(side, f"{quantity}_{side}", look) for side, look in _SIDES.items()],
        "near",
    )
    for quantity in QUANTITIES
)

#: Panels of gaps beside each other, with 95 % intervals and bands over images.
beside_each_other = partial(draw_panels, columns=2, height=2.1)


def drawings(run: RunStore) -> list[Drawing]:
    """The figures of a run of ``grounding``."""
    del run
    return [Drawing("grounding", ("grounding",), draw_gaps)]


def draw_gaps(title: str, grounding: pd.DataFrame, ax: Given = None) -> Figure:
    """Cosine and score gap by layer."""
    return beside_each_other(title, GAPS, grounding, ax)
