"""Numbers of visual tokens laid over a picture: what the maps of all measurements share.

A measurement that draws such maps has ``norm_map(model, picture)`` in its ``norm_map`` module.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageOps

from normprobe.inputs.on_device import inputs_for
from normprobe.model.find.overrides import CROSS_ATTENTION
from normprobe.model.image_places import Array, Build, PlacesUnknown
from normprobe.model.measured_model import MeasuredModel
from normprobe.schema import TOKEN_GROUPS, VISUAL

#: The columns of a place, as fractions of the picture.
PLACE = ("left", "top", "right", "bottom")


class Picture(NamedTuple):
    """One image of a prompt.

    Attributes:
        image: RGB.
        build: makes the inputs of the prompt with another picture in its place.
        alone: whether the prompt has no other image.
    """

    image: Image.Image
    build: Build
    alone: bool

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The inputs of the prompt."""
        return self.build(self.image)

    @property
    def other_inputs(self) -> Mapping[str, Any]:
        """The inputs with every pixel of this image changed, and of no other."""
        return self.build(ImageOps.invert(self.image))


class NormMap(NamedTuple):
    """What is known of one picture.

    Attributes:
        rows: one row a (layer or stage, visual token), as ``rows_at`` makes them; empty where
            nothing is known.
        unknown: what has no map, and why.
    """

    rows: pd.DataFrame
    unknown: Mapping[str, str]


def rows_at(boxes: Array, **columns: ArrayLike) -> pd.DataFrame:
    """Rows of ``map.csv``: a visual token each, numbered from 1 in the order of the states.

    Args:
        boxes: ``[tokens, 4]``, of ``image_places``.
        **columns: those before and behind the place, one value or one a token. ``norm`` and
            ``angle`` stand behind it.
    """
    before = {name: value for name, value in columns.items() if name not in _NUMBERS}
    behind = {name: value for name, value in columns.items() if name in _NUMBERS}
    places = dict(zip(PLACE, boxes.T, strict=True))
    tokens = np.arange(1, len(boxes) + 1)
    return pd.DataFrame({**before, "visual_token": tokens, **places, **behind})


_NUMBERS = ("norm", "angle")


def own_positions(model: MeasuredModel, picture: Picture) -> NDArray[np.bool_]:
    """Which positions of the decoder input come from the pixels of one picture, ``[positions]``.

    Where the prompt has other images: those that other pixels of this one change.
    """
    if model.parts.fusion == CROSS_ATTENTION:
        raise PlacesUnknown("the text attends to visual states that are no rows of its sequence")
    inputs = inputs_for(model.model, picture.inputs)
    states = model.decoder_input(inputs)
    own = model.batch(inputs).groups_at(states)[0] == TOKEN_GROUPS.index(VISUAL)
    if not picture.alone:
        other = model.decoder_input(inputs_for(model.model, picture.other_inputs))
        own &= (states != other).any(dim=-1)[0]
    positions: NDArray[np.bool_] = own.cpu().numpy()
    return positions
