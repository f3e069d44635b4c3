"""A tiny model with its own processor, and one sample of a word with a box."""

from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from normprobe.data.data_set import bundled_data_dir
from normprobe.data.sample import Referent, Sample
from normprobe.inputs.builder import InputBuilder
from normprobe.model.find.structure import find_parts
from normprobe.model.measured_model import MeasuredModel
from support.processors import RECIPES, make_processor
from support.tiny_inputs import SPECIAL_IDS
from support.tiny_models import tiny_model

WORD = "cup"
SIZE = (96, 64)  # width and height
BOX = (0.0, 0.0, 36.0, 64.0)


def sample(box: tuple[float, float, float, float] = BOX, word: str = WORD) -> Sample:
    picture = Image.open(bundled_data_dir() / "images" / "coffee.jpg").convert("RGB").resize(SIZE)
    return Sample("boxes/cup", "Where is the cup?", (picture,), Referent(word, box))


@cache
def loaded(model_type: str) -> tuple[MeasuredModel, InputBuilder]:
    """A tiny model on the CPU and what makes its inputs."""
    if model_type not in RECIPES:
        pytest.skip("its processor needs torchvision")
    model = tiny_model(model_type)
    builder = InputBuilder(make_processor(model_type), model_type=model_type)
    return MeasuredModel(model, find_parts(model), SPECIAL_IDS), builder


def share_in(place: NDArray[np.float64], box: tuple[float, float, float, float]) -> float:
    """Which share of a place, in fractions of the picture, lies in a box; NaN of an empty place."""
    share = 1.0
    for axis, pixels in enumerate(SIZE):
        begin, end = place[axis] * pixels, place[axis + 2] * pixels
        if end <= begin:
            return np.nan
        share *= max(0.0, min(end, box[axis + 2]) - max(begin, box[axis])) / (end - begin)
    return share
