"""Inputs of families whose processors are called their own way, on miniatures of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.capture import replaced_forward
from support.remote_code.expected import PARTS
from transformers import AutoModelForCausalLM

from normprobe.data.batches import build_inputs, load_processor
from normprobe.data.datasets import open_data
from normprobe.data.image_rows import marked_rows
from normprobe.data.nested import NestedFeature, stacked
from normprobe.data.remote_inputs import BUILDERS
from normprobe.errors import NormprobeError

every_family = pytest.mark.parametrize("family", PARTS)
every_builder = pytest.mark.parametrize("family", [name for name in BUILDERS if name in PARTS])


@pytest.fixture(scope="module")
def samples():
    """Two questions of different length."""
    return list(open_data("sample", limit=2))


@pytest.fixture(scope="module")
def load(repository):
    return lambda family: load_processor(str(repository(family)), trust_remote_code=True)


def text_of(processor, inputs):
    ids = inputs.get("data", inputs)["input_ids"][0]
    tokenizer = getattr(processor, "tokenizer", processor)
    return tokenizer.decode([int(token) for token in ids if 0 <= token < len(tokenizer)])


def last_states(family, repository, inputs):
    """What the last decoder layer gives at the tokens that are no padding, sample by sample."""
    model = AutoModelForCausalLM.from_pretrained(repository(family), trust_remote_code=True).eval()
    last = model.get_submodule(PARTS[family].decoder_layers)[-1]
    seen = []
    with torch.no_grad(), replaced_forward(last, lambda entered, output: seen.append(entered)):
        model(**inputs)
    masks = inputs["attention_mask"].bool().numpy()
    return [state[mask] for state, mask in zip(seen[0], masks, strict=True)]


@every_family
def test_a_batch_holds_what_its_samples_hold(family, load, repository, samples):
    """Neither padding nor the other sample changes a state."""
    processor = load(family)
    together = last_states(family, repository, build_inputs(processor, samples, model_type=family))
    for sample, state in zip(samples, together, strict=True):
        inputs = build_inputs(processor, [sample], model_type=family)
        (alone,) = last_states(family, repository, inputs)
        np.testing.assert_allclose(state, alone, rtol=1e-4, atol=1e-4)


@every_family
def test_the_prompt_is_in_the_text(family, load, samples):
    processor = load(family)
    text = text_of(processor, build_inputs(processor, samples[:1], model_type=family))
    assert samples[0].prompt in text


@every_family
def test_text_alone(family, load, repository, samples):
    sample = replace(samples[0], image=None)
    inputs = build_inputs(load(family), [sample], model_type=family)
    (state,) = last_states(family, repository, inputs)
    assert np.isfinite(state).all()


@every_builder
def test_a_system_prompt(family, load, samples):
    processor = load(family)
    if family == "molmo":  # it writes the roles itself
        with pytest.raises(NormprobeError, match="no system role"):
            build_inputs(processor, samples, system="Be brief.", model_type=family)
        return
    inputs = build_inputs(processor, samples[:1], system="Be brief.", model_type=family)
    assert "Be brief." in text_of(processor, inputs)


@pytest.mark.parametrize(
    ("family", "placeholder"),
    [
        ("minicpmv", "(<image>./</image>)"),
        ("ovis2_5", "<image>"),
        ("deepseek_vl_v2", "<image>"),
        ("phi4mm", "<|image_1|>"),
    ],
)
def test_a_placeholder_in_the_prompt_is_refused(family, placeholder, load, samples):
    bad = replace(samples[0], prompt=f"What is {placeholder}?")
    with pytest.raises(NormprobeError, match="placeholder"):
        build_inputs(load(family), [bad], model_type=family)


def test_a_processor_of_another_making_is_named_not_traced(load, samples):
    with pytest.raises(NormprobeError, match="refuses"):
        build_inputs(load("kimi_vl"), samples[:1], model_type="molmo")


def test_molmo_pads_on_the_right(load, samples):
    processor = load("molmo")
    batch = build_inputs(processor, samples, model_type="molmo")
    numbers_of_crops = []
    for row, sample in enumerate(samples):
        own = processor.process(images=[sample.image], text=sample.prompt)
        length, crops = len(own["input_ids"]), len(own["images"])
        assert batch["input_ids"][row, :length].tolist() == own["input_ids"].tolist()
        assert batch["attention_mask"][row].sum() == length
        assert torch.equal(batch["images"][row, :crops], own["images"])
        assert torch.equal(batch["image_input_idx"][row, :crops], own["image_input_idx"])
        assert (batch["images"][row, crops:] == -1).all()
        assert (batch["image_input_idx"][row, crops:] < 0).all()
        numbers_of_crops.append(crops)
    assert len(set(numbers_of_crops)) == 2  # so one of them was padded


def test_molmo_does_not_mix_samples_with_and_without_images(load, samples):
    mixed = [samples[0], replace(samples[1], image=None)]
    with pytest.raises(NormprobeError, match="with and without an image"):
        build_inputs(load("molmo"), mixed, model_type="molmo")


def test_minicpmv_takes_one_dict(load, samples):
    inputs = build_inputs(load("minicpmv"), samples, model_type="minicpmv")
    assert set(inputs) == {"data", "attention_mask"}
    positions, mask = inputs["data"]["position_ids"], inputs["attention_mask"]
    for row, kept in zip(positions, mask.bool(), strict=True):
        assert row[kept].tolist() == list(range(int(kept.sum())))


def test_ovis_patches_are_blocks_of_neighbours(load, samples):
    """Patch k of the flat list, against the pixels at the place where it must come from."""
    processor, sample = load("ovis2_5"), samples[0]
    inputs = build_inputs(processor, [sample], model_type="ovis2_5")
    (_, high, wide), size = inputs["grid_thws"][0].tolist(), 56
    resized = sample.image.resize((wide * size, high * size), 3)  # bicubic, as SigLIP does
    pixels = (np.asarray(resized, dtype=np.float64) / 127.5 - 1).transpose(2, 0, 1)
    flat = inputs["pixel_values"].numpy()
    assert flat.shape == (high * wide, 3 * size * size)
    places = [
        (2 * row + down, 2 * column + right)
        for row in range(high // 2)
        for column in range(wide // 2)
        for down in range(2)
        for right in range(2)
    ]
    for patch, (row, column) in zip(flat, places, strict=True):
        expected = pixels[:, row * size : (row + 1) * size, column * size : (column + 1) * size]
        np.testing.assert_allclose(patch, expected.reshape(-1), atol=1e-5)


def test_ovis_ids_stand_between_indicators(load, samples):
    inputs = build_inputs(load("ovis2_5"), samples, model_type="ovis2_5")
    for ids, grid in zip(inputs["input_ids"], inputs["grid_thws"], strict=True):
        visual = ids[ids < 0].tolist()
        assert visual == [-301, *[-300] * (int(grid.prod()) // 4), -302]
        start = ids.tolist().index(-301)
        assert ids[start : start + len(visual)].tolist() == visual


def test_moonvit_gets_the_grid_under_its_own_name(load, samples):
    inputs = build_inputs(load("moonvit"), samples, model_type="moonvit")
    assert set(inputs) == {"pixel_values", "grid_hws"}
    with pytest.raises(NormprobeError, match="image in every sample"):
        build_inputs(load("moonvit"), [replace(samples[0], image=None)], model_type="moonvit")


def test_nested_features_move_everything():
    nested = {"values": [[torch.ones(2)]], "ids": torch.ones(2, dtype=torch.long)}
    moved = NestedFeature({"data": nested, "mask": torch.ones(2)}).to("cpu", torch.bfloat16)
    assert moved["data"]["values"][0][0].dtype == moved["mask"].dtype == torch.bfloat16
    assert moved["data"]["ids"].dtype == torch.long


def test_stacked_pads_every_axis_at_its_end():
    rows = [
        {"x": torch.ones(1, 2), "y": torch.ones(1)},
        {"x": torch.ones(2, 1), "y": torch.ones(2)},
    ]
    batch = stacked(rows, {"x": -1})
    assert batch["x"].tolist() == [[[1, 1], [-1, -1]], [[1, -1], [1, -1]]]
    assert batch["y"].tolist() == [[1, 0], [1, 1]]


@pytest.mark.parametrize(
    "inputs",
    [
        {"images_seq_mask": torch.tensor([[0, 1, 1, 0], [0, 0, 0, 1]])},
        {"image_input_idx": torch.tensor([[[1, -100], [2, -1]], [[3, -1], [-1, -1]]])},
        {"data": {"image_bound": [torch.tensor([[1, 2], [2, 3]]), torch.tensor([[3, 4]])]}},
    ],
)
def test_rows_that_an_input_marks(inputs):
    rows = marked_rows(inputs, torch.Size((2, 4)))
    assert rows.tolist() == [[False, True, True, False], [False, False, False, True]]


def test_no_input_marks_rows():
    inputs = {"input_ids": torch.zeros(1, 2), "image_input_idx": None}
    assert marked_rows(inputs, torch.Size((1, 2))) is None
