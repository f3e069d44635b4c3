"""Every image-text-to-text type of transformers builds, runs, sees its image and reads its text."""

import pytest
import torch

from support.cases import model_of
from support.tiny_inputs import (
    RIGHT_PADDED,
    UNBATCHABLE,
    collate,
    perturbed,
    tiny_inputs,
    tiny_samples,
)
from support.tiny_models import ALL_TYPES, FIRST_TEXT, NEEDS, WITHOUT_IMAGES

pytestmark = pytest.mark.slow  # no behaviour of the package

WITH_IMAGES = [name for name in ALL_TYPES if name not in WITHOUT_IMAGES]
every_type = pytest.mark.parametrize("model_type", ALL_TYPES)
every_image_type = pytest.mark.parametrize("model_type", WITH_IMAGES)


def model_or_skip(model_type):
    if model_type in NEEDS:
        pytest.importorskip(NEEDS[model_type], reason=f"{model_type} needs {NEEDS[model_type]}")
    return model_of(model_type)


def logits(model, inputs):
    """A row a token that the model read. GIT puts rows of the image before them."""
    with torch.no_grad():
        found = model(**inputs).logits
    if "input_ids" in inputs and "decoder_input_ids" not in inputs:
        found = found[:, -inputs["input_ids"].shape[1] :]
    return found.masked_fill(found < -1e30, 0.0)  # Chameleon forbids image tokens


def changed(before, after):
    return (after - before).abs().max() > 0.1 * before.std()


@every_type
def test_models_are_small(model_type):
    model = model_or_skip(model_type)
    assert model.config.model_type == model_type
    assert not model.training
    for weight in model.parameters():
        assert weight.dtype == torch.float32
        assert torch.isfinite(weight).all()
    assert sum(weight.numel() * 4 for weight in model.parameters()) < 3e6


@every_image_type
def test_pixels_change_the_output(model_type):
    model = model_or_skip(model_type)
    inputs = tiny_inputs(model)
    assert changed(logits(model, inputs), logits(model, perturbed(inputs)))


@every_image_type
def test_text_changes_the_output(model_type):
    model = model_or_skip(model_type)
    inputs = tiny_inputs(model)
    field = "input_ids" if "input_ids" in inputs else "decoder_input_ids"
    others = inputs[field].clone()
    others[0, 1] = FIRST_TEXT if others[0, 1] != FIRST_TEXT else FIRST_TEXT + 1
    assert changed(logits(model, inputs), logits(model, inputs | {field: others}))


@every_image_type
@pytest.mark.parametrize("padding", ["right", "left"])
def test_a_batch_is_its_samples(model_type, padding):
    model = model_or_skip(model_type)
    samples = tiny_samples(model, 4)
    together = logits(model, collate(samples, padding))
    assert torch.isfinite(together).all()
    if model_type in UNBATCHABLE or (padding == "left" and model_type in RIGHT_PADDED):
        return
    for rows, sample in zip(together, samples, strict=True):
        alone = logits(model, sample)[0]
        rows = rows[: len(alone)] if padding == "right" else rows[-len(alone) :]
        torch.testing.assert_close(rows, alone, rtol=1e-3, atol=1e-3)
