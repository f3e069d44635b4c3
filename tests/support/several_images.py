"""Samples with several images, and which rows of a decoder each of their images moves."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from normprobe.data.sample import Sample
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.inputs_file import family_file
from normprobe.inputs.on_device import inputs_for
from normprobe.inputs.processor import load_processor
from normprobe.model.find.structure import find_parts
from normprobe.model.measured_model import MeasuredModel
from normprobe.schema import IMAGE_NUMBERS
from support.capture import States, capture
from support.expected_parts import ExpectedParts
from support.processors import make_checkpoint
from support.tiny_models import tiny_model


def noise(seed: int, size: tuple[int, int]) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 255, (*size[::-1], 3), dtype=np.uint8)
    return Image.fromarray(values)


WIDE, HIGH = noise(0, (64, 48)), noise(1, (40, 70))
SAMPLES = [
    Sample("marked", "Is <image> like <image>?", (WIDE, HIGH)),
    Sample("one", "What is it?", (HIGH,)),
    Sample("before", "Are they alike at all?", (HIGH, WIDE)),
    Sample("text", "What?"),
]
SEVERAL = [sample for sample in SAMPLES if len(sample.images) > 1]


@cache
def loaded(model_type: str, folder: Path) -> tuple[MeasuredModel, InputBuilder]:
    """A tiny model on the CPU and what makes its inputs."""
    make_checkpoint(model_type, folder)
    model = tiny_model(model_type)
    builder = InputBuilder(
        load_processor(str(folder)), model_type=model_type, inputs_file=family_file(model.config)
    )
    return MeasuredModel(model, find_parts(model), builder.special_token_ids), builder


def inputs_of(model: MeasuredModel, builder: InputBuilder, sample: Sample) -> dict[str, Any]:
    """What the model takes."""
    inputs: dict[str, Any] = dict(inputs_for(model.model, builder.build([sample])))
    inputs.pop(IMAGE_NUMBERS, None)
    return inputs


def states_of(model: MeasuredModel, builder: InputBuilder, sample: Sample) -> States:
    """The states of its decoder layers."""
    assert model.parts.decoder_layers is not None
    parts = ExpectedParts(decoder_layers=model.parts.decoder_layers.name)
    return capture(model.model, inputs_of(model, builder, sample), parts)


def rows_of_image(
    model: MeasuredModel, builder: InputBuilder, sample: Sample, number: int
) -> NDArray[np.bool_]:
    """``[sequence]``: which rows at the decoder's door move when one image alone changes."""
    before, after = (
        states_of(model, builder, one).layers[0].entered[0]
        for one in (sample, _with_other(sample, number))
    )
    return (before != after).any(axis=-1)


def _with_other(sample: Sample, number: int) -> Sample:
    """The sample with other pixels in one of its images."""
    image = sample.images[number - 1]
    other = Image.fromarray(np.asarray(image) + np.uint8(128))
    images = [*sample.images]
    images[number - 1] = other
    return replace(sample, images=tuple(images))
