"""What ``align_norms`` aligns to, against float64 NumPy over states taken without hooks."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from support.capture import capture
from support.cases import model_of
from support.expected_parts import PARTS
from support.reference import token_groups
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs
from support.tiny_models import ALL_TYPES, IMAGE, NEEDS, VLM_TYPES, WITHOUT_IMAGES, tiny_model

from normprobe import NormprobeError, align_norms, find_parts, probe_interface, remove_norm
from normprobe.measurements import measurement
from normprobe.model.align.norm import inserted_norm
from normprobe.model.align.target import align, aligned
from normprobe.model.config import CONFIG_ENTRY
from normprobe.model.measured_model import MeasuredModel
from normprobe.schema import DECODER_INPUT, EFFECTIVE_EMBEDDING, PROMPT_ROWS, TEXT, VISUAL
from normprobe.tidy import select

#: Ovis mixes its visual rows from a table.
ALIGNED = [name for name in VLM_TYPES if name != "ovis2"]
GEMMAS = ("gemma3", "paligemma")  # multiply the text rows by sqrt(hidden)

TOKEN_FIELDS = ("input_ids", "attention_mask")


def fresh(model_type):
    return copy.deepcopy(model_of(model_type))


def mean_norm(rows):
    return float(np.sqrt((rows.astype(np.float64) ** 2).sum(-1)).mean())


def effective_table_norm(model, model_type):
    """Eq. 11, and the scale that the sources of Gemma name."""
    table = model.get_submodule(PARTS[model_type].text_embedding).weight.detach().double().numpy()
    norms = np.sqrt((table**2).sum(-1))
    scale = np.sqrt(table.shape[1]) if model_type in GEMMAS else 1.0
    return scale * norms[norms > 0].mean(), table.shape[1]


def norms_after(model, model_type, inputs):
    """Mean norm of what the projector returns, and of visual rows that enter decoder layer 1."""
    norm = inserted_norm(model)
    left = []
    inner = norm.forward
    norm.forward = lambda x: left.append(inner(x)) or left[-1]
    groups = token_groups(model, inputs, PARTS[model_type])
    left.clear()
    states = capture(model, inputs, PARTS[model_type])
    norm.forward = inner
    behind = np.concatenate([rows.detach().reshape(-1, rows.shape[-1]).numpy() for rows in left])
    return mean_norm(behind), mean_norm(states.layers[0].entered[groups == VISUAL])


def norms_of(model, inputs):
    """By stage and group."""
    table = probe_interface(model, inputs, special_token_ids=[])
    return select(table, "norm").set_index(["stage", "group"])["mean"]


@pytest.mark.parametrize("model_type", ALIGNED)
@pytest.mark.parametrize("with_inputs", [False, True])
def test_visual_tokens_become_as_loud_as_the_table(model_type, with_inputs):
    model = fresh(model_type)
    inputs = tiny_inputs(model, 3)
    expected, hidden = effective_table_norm(model, model_type)
    norm = align_norms(model, inputs=inputs if with_inputs else None)
    assert norm is model.alignment_norm
    gain = norm.weight.detach().double().numpy()
    np.testing.assert_allclose(gain, expected / np.sqrt(hidden), rtol=1e-4)
    assert not norm.bias.any()
    assert norms_after(model, model_type, inputs) == pytest.approx((expected, expected), rel=0.01)


@pytest.mark.parametrize("model_type", ALIGNED)
def test_visual_tokens_become_as_loud_as_the_prompt(model_type):
    """Twice is once, and it can be undone."""
    model = fresh(model_type)
    inputs = tiny_inputs(model, 3)
    groups = token_groups(model, inputs, PARTS[model_type])
    states = capture(model, inputs, PARTS[model_type]).layers[0].entered
    with torch.no_grad():
        before = model(**inputs).logits
        align_norms(model, "prompt", inputs=inputs)
        once = model(**inputs).logits
        align_norms(model, "prompt", inputs=inputs)
        _, entering = norms_after(model, model_type, inputs)
        assert entering == pytest.approx(mean_norm(states[groups == TEXT]), rel=0.01)
        assert torch.equal(once, model(**inputs).logits)
        remove_norm(model)
        assert torch.equal(before, model(**inputs).logits)
    assert not torch.equal(before, once)


@pytest.mark.parametrize("target", [0.25, 12.0])
def test_a_number_is_the_norm_behind_the_layer(target):
    model = fresh("qwen2_5_vl")
    align_norms(model, target)
    behind, _ = norms_after(model, "qwen2_5_vl", tiny_inputs(model))
    assert behind == pytest.approx(target, rel=0.01)


@pytest.mark.parametrize("with_inputs", [False, True])
def test_a_model_that_scales_every_row_is_allowed_for(with_inputs):
    """Granite Docling multiplies text and visual rows alike before layer 1."""
    model = tiny_model("granite_docling")
    inputs = tiny_inputs(model)
    align_norms(model, inputs=inputs if with_inputs else None)
    table = norms_of(model, inputs)
    assert model.config.text_config.embedding_multiplier == 12
    behind = table["projector_output", VISUAL]
    assert behind == pytest.approx(table[EFFECTIVE_EMBEDDING, "nonzero_rows"] / 12, rel=0.01)
    assert table[DECODER_INPUT, VISUAL] == pytest.approx(12 * behind, rel=1e-3)


@pytest.mark.parametrize("model_type", ["blip-2", "kosmos-2"])
def test_positions_behind_the_projector_are_no_scale(model_type):
    """They are added to the rows: the layer's own output gets the target, and that is told."""
    model = tiny_model(model_type)
    inputs = tiny_inputs(model)
    prompt = norms_of(model, inputs)
    aligned = align(MeasuredModel(model, find_parts(model)), "table", [inputs])
    assert aligned.scale is None
    assert aligned.target_norm == pytest.approx(prompt[EFFECTIVE_EMBEDDING, PROMPT_ROWS], rel=1e-5)
    after = norms_of(model, inputs)
    assert after["projector_output", VISUAL] == pytest.approx(aligned.target_norm, rel=0.01)


def test_what_doubles_some_visual_tokens_alone_is_no_scale():
    model = copy.deepcopy(tiny_model("llava"))
    inputs, language = tiny_inputs(model), model.model.language_model
    second, forward = int((inputs["input_ids"][0] == IMAGE).nonzero()[1]), language.forward

    def with_one_moved(**named):
        moved = torch.zeros_like(named["inputs_embeds"])
        moved[:, second] = 1e-3
        return forward(**named | {"inputs_embeds": named["inputs_embeds"] + moved})

    language.forward = with_one_moved
    aligned = align(MeasuredModel(model, find_parts(model)), 2.0, [inputs])
    assert aligned.scale is None


@pytest.mark.parametrize("model_type", ["blip-2", "florence2"])
def test_without_inputs_position_terms_are_refused(model_type):
    model = tiny_model(model_type)
    with pytest.raises(NormprobeError, match="inputs"):
        align_norms(model)
    assert inserted_norm(model) is None


def test_the_prompt_cannot_be_measured_without_one():
    with pytest.raises(NormprobeError, match="pass inputs"):
        align_norms(model_of("llava"), "prompt")


def test_an_unknown_target_leaves_the_layer_that_is_there():
    model = fresh("llava")
    norm = align_norms(model)
    with pytest.raises(NormprobeError, match="unknown alignment target 'loud'"):
        align_norms(model, "loud")
    assert inserted_norm(model) is norm


def test_the_training_mode_and_other_hooks_are_as_before():
    model = fresh("llava").train()
    align_norms(model, inputs=tiny_inputs(model))
    assert all(module.training for module in model.modules())
    assert len(find_parts(model).projector.module._forward_hooks) == 1


#: Types whose decoder normalises rows or adds something to them behind the projector.
CHANGED_BEHIND = {
    "blip-2",
    "florence2",
    "instructblip",
    "instructblipvideo",
    "kosmos-2",
    "kosmos-2.5",
    "molmo2",
    "muse_glimmer",
    "muse_spark",
}


@pytest.mark.slow
@pytest.mark.parametrize("model_type", [name for name in ALL_TYPES if name not in WITHOUT_IMAGES])
def test_every_type_is_aligned_or_says_why_not(model_type):
    if model_type in NEEDS:
        pytest.importorskip(NEEDS[model_type])
    model = tiny_model(model_type)
    parts = find_parts(model)
    inputs = tiny_inputs(model)
    try:
        aligned = align(MeasuredModel(model, parts), "table", [inputs])
    except NormprobeError as refusal:
        impossible = parts.fusion in ("discrete", "cross-attention") or (
            parts.visual_embedding is not None or parts.projector is None
        )
        if model_type == "udop":  # its layout moves every row: none is text for the perturbation
            assert "no text token" in refusal.problem
        else:
            assert impossible, refusal
            assert "cannot be aligned" in refusal.problem
        return
    table = norms_of(model, inputs)
    behind = aligned.target_norm / (aligned.scale or 1)
    assert table["projector_output", VISUAL] == pytest.approx(behind, rel=0.01)
    if model_type in CHANGED_BEHIND:
        assert aligned.scale is None
    else:
        assert table[DECODER_INPUT, VISUAL] == pytest.approx(aligned.target_norm, rel=0.01)


def test_inputs_without_an_image_show_the_text_scale_alone():
    model = fresh("gemma3")
    expected, hidden = effective_table_norm(model, "gemma3")
    inputs = tiny_inputs(model)
    text = {name: inputs[name][inputs["input_ids"] != IMAGE][None] for name in TOKEN_FIELDS}
    aligned = align(MeasuredModel(model, find_parts(model)), "table", [text])
    assert aligned.scale == 1.0
    assert aligned.gain == pytest.approx(expected / np.sqrt(hidden), rel=1e-4)


# --- a norm that is there for a while: afterwards the model has the norm that it had, itself ------


@pytest.mark.parametrize("target", [3.0, "table"])
def test_a_model_without_a_norm_has_none_afterwards(target: str | float) -> None:
    model = tiny_model("llava")
    measured = MeasuredModel(model, find_parts(model))
    with aligned(measured, target, [tiny_inputs(model)]) as alignment:
        assert inserted_norm(model) is alignment.norm
    assert inserted_norm(model) is None
    assert not hasattr(model.config, CONFIG_ENTRY)


@pytest.mark.parametrize("target", [3.0, "loud"])
def test_an_optimizer_goes_on_with_the_norm_it_holds(target: str | float) -> None:
    model = tiny_model("llava").train()
    norm = align_norms(model, 7.0)
    optimizer = torch.optim.SGD(norm.parameters(), lr=0.1)
    inputs = tiny_inputs(model)
    try:
        with aligned(MeasuredModel(model, find_parts(model)), target, [inputs]) as alignment:
            assert inserted_norm(model) is alignment.norm is not norm
    except NormprobeError as refusal:
        assert "unknown alignment target" in refusal.problem
    assert inserted_norm(model) is norm
    before = norm.weight.detach().clone()
    model(**inputs).logits.sum().backward()
    optimizer.step()
    assert not torch.equal(norm.weight, before)


def test_newlines_that_pass_the_norm_stay_structural() -> None:
    """HunYuan-VL writes them before its last projection: aligned, they are other states."""
    model = tiny_model("hunyuan_vl")
    measured = MeasuredModel(model, find_parts(model))
    inputs = tiny_inputs(model)
    plain = measurement("layers").sample_rows(measured, inputs)
    with aligned(measured, "table", [inputs]):
        inside = measurement("layers").sample_rows(measured, inputs)
    after = measurement("layers").sample_rows(measured, inputs)
    counts = [
        rows[rows["layer"] == 0].set_index("group")["tokens"].dropna().to_dict()
        for rows in (plain, inside, after)
    ]
    assert counts[0]["structural"] > 0
    assert counts[0] == counts[1] == counts[2]
    pd.testing.assert_frame_equal(after, plain)


def test_the_prompt_is_that_of_all_examples() -> None:
    model = tiny_model("llava")
    measured = MeasuredModel(model, find_parts(model), SPECIAL_IDS)
    short, long = (tiny_inputs(model, 1, seed=seed) for seed in (0, 1))
    lone = {n: t[:, -3:] if n in ("input_ids", "attention_mask") else t for n, t in short.items()}
    del lone["pixel_values"]  # of few words: each counts, not each prompt
    batches = [lone, long]
    states = torch.cat([measured.batch(inputs).states_of(TEXT) for inputs in batches])
    target = align(measured, "prompt", batches).target_norm
    assert target == pytest.approx(states.detach().norm(dim=-1).mean().item(), rel=1e-6)
