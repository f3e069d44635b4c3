"""Phi-3-vision: positions of several images in a batch, and attention that is there."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from support.capture import replaced_forward
from support.remote_code.opened import opened

from normprobe import probe_layers
from normprobe.data.sample import Sample
from normprobe.model.checkpoint import open_checkpoint
from normprobe.model.load.loading import load_model
from normprobe.schema import MASKS, VISION_LANGUAGE


@pytest.fixture(scope="module")
def builder(repository):
    return opened(repository("phi3_v"))


@pytest.fixture(scope="module")
def samples():
    """Two images, a wide one among them; none; one."""
    random = np.random.default_rng(0)
    images = [
        Image.fromarray(random.integers(0, 255, (height, width, 3), dtype=np.uint8))
        for height, width in ((50, 90), (60, 60), (80, 40))
    ]
    return [
        Sample("a/1", "Is <image> larger than <image>?", tuple(images[:2])),
        Sample("a/2", "And without images?"),
        Sample("a/3", "What is shown?", tuple(images[2:])),
    ]


def entering(builder, inputs):
    """What enters decoder layer 1."""
    seen = []
    first = builder.model.get_submodule("model.layers")[0]
    with torch.no_grad(), replaced_forward(first, lambda entered, _: seen.append(entered)):
        builder.model(**{name: value for name, value in inputs.items() if name not in MASKS})
    return seen[0]


def test_masks_say_which_rows_come_from_pixels(builder, samples):
    inputs = builder.build(samples)
    inverted = [
        replace(sample, images=tuple(map(ImageOps.invert, sample.images))) for sample in samples
    ]
    before, after = (entering(builder, one) for one in (inputs, builder.build(inverted)))
    moved = (before != after).any(axis=-1)
    visual, structural = inputs["visual_mask"].numpy(), inputs["structural_mask"].numpy()
    assert (moved == (visual & ~structural)).all()
    assert (visual == (inputs["input_ids"].numpy() < 0)).all()
    of_image = {"square": 9 + 9, "wide": 2 * 9 + 9}
    expected = [of_image["wide"] + of_image["square"], 0, of_image["square"]]
    assert moved.sum(axis=1).tolist() == expected
    assert structural.sum(axis=1).tolist() == [2 * 7, 0, 7]


def test_images_stand_where_the_prompt_marks_them(builder, samples):
    (ids,) = builder.build(samples[:1])["input_ids"].tolist()
    images = [number for number in ids if number < 0]
    assert images == [-1] * (27 + 7) + [-2] * (18 + 7)
    between = ids[ids.index(-1) + 34 : ids.index(-2)]
    assert builder.tokenizer.decode(between) == " larger than "


def test_finished_inputs_have_the_same_rows(builder, samples):
    """Those of the processor hold no masks: which rows come from pixels is asked of the model."""
    inputs = builder.build(samples[2:])
    finished = {name: value for name, value in inputs.items() if name not in MASKS}
    of_masks, asked = (probe_layers(builder.model, one) for one in (inputs, finished))
    assert of_masks["tokens"].tolist() == asked["tokens"].tolist()
    assert set(asked["group"]) == {"visual", "structural", "text"}


def test_eager_attention_stands_for_one_that_is_not_installed(repository, tmp_path):
    """The published config asks for flash attention."""
    folder = shutil.copytree(repository("phi3_v"), tmp_path / "phi")
    config = json.loads((folder / "config.json").read_text())
    config["_attn_implementation"] = "flash_attention_2"
    (folder / "config.json").write_text(json.dumps(config))
    checkpoint = open_checkpoint(str(folder), trust_remote_code=True)
    assert checkpoint.kind == VISION_LANGUAGE
    assert "eager attention (flash_attn is not installed)" in checkpoint.bridges
    assert load_model(checkpoint, device="cpu").config._attn_implementation == "eager"
