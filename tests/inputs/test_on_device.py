"""What a model is given besides what its processor returned, and which inputs hold pixels."""

import copy
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.tiny_models import tiny_model
from transformers import BatchFeature

from normprobe.inputs.on_device import inputs_for, pixel_inputs, with_other_pixels


def flat() -> BatchFeature:
    return BatchFeature(
        {"input_ids": torch.ones(3, 2, dtype=torch.long), "pixel_values": torch.ones(3, 1)}
    )


def nested() -> BatchFeature:
    """As MiniCPM-V takes it: tensors in lists in a dict."""
    data = {
        "pixel_values": [[torch.ones(2), torch.ones(3)], []],
        "ids": torch.ones(2, dtype=torch.long),
        "sizes": [(4, 3)],
    }
    return BatchFeature({"data": data, "attention_mask": torch.ones(2), "image_bound": None})


def tensors_of(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in tensors_of(item)]
    return []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [flat, nested])
def test_floats_take_the_dtype_of_the_model_and_what_is_given_stays(
    make: Callable[[], BatchFeature], dtype: torch.dtype
) -> None:
    model, given = tiny_model("llava").to(dtype), make()
    held = dict(given)
    first = inputs_for(model, given)
    for moved, tensor in zip(tensors_of(first), tensors_of(given), strict=True):
        assert moved.dtype == (dtype if tensor.is_floating_point() else torch.long)
    assert set(first) == set(given)  # no start token, for one
    if make is nested:
        assert (first["data"]["sizes"], first["image_bound"]) == ([(4, 3)], None)
    expected = copy.deepcopy(first)
    for tensor in tensors_of(first):  # as a model may do that writes into its inputs
        tensor.zero_()
    second = inputs_for(model, given)
    assert all(given[name] is value for name, value in held.items())
    assert set(given) == set(held)
    for kept, made in zip(tensors_of(given), tensors_of(make()), strict=True):
        assert kept.dtype == made.dtype
        assert torch.equal(kept, made)
    for again, before in zip(tensors_of(second), tensors_of(expected), strict=True):
        assert torch.equal(again, before)


@pytest.mark.parametrize(
    ("config", "generation", "start"),
    [
        ({"decoder_start_token_id": 5}, {}, 5),
        ({}, {"decoder_start_token_id": 6}, 6),
        ({"bos_token_id": 7}, {}, 7),
    ],
)
def test_a_text_decoder_begins_with_its_start_token(
    config: dict[str, int], generation: dict[str, int], start: int
) -> None:
    model = SimpleNamespace(  # as much of one as is asked for
        parameters=lambda: iter([torch.zeros(1)]),
        dtype=torch.float32,
        config=SimpleNamespace(
            is_encoder_decoder=True, get_text_config=lambda decoder: SimpleNamespace(), **config
        ),
        generation_config=SimpleNamespace(**generation),
    )
    given = flat()
    assert inputs_for(model, given)["decoder_input_ids"].tolist() == [[start]] * 3
    assert "decoder_input_ids" not in given
    given["decoder_input_ids"] = torch.zeros(3, 4, dtype=torch.long)
    assert inputs_for(model, given)["decoder_input_ids"].shape == (3, 4)


IDS = {"input_ids": torch.zeros(1, 3, dtype=torch.long), "attention_mask": torch.ones(1, 3)}
PICTURE = torch.full((1, 3, 4), 0.5)
COLOURS = torch.full((1, 3, 4, 4), 0.5)
ALL = {
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


@pytest.mark.parametrize(
    ("group", "inputs", "expected"),
    [
        ("visual", {"pixel_values": PICTURE, "state": torch.ones(1, 7)}, ["pixel_values"]),
        ("visual", {"data": {"ids": torch.zeros(1, 2), "pixel_values": [PICTURE]}}, ["data"]),
        # a picture by its shape, beside one by its name
        (
            "visual",
            {"images": [COLOURS], "images_highres": [COLOURS]},
            ["images", "images_highres"],
        ),
        ("visual", {"images": COLOURS, "image_mask": COLOURS, "state": PICTURE}, ["images"]),
        # frames beside those of a clip (VideoGPT+), and what is of text
        (
            "visual",
            {"images": COLOURS, "context_images": COLOURS, "text_maps": COLOURS},
            ["images", "context_images"],
        ),
        # no name is known: all that is not known to be something else
        ("visual", {"picture": PICTURE}, ["picture"]),
        ("visual", {"media": {"image": [PICTURE]}}, ["media"]),
        ("visual", {"input_features": PICTURE}, []),
        ("visual", {"weight": torch.tensor(0.5)}, []),
        ("visual", {"pixel_values_videos": PICTURE, "input_values": PICTURE}, []),
        ("visual", {"pixel_values": PICTURE[:0], "media": {"sound_clips": PICTURE}}, []),
        ("visual", {}, []),
        ("visual", ALL, ["pixel_values"]),
        ("video", ALL, ["pixel_values_videos"]),
        ("audio", ALL, ["input_features", "input_audio_embeds"]),
        # sound in whole numbers
        ("audio", {"audio_input_ids": torch.ones(1, 5, 8, dtype=torch.long)}, ["audio_input_ids"]),
    ],
)
def test_the_names_of_pixels(group: str, inputs: dict[str, Any], expected: list[str]) -> None:
    inputs = IDS | inputs
    assert list(pixel_inputs(inputs, group)) == expected
    changed = with_other_pixels(inputs, group)
    for name, value in inputs.items():
        pairs = zip(tensors_of(changed[name]), tensors_of(value), strict=True)
        same = all(torch.equal(one, other) for one, other in pairs)
        assert same == (name not in expected or name == "audio_input_ids")


@pytest.mark.parametrize(("group", "moves"), [("audio", True), ("visual", False)])
def test_silence_is_a_sound_and_an_empty_tile_no_picture(group: str, moves: bool) -> None:
    """EgoGPT hears silence where a video has none."""
    name = {"audio": "speech", "visual": "pixel_values"}[group]
    inputs = {name: torch.zeros(1, 30, 8)}
    assert bool((with_other_pixels(inputs, group)[name] != 0).any()) == moves


def test_a_tile_of_one_number_is_a_picture_s_and_one_of_zeros_none() -> None:
    """Black tiles pad a picture (Quicksviewer): with a mean of 0.5 they are -1 in each number."""
    pixels = torch.randn(2, 4, 3, 8, 8)
    pixels[:, 1], pixels[:, 2], pixels[:, 3, :, :4] = -1.0, 0.0, 1.0
    changed = with_other_pixels({"images": pixels})["images"]
    moved = (changed != pixels).flatten(2).float().mean(-1)
    assert moved[:, 0].min() > 0.99 and moved[:, 1].min() == 1
    assert moved[:, 2].max() == 0
    assert torch.equal(moved[:, 3], torch.full((2,), 0.5))  # of a part, as before
    rows = torch.full((2, 4, 3 * 64), -1.0)  # Molmo's, of no tile
    assert torch.equal(with_other_pixels({"images": rows})["images"], rows)
