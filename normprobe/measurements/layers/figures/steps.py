"""Colours of the steps of a training, and the bar that tells them."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator


def step_scale(steps: pd.Series) -> ScalarMappable:
    """From the steps of a training to colours, early ones pale."""
    # The pale end of the map would vanish on paper.
    colors = ListedColormap(colormaps["viridis_r"](np.linspace(0.08, 1.0, 256)))
    return ScalarMappable(Normalize(steps.min(), steps.max()), colors)


def step_color(scale: ScalarMappable, step: int) -> str:
    """The colour of a step, as matplotlib takes it."""
    red, green, blue, _ = scale.to_rgba(np.array(step))
    return to_hex((red, green, blue))


def add_step_bar(
    drawing: Figure, scale: ScalarMappable, panels: Sequence[Axes], label: str
) -> None:
    """The colours of ``step_scale`` as a bar beside panels."""
    drawing.colorbar(
        scale,
        ax=list(panels),
        label=label,
        pad=0.01,
        ticks=MaxNLocator(integer=True),
        format=FuncFormatter(lambda step, _: f"{step:.0f}"),
    )
