"""Inputs of families whose processors are called their own way, on miniatures of them."""

import json
import pkgutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from support.capture import replaced_forward
from support.remote_code.expected import PARTS
from support.remote_code.opened import opened

from normprobe import NormprobeError, probe_layers
from normprobe.data.sample import Sample
from normprobe.extensions import families
from normprobe.extensions.families import FAMILIES
from normprobe.inputs.inputs_file import NO_INPUTS_FILE, family_file
from normprobe.model.checkpoint import open_checkpoint
from normprobe.model.load.loading import load_model
from normprobe.model.load.partial_load import build_on_meta
from normprobe.model.load.plan import plan_loading
from normprobe.schema import MASKS

every_family = pytest.mark.parametrize("family", PARTS)
every_own_way = pytest.mark.parametrize("family", [name for name in FAMILIES if name in PARTS])


@pytest.fixture(scope="module")
def builder(repository):
    """``builder(family)`` makes the inputs of a family, with its processor and model."""
    load = cache(lambda family: opened(repository(family)))
    return lambda family, system=None: replace(load(family), system=system)


def text_of(processor, inputs):
    ids = inputs.get("data", inputs)["input_ids"][0]
    tokenizer = getattr(processor, "tokenizer", processor)
    return tokenizer.decode([int(token) for token in ids if 0 <= token < len(tokenizer)])


def last_states(family, model, inputs):
    """What the last decoder layer gives at the tokens that are no padding, sample by sample."""
    last = model.get_submodule(PARTS[family].decoder_layers)[-1]
    seen = []
    with torch.no_grad(), replaced_forward(last, lambda entered, output: seen.append(entered)):
        model(**{name: value for name, value in inputs.items() if name not in MASKS})
    masks = inputs["attention_mask"].bool().numpy()
    return [state[mask] for state, mask in zip(seen[0], masks, strict=True)]


def test_every_family_is_found_by_its_type_and_class():
    modules = {file.name for file in pkgutil.iter_modules(families.__path__)}
    modules -= {
        "drafted_constants",
        "drafted_known",
        "drafted_takes",
        "drafted_text",
        "inputs_draft",
        "package_code",
        "command",
    }
    modules -= {"asked", "drafted_ask", "script_inside", "script_layers"}
    modules -= {"script_calls", "script_machine", "script_prompt", "script_run", "script_source"}
    assert modules == {family.module for family in FAMILIES.values()}
    for model_type, family in FAMILIES.items():
        known = {"model_type": model_type, "architectures": [family.classes[0]], family.field: {}}
        found = family_file(known)
        assert found.record == {"family": model_type.lower()}
        assert replace(found, record={}) != NO_INPUTS_FILE


@pytest.mark.parametrize("model_type", [None, "", "llava", "parts"])
def test_other_types_have_no_way_of_their_own(model_type):
    assert family_file({"model_type": model_type}) == NO_INPUTS_FILE
    assert family_file(None) == NO_INPUTS_FILE


def test_a_family_is_told_by_its_type_and_its_class():
    ocr = {
        "model_type": "deepseek_vl_v2",
        "architectures": ["DeepseekOCRForCausalLM"],
        "auto_map": {"AutoModel": "modeling_deepseekocr.DeepseekOCRForCausalLM"},
    }
    assert family_file(ocr) == NO_INPUTS_FILE
    assert family_file({"model_type": "deepseek_vl_v2"}).setup  # its config names no class
    assert family_file(ocr | {"architectures": ["DeepseekVLV2ForCausalLM"]}).setup
    auto_map = {"auto_map": {"AutoModelForCausalLM": "modeling_x.MiniCPMV"}}
    minicpm = {"model_type": "minicpmv", **auto_map}
    assert family_file(minicpm | {"vision_config": {}}).build
    assert family_file(minicpm | {"vision_encoder": "vit"}) == NO_INPUTS_FILE
    assert family_file(SimpleNamespace(model_type="molmo", architectures=["Another"])).build is None


def test_asking_for_no_family_imports_none():
    code = (
        "import sys; from normprobe.extensions.families import FAMILIES; "
        "from normprobe.inputs.inputs_file import family_file; "
        "family_file({'model_type': 'llava'}); loaded = set(sys.modules); "
        "names = {f'normprobe.extensions.families.{each.module}' for each in FAMILIES.values()}; "
        "assert not names & loaded; "
        "assert not {'torch', 'transformers'} & loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@every_family
def test_a_batch_holds_what_its_samples_hold(family, builder, samples):
    """Neither padding nor the other sample changes a state."""
    made = builder(family)
    together = last_states(family, made.model, made.build(samples))
    for sample, state in zip(samples, together, strict=True):
        inputs = made.build([sample])
        (alone,) = last_states(family, made.model, inputs)
        np.testing.assert_allclose(state, alone, rtol=1e-4, atol=1e-4)
        assert sample.prompt in text_of(made.processor, inputs)


@every_family
def test_text_alone(family, builder, samples):
    made = builder(family)
    inputs = made.build([replace(samples[0], images=())])
    assert set(inputs) == TEXT_ALONE.get(family, set(inputs))  # nothing empty for an image
    (state,) = last_states(family, made.model, inputs)
    assert np.isfinite(state).all()


TEXT_ALONE = {
    "deepseek_vl_v2": {"input_ids", "attention_mask"},  # the processor makes up an empty tile
    "phi3_v": {"input_ids", "attention_mask"},
    "phi4mm": {"input_ids", "attention_mask", "position_ids", "input_mode"},
}


@every_own_way
def test_a_system_prompt(family, builder, samples):
    made = builder(family, "Be brief.")
    if family == "molmo":  # it writes the roles itself
        with pytest.raises(NormprobeError, match="no system role"):
            made.build(samples)
        return
    assert "Be brief." in text_of(made.processor, made.build(samples[:1]))


@pytest.mark.parametrize(
    ("family", "placeholder"),
    [
        # Two of these would be taken for a slice; one is an error of shapes in the processor.
        *(("minicpmv", mark) for mark in ("<image>", "</image>", "<slice>", "</slice>")),
        ("minicpmv", "(<image>./</image>)"),
        ("internvl_chat", "<image>"),
        ("internvl_chat", "<IMG_CONTEXT>"),
        ("ovis2_5", "<image>"),
        ("deepseek_vl_v2", "<image>"),
        ("phi4mm", "<|image_1|>"),
    ],
)
def test_a_placeholder_in_the_prompt_is_refused(family, placeholder, builder, samples):
    bad = replace(samples[0], prompt=f"What is {placeholder} or {placeholder}?")
    with pytest.raises(NormprobeError, match="placeholder"):
        builder(family).build([bad])


@pytest.mark.parametrize(
    ("family", "given", "count"),
    [
        ("phi3_v", {}, 25),
        ("phi4mm", {"input_mode": torch.tensor([0])}, 13),
    ],
)
def test_placeholders_without_pixels_are_refused(family, given, count, builder):
    made = builder(family)
    image = Image.effect_noise((40, 80), 80).convert("RGB")
    inputs = made.build([Sample("a", "What is shown?", (image,))])
    names = [name for name in TEXT_ALONE[family] if name in inputs]
    with pytest.raises(NormprobeError, match=f"{count} image placeholders, and the inputs no pix"):
        probe_layers(made.model, {name: inputs[name] for name in names} | given)


@pytest.mark.parametrize("attention", ["sdpa", "eager", "flash_attention_2"])
def test_keye_refuses_images_that_would_mix(attention, builder, samples):
    config = SimpleNamespace(_attn_implementation=attention)
    model = SimpleNamespace(visual=SimpleNamespace(config=config))
    processor = builder("unseen").processor  # it is called as that of Keye-VL is
    build = family_file({"model_type": "Keye"}).build
    assert len(build(model, processor, samples[:1], None)["input_ids"]) == 1
    if attention == "flash_attention_2":
        assert len(build(model, processor, samples, None)["input_ids"]) == 2
        return
    with pytest.raises(NormprobeError, match=f"mixes the images of a batch under {attention}"):
        build(model, processor, samples, None)


def test_vila_is_refused_before_anything_is_loaded(tmp_path):
    auto_map = {"AutoConfig": "modeling_vila.VILAConfig"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vila", "auto_map": auto_map}))
    with pytest.raises(NormprobeError, match="neither weights nor positions") as refused:
        open_checkpoint(str(tmp_path), trust_remote_code=True)
    assert "FOLDER/llm" in refused.value.remedy


def test_of_ovis_no_more_is_read_than_is_needed(repository):
    """Its code reads its own folder while it is built."""
    checkpoint = open_checkpoint(str(repository("ovis2_5")), trust_remote_code=True)
    plan = plan_loading(checkpoint, build_on_meta(checkpoint), ["vte.weight"])
    assert plan.because == ""
    model = load_model(checkpoint, plan, device="cpu")
    assert model.vte.weight.is_meta
    assert model.name_or_path == model.config.name_or_path == str(repository("ovis2_5"))


def test_a_processor_of_another_making_is_named_not_traced(builder, samples):
    with pytest.raises(NormprobeError, match="refuses"):
        replace(builder("molmo"), processor=builder("kimi_vl").processor).build(samples[:1])


def test_ovis_patches_are_blocks_of_neighbours(builder, samples):
    """Patch k of the flat list, against the pixels at the place where it must come from."""
    sample = samples[0]
    inputs = builder("ovis2_5").build([sample])
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


def test_ovis_ids_stand_between_indicators(builder, samples):
    inputs = builder("ovis2_5").build(samples)
    for ids, grid in zip(inputs["input_ids"], inputs["grid_thws"], strict=True):
        visual = ids[ids < 0].tolist()
        assert visual == [-301, *[-300] * (int(grid.prod()) // 4), -302]
        start = ids.tolist().index(-301)
        assert ids[start : start + len(visual)].tolist() == visual


def test_moonvit_gets_the_grid_under_its_own_name(builder, samples):
    inputs = builder("moonvit").build(samples)
    assert set(inputs) == {"pixel_values", "grid_hws"}
    with pytest.raises(NormprobeError, match="image in every sample"):
        builder("moonvit").build([replace(samples[0], images=())])
