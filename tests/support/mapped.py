"""A photograph in a prompt of a tiny model, and its states when pixels of the picture change."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from normprobe.data.data_set import bundled_data_dir
from normprobe.data.sample import Sample
from normprobe.inputs.builder import InputBuilder
from normprobe.model.measured_model import MeasuredModel
from normprobe.model.token_places import Picture
from support.capture import Array, States, capture
from support.expected_parts import ExpectedParts
from support.several_images import inputs_of, loaded

SIZE = (96, 64)  # width and height

#: Types of every kind of grid: plain, pooled, padded, merged, tiled, with newlines.
TYPES = (
    "llava",
    "paligemma",
    "gemma3",
    "deepseek_vl",
    "lighton_ocr",
    "paddleocr_vl",
    "hunyuan_vl",
    "llava_next",
    "idefics3",
    "ovis2",
    "qianfan_ocr",
)


@cache
def photograph(size: tuple[int, int] = SIZE) -> Image.Image:
    picture = Image.open(bundled_data_dir() / "images" / "coffee.jpg").convert("RGB")
    return picture.resize(size)


def prompt(*images: Image.Image) -> Sample:
    return Sample("picture", "What?", images)


def picture_of(builder: InputBuilder, sample: Sample, number: int = 1) -> Picture:
    """An image of a sample, by its number from 1."""

    def build(image: Image.Image) -> dict[str, object]:
        images = [*sample.images]
        images[number - 1] = image
        return dict(builder.build([replace(sample, images=tuple(images))]))

    return Picture(sample.images[number - 1], build, alone=len(sample.images) == 1)


def tiny(model_type: str, folder: Path) -> tuple[MeasuredModel, InputBuilder]:
    return loaded(model_type, folder / f"mapped-{model_type}")


def captured(model: MeasuredModel, builder: InputBuilder, sample: Sample) -> States:
    """The states of all parts that the model has."""
    names = {
        role: getattr(model.parts, role) and getattr(model.parts, role).name
        for role in ("vision_encoder", "projector", "decoder_layers")
    }
    return capture(model.model, inputs_of(model, builder, sample), ExpectedParts(**names))


def with_square(x: float, y: float, size: tuple[int, int] = SIZE, side: int = 10) -> Image.Image:
    """Grey all over, and a white square around a point given in fractions."""
    values = np.full((size[1], size[0], 3), 100, dtype=np.uint8)
    left, top = round(x * size[0]) - side // 2, round(y * size[1]) - side // 2
    values[max(top, 0) : top + side, max(left, 0) : left + side] = 255
    return Image.fromarray(values)


def flat(calls: list[Array], first_rows: int = 0) -> Array:
    """Rows of all calls below each other, without the first ones of each tile."""
    tiles = [call.reshape(-1, *call.shape[-2:]) for call in calls]
    return np.concatenate([tile[first_rows:] for call in tiles for tile in call])


def moved_most(before: Array, after: Array) -> int:
    """The row that went farthest."""
    distance: NDArray[np.float64] = np.linalg.norm(after - before, axis=-1)
    return int(distance.argmax())


def assert_looks_at(place: Array, x: float, y: float) -> None:
    """The point lies in the place, or so near that half of its square does."""
    left, top, right, bottom = place
    near = 0.02  # the middle of a merged token is where four patches meet
    assert left - near <= x <= right + near and top - near <= y <= bottom + near, (place, x, y)
