"""A trace of the tiny models: the parts it finds, the model after it, and its memory."""

import pytest
import torch
from support.expected_parts import PARTS
from support.tiny_inputs import tiny_inputs
from support.tiny_models import (
    LANGUAGE_MODELS,
    VISION_ENCODERS,
    tiny_model,
)
from torch import nn

from normprobe import NormprobeError
from normprobe.model.tracing.observation import other_pixels, other_words
from normprobe.model.tracing.recording import watched
from normprobe.model.tracing.trace import trace_parts


def model_and_inputs(model_type, batch_size=2):
    model = tiny_model(model_type)
    return model, tiny_inputs(model, batch_size)


# --- what it finds -------------------------------------------------------------------------------


def test_deepstack():
    traced = trace_parts(*model_and_inputs("qwen3_vl"))
    assert (traced.fusion, traced.injected_layers) == ("in-sequence", (2, 3))


@pytest.mark.parametrize("model_type", LANGUAGE_MODELS)
def test_language_models(model_type):
    traced = trace_parts(*model_and_inputs(model_type))
    assert traced.decoder_layers == PARTS[model_type].decoder_layers
    assert traced.text_embedding == PARTS[model_type].text_embedding
    assert traced.visual_positions is traced.vision_encoder is traced.projector is None
    assert traced.fusion == "none"


@pytest.mark.parametrize("model_type", [t for t in VISION_ENCODERS if t.endswith("_vision_model")])
def test_bare_vision_encoders(model_type):
    traced = trace_parts(*model_and_inputs(model_type))
    assert traced.vision_encoder == ""
    assert traced.decoder_layers is traced.text_embedding is traced.projector is None


# --- what it changes -----------------------------------------------------------------------------


def test_other_pixels_keep_empty_tiles_and_places():
    tiles = torch.randn(2, 3, 4)
    tiles[1] = 0.0
    patches = torch.cat([torch.arange(4.0).view(4, 1), torch.randn(4, 5)], dim=1)
    mask = torch.ones(2, 3)
    ids = torch.tensor([[1, 2]])
    inputs = {"tiles": tiles, "lists": [patches], "mask": mask, "ids": ids}
    changed = other_pixels(inputs)
    assert not changed["tiles"][1].any() and (changed["tiles"][0] != tiles[0]).all()
    assert torch.equal(changed["lists"][0][:, 0], patches[:, 0])
    assert (changed["lists"][0][:, 1:] != patches[:, 1:]).all()
    assert changed["mask"] is mask and changed["ids"] is ids


def test_other_pixels_of_an_image_in_one_colour():
    image = torch.full((1, 3, 4, 4), 0.3)
    assert (other_pixels({"image": image})["image"] != image).all()


def test_few_numbers_beside_the_pixels_are_no_pixels():
    inputs = {"pixels": torch.randn(1, 3, 16, 16), "state": torch.randn(1, 7)}
    assert other_pixels(inputs)["state"] is inputs["state"]


def test_no_pixels():
    assert other_pixels({"ids": torch.tensor([[1, 2]])}) is None


def test_other_words_spare_ids_with_a_special_meaning():
    """Begin, image and its neighbours, padding, and words that are also at such positions."""
    ids = torch.tensor(
        [
            [1, 20, 21, 22, 4, 3, 3, 5, 23, 24, 2, 0],
            [1, 22, 23, 20, 4, 3, 3, 5, 24, 5, 21, 2],
        ]
    )
    image = ids == 3
    image[:, 6] = False  # a structural token: pixels do not change it, its id is the image's
    changed, (replaced,) = other_words({"ids": ids}, ["ids"], {(2, 12): image})
    assert torch.equal(replaced, changed["ids"] != ids)
    assert torch.equal(replaced, ids >= 20)
    assert set(changed["ids"][replaced].tolist()) <= {20, 21, 22, 23, 24}


def test_other_words_of_the_callers_choice():
    ids = torch.tensor([[1, 3, 3, 9]])
    changed, _ = other_words({"ids": ids}, ["ids"], {(1, 4): ids == 3}, text_ids=[8, 9])
    assert changed["ids"].tolist() == [[1, 3, 3, 8]]


@pytest.mark.parametrize("text_ids", [[8, 10], [9]])
def test_words_of_the_callers_choice_that_tell_nothing(text_ids: list[int]) -> None:
    """None of them stands in the prompt, or there is no other to put in its place."""
    ids = torch.tensor([[1, 3, 3, 9]])
    with pytest.raises(NormprobeError, match="two different ordinary words"):
        other_words({"ids": ids}, ["ids"], {(1, 4): ids == 3}, text_ids=text_ids)


def test_a_list_with_empty_places_is_watched() -> None:
    """As layers of OpenFlamingo, of which some attend to no picture."""
    blocks = nn.ModuleList([None, *(nn.Sequential(nn.Linear(2, 2)) for _ in range(4))])
    assert set(watched(blocks)) == {"", "1", "2", "3", "4"}
