"""Digests of what processors make: of a sample, whatever it is batched with."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.processors import RECIPES, make_processor

from normprobe.data.media import Audio
from normprobe.data.sample import Sample
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.pixel_hash import pixel_hashes

#: Tiles and patches of several samples lie in one list, without a word on whose they are.
NOT_TOLD = {"aya_vision", "internvl", "llama4", "ovis2", "perception_lm", "qianfan_ocr"}


def noise(seed: int, size: tuple[int, int]) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return Image.fromarray(values)


SAMPLES = [
    Sample(str(seed), "What is it?", (noise(seed, size),))
    for seed, size in enumerate([(64, 64), (90, 40), (40, 120)])
]
SAMPLES.append(Sample("4", "Which?", (noise(7, (60, 60)), noise(8, (80, 40)))))


@pytest.mark.parametrize("model_type", sorted(RECIPES))
def test_a_sample_has_one_digest_whatever_it_is_batched_with(model_type: str) -> None:
    builder = InputBuilder(make_processor(model_type), model_type=model_type)
    alone = [pixel_hashes([sample], builder.build([sample]))[0] for sample in SAMPLES[:3]]
    assert None not in alone and len(set(alone)) == 3
    together = pixel_hashes(SAMPLES[:3], builder.build(SAMPLES[:3]))
    if model_type in NOT_TOLD:
        assert together == [None] * 3
    else:
        assert together == alone


def of(values: torch.Tensor, *samples: Sample, **more: Any) -> list[str | None]:
    return pixel_hashes(samples, {"pixel_values": values, **more})


def test_one_pixel_makes_another_digest() -> None:
    values = torch.rand(3, 3, 8, 8)
    first = of(values, *SAMPLES[:3])
    values[1, 2, 3, 4] += 1e-6
    second = of(values, *SAMPLES[:3])
    assert [a == b for a, b in zip(first, second, strict=True)] == [True, False, True]


def test_images_of_one_sample_and_another_are_told_by_their_number() -> None:
    values = torch.rand(3, 3, 8, 8)
    one, two = SAMPLES[0], SAMPLES[3]
    assert of(values, one, two) == [*of(values[:1], one), *of(values[1:], two)]
    assert of(values, two, one) == [*of(values[:2], two), *of(values[2:], one)]


def test_rows_of_samples_hold_all_their_images() -> None:
    """As Idefics has them: a row a sample, padded to the most images."""
    values, one, two = torch.rand(2, 2, 3, 8, 8), SAMPLES[0], SAMPLES[3]
    values[0, 1] = 0
    assert of(values, one, two) == [*of(values[:1, :1], one), *of(values[1:], two)]


def test_patches_in_one_list_are_told_by_their_grid() -> None:
    values, grid = torch.rand(10, 6), torch.tensor([[1, 2, 2], [1, 2, 3]])
    first, second = SAMPLES[:2]
    assert of(values, first, second, image_grid_thw=grid) == [
        *of(values[:4], first, image_grid_thw=grid[:1]),
        *of(values[4:], second, image_grid_thw=grid[1:]),
    ]
    assert of(values, first, second) == [None, None]


def test_padding_to_the_largest_of_a_batch_does_not_count() -> None:
    values = torch.rand(2, 3, 8, 8)
    values[0, :, 6:] = 0
    values[0, :, :, 5:] = 0
    assert of(values, *SAMPLES[:2])[0] == of(values[:1, :, :6, :5], SAMPLES[0])[0]


def test_what_has_no_picture_has_no_digest() -> None:
    text = Sample("t", "Why?")
    assert of(torch.rand(1, 3, 4, 4), text, SAMPLES[0])[0] is None
    assert pixel_hashes([text], {"input_ids": torch.ones(1, 2)}) == [None]


def test_sounds_have_one_too() -> None:
    sound = replace(Sample("s", "Hear?"), audios=(Audio(np.zeros(16, np.float32), 16000),))
    features = torch.rand(1, 4, 8)
    (digest,) = pixel_hashes([sound], {"input_features": features})
    assert digest is not None
    assert pixel_hashes([sound], {"input_features": features + 1}) != [digest]
