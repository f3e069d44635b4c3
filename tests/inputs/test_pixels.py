"""Which inputs hold pixels: known names, else all that is not known to be something else."""

from typing import Any

import pytest
import torch

from normprobe.inputs.on_device import pixel_inputs, with_other_pixels

IDS = {"input_ids": torch.zeros(1, 3, dtype=torch.long), "attention_mask": torch.ones(1, 3)}
PICTURE = torch.full((1, 3, 4), 0.5)


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({"pixel_values": PICTURE, "state": torch.ones(1, 7)}, ["pixel_values"]),
        ({"data": {"ids": torch.zeros(1, 2), "pixel_values": [PICTURE]}}, ["data"]),
        ({"picture": PICTURE}, ["picture"]),
        ({"media": {"image": [PICTURE]}}, ["media"]),
        ({"input_features": PICTURE}, []),
        ({"weight": torch.tensor(0.5)}, []),
        ({"pixel_values": PICTURE, "pixel_values_videos": PICTURE}, ["pixel_values"]),
        ({"pixel_values_videos": PICTURE, "input_values": PICTURE}, []),
        ({"pixel_values": PICTURE[:0], "media": {"sound_clips": PICTURE}}, []),
        ({}, []),
    ],
)
def test_the_names_of_pixels(inputs: dict[str, Any], expected: list[str]) -> None:
    inputs = IDS | inputs
    assert list(pixel_inputs(inputs)) == expected
    changed = with_other_pixels(inputs)
    same = [name for name, value in inputs.items() if _equal(changed[name], value)]
    assert same == [name for name in inputs if name not in expected]


@pytest.mark.parametrize(
    ("group", "expected"),
    [("video", ["pixel_values_videos"]), ("audio", ["input_features", "input_audio_embeds"])],
)
def test_the_names_of_videos_and_sounds(group: str, expected: list[str]) -> None:
    inputs = IDS | {
        "pixel_values": PICTURE,
        "pixel_values_videos": PICTURE,
        "video_grid_thw": torch.ones(1, 3, dtype=torch.long),
        "video_second_per_grid": torch.ones(1),
        "video_attention_mask": torch.ones(1, 3),
        "input_features": PICTURE,
        "input_features_mask": torch.ones(1, 3),
        "input_audio_embeds": PICTURE,
        "speech_values": torch.empty(0, 3),
    }
    assert list(pixel_inputs(inputs, group)) == expected
    changed = with_other_pixels(inputs, group)
    assert [name for name in inputs if not _equal(changed[name], inputs[name])] == expected


def test_sound_in_whole_numbers() -> None:
    codes = {"audio_input_ids": torch.ones(1, 5, 8, dtype=torch.long)}
    assert list(pixel_inputs(IDS | codes, "audio")) == ["audio_input_ids"]


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(_equal(one[name], other[name]) for name in other)
    if isinstance(one, list):
        return all(map(_equal, one, other))
    return torch.equal(one, other)
