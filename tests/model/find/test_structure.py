"""``find_parts`` names what was read in the sources of each type, with weights and without."""

import pytest
import torch
from support.cases import model_of
from support.expected_parts import PARTS, ExpectedParts
from support.tiny_models import TINY, build

from normprobe import find_parts

NAMES = ("vision_encoder", "projector", "text_embedding", "decoder_layers")


def found(model):
    """The parts as names; each must be the module that has that name."""
    parts = find_parts(model)
    names = {}
    for role in NAMES:
        part = getattr(parts, role)
        names[role] = None if part is None else part.name
        assert part is None or part.module is model.get_submodule(part.name)
    return ExpectedParts(**names, image_token_ids=parts.image_token_ids)


def test_every_tiny_type_is_written_down():
    assert set(PARTS) == set(TINY)


@pytest.mark.parametrize("model_type", TINY)
def test_parts(model_type):
    assert found(model_of(model_type)) == PARTS[model_type]


@pytest.mark.parametrize("model_type", TINY)
def test_parts_on_the_meta_device(model_type):
    with torch.device("meta"):
        model = build(model_type)
    assert found(model) == PARTS[model_type]
