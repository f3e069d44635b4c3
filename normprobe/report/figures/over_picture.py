"""Numbers laid over a picture: the colour tells the number, its shade the picture."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.patches import Patch
from numpy.typing import NDArray
from PIL import Image

_CANVAS = 448  # pixels of the longer side
_SHADE = 0.5  # how much of a colour's brightness the picture takes
#: Where nothing is laid over the picture: no token looks there.
BARE = 0.8


def grey_patch() -> Patch:
    """What a legend says of it."""
    return Patch(color=str(BARE), label="no visual token looks there")


def canvas_shape(width: int, height: int) -> tuple[int, int]:
    """Height and width of a canvas with the proportions of a picture."""
    scale = _CANVAS / max(width, height)
    return max(1, round(height * scale)), max(1, round(width * scale))


def on_canvas(places: pd.DataFrame, shape: tuple[int, int]) -> NDArray[np.int64]:
    """Where places lie, in pixels: ``[places, 4]``: left, top, right, bottom."""
    edges = places[["left", "top", "right", "bottom"]].to_numpy(float)
    inside = np.nan_to_num(edges, nan=0.0).clip(0.0, 1.0)
    pixels: NDArray[np.int64] = (inside * (*shape[::-1], *shape[::-1])).round().astype(int)
    return pixels


def over_picture(
    scale: ScalarMappable, drawn: NDArray[np.float64], picture: NDArray[Any]
) -> NDArray[np.float64]:
    """The picture in the colours of the numbers; in grey where there is none.

    Args:
        scale: from numbers to colours.
        drawn: ``[height, width]`` of the canvas, NaN where no token looks.
        picture: ``[height, width, 3]``, of any size.

    Returns:
        RGB ``[height, width, 3]`` of the canvas, 0 to 1.
    """
    size = drawn.shape[1], drawn.shape[0]
    grey = np.asarray(Image.fromarray(picture).convert("L").resize(size)) / 255
    colour = np.where(np.isfinite(drawn)[..., None], scale.to_rgba(drawn)[..., :3], BARE)
    shaded: NDArray[np.float64] = colour * (1 - _SHADE + _SHADE * grey[..., None])
    return shaded
