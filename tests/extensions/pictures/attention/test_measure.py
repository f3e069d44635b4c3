"""``measure_attention`` against the weights that eager attention returns, in float64 NumPy."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from PIL import Image
from support.eager_attention import eager_weights
from support.expected_parts import PARTS
from support.flat import flat
from support.hooks import hooks_of
from support.reference import token_groups
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs
from support.tiny_models import (
    ALL_TYPES,
    EVERY,
    NEEDS,
    TINY,
    VLM_TYPES,
    WITHOUT_IMAGES,
    tiny_model,
    unit_gain_,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from normprobe import NormprobeError, find_parts
from normprobe.extensions.pictures.attention.measure import ALL_TEXT, measure_attention
from normprobe.model import attention_weights
from normprobe.model.measured_model import MeasuredModel
from normprobe.schema import TEXT, VISUAL

#: Attention beside the layers; features added to all text; fails when run eagerly.
REFUSED = ("idefics", "udop", "unlimited_ocr")

IMAGE = Image.new("RGB", (16, 16))

#: Types that attend in a way of their own, and where their weights are among a model's outputs.
OTHERS = {
    "git": "attentions",  # visual rows before the prompt
    "florence2": "encoder_attentions",  # both directions
    "t5gemma2": "encoder_attentions",  # a mask of its own
    "fuyu": "attentions",
    "lfm2_vl": "attentions",  # convolutions in between
    "mllama": "attentions",  # cross-attention in one layer
    "pix2struct": "cross_attentions",  # a position bias
}


def decode(ids):
    """Each id is a word."""
    return " ".join(map(str, ids))


def measure(model, inputs, **options):
    measured = MeasuredModel(model, find_parts(model), SPECIAL_IDS)
    return measure_attention(measured, lambda _: inputs, [IMAGE], decode=decode, **options)


def measured_table(model, inputs, **options):
    """``attention.csv``, a column a number."""
    return flat(measure(model, inputs, **options).table)


def expected_row(weights, rows, visual):
    """Means and deviations over heads and rows, from the whole matrix."""
    chosen = weights[:, rows]
    on_visual = chosen[..., visual]
    share = on_visual.sum(-1)
    tokens = visual.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        part = on_visual / share[..., None]
        entropy = -np.where(part > 0, part * np.log(part), 0.0).sum(-1) / np.log(tokens)
    entropy = entropy[share > 0]
    even = (on_visual > 0).sum(-1) / (chosen > 0).sum(-1)
    return {
        "heads_mean": len(weights),
        "tokens": len(rows),
        "share": share.mean(),
        "share_std": share.std(),
        "even_share": even.mean(),
        "entropy_mean": entropy.mean(),
        "entropy_std": entropy.std(),
    }


def assert_agrees(table, layers, rows, visual, tolerance=1e-5):
    assert len(table) == len(layers)
    for (_, found), weights in zip(table.iterrows(), layers, strict=True):
        expected = expected_row(weights, rows, visual)
        assert {name: found[name] for name in expected} == pytest.approx(expected, abs=tolerance)


def rows_of(model, inputs):
    """Text after the image, and which rows are visual, for types with placeholders."""
    groups = token_groups(model, inputs, PARTS[model.config.model_type], SPECIAL_IDS)[0]
    visual = groups == VISUAL
    text = np.flatnonzero(groups == TEXT)
    return text[text > np.flatnonzero(visual)[-1]], visual


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("model_type", [t for t in VLM_TYPES if t != "llava_gptj"])
def test_numbers(model_type, implementation):
    model = tiny_model(model_type)
    model.set_attn_implementation(implementation)
    inputs = tiny_inputs(model)
    table = measured_table(model, inputs)
    assert table["layer"].tolist() == [1, 2, 3]
    assert (table["query"] == ALL_TEXT).all()
    rows, visual = rows_of(model, inputs)
    assert (table["visual_tokens"] == visual.sum()).all()
    assert_agrees(table, eager_weights(model, inputs), rows, visual)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("model_type", ["llava", "qwen2_5_vl", "gemma3"])
def test_half_precision(model_type, dtype):
    model = tiny_model(model_type).to(dtype)
    inputs = tiny_inputs(model)
    inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
    table = measured_table(model, inputs)
    for layer, weights in enumerate(eager_weights(model, inputs)):
        rows, visual = rows_of(tiny_model(model_type), tiny_inputs(model))
        share = weights[:, rows][..., visual].sum(-1).mean()
        assert table["share"][layer] == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("model_type", ["llava", "qwen2_5_vl", "gemma3"])
def test_double_precision(model_type):
    model = tiny_model(model_type).double()
    inputs = tiny_inputs(model)
    inputs = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    rows, visual = rows_of(model, inputs)
    assert_agrees(measured_table(model, inputs), eager_weights(model, inputs), rows, visual)


@pytest.mark.parametrize("model_type", OTHERS)
def test_other_ways_to_attend(model_type):
    model = tiny_model(model_type)
    inputs = tiny_inputs(model)
    table = measured_table(model, inputs)
    layers = eager_weights(model, inputs, OTHERS[model_type])
    if model_type == "mllama":  # two of four tiles are empty
        layers = [layers[1][..., : layers[1].shape[-1] // 2]]
    assert table["heads_mean"].gt(0).sum() == len(layers)
    table = table[table["heads_mean"] > 0]
    keys = layers[0].shape[-1]
    visual = np.ones(keys, dtype=bool)
    ids = inputs.get("decoder_input_ids", inputs.get("input_ids"))[0].numpy()
    if model_type == "git":
        visual[17:] = False
        rows = 17 + np.flatnonzero(~np.isin(ids, SPECIAL_IDS))
    elif model_type == "pix2struct":
        rows = np.flatnonzero(~np.isin(ids, SPECIAL_IDS))
    else:
        ids = inputs["input_ids"][0].numpy()
        image = np.flatnonzero(ids == model.config.image_token_id)
        if model_type != "mllama":
            visual = ids == model.config.image_token_id
        rows = np.flatnonzero(~np.isin(ids, SPECIAL_IDS))
        rows = rows[rows > image[-1]]
    assert_agrees(table, layers, rows, visual)


@pytest.mark.parametrize(
    ("model_type", "text"),
    [
        ("paligemma", {"model_type": "gemma2", "attn_logit_softcapping": 0.5}),
        ("llava", {"model_type": "gpt_oss", "num_local_experts": 2, "num_experts_per_tok": 1}),
    ],
)
def test_soft_caps_and_sinks(model_type, text):
    """Models that only run eagerly: their weights come from themselves."""
    name, arguments = TINY[model_type]
    model_class = getattr(transformers, name)
    arguments = {**arguments, "text_config": {**arguments["text_config"], **text}}
    torch.manual_seed(0)
    model = model_class(model_class.config_class(**copy.deepcopy(arguments))).eval()
    unit_gain_(model)
    inputs = tiny_inputs(model)
    assert model.config.text_config._attn_implementation == "eager"
    rows, visual = rows_of(model, inputs)
    layers = eager_weights(model, inputs)
    assert_agrees(measured_table(model, inputs), layers, rows, visual)
    total = layers[0][:, rows].sum(-1)
    assert (total < 0.99).any() == (text["model_type"] == "gpt_oss")  # the sink takes the rest


def test_rows_that_do_not_explain_the_output_are_refused(monkeypatch):
    """A kernel that does more than softmax(q k) is noticed, whatever it does."""
    sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def sharper(module, query, key, value, attention_mask, **options):
        return sdpa(module, 2 * query, key, value, attention_mask, **options)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", sharper)
    model = tiny_model("llava")
    with pytest.raises(NormprobeError, match=r"layer 1 \(self_attn\).*differ from its output"):
        measure(model, tiny_inputs(model))


def test_chunks_of_rows_add_up(monkeypatch):
    model = tiny_model("llava")
    inputs = tiny_inputs(model)
    whole = measured_table(model, inputs)
    monkeypatch.setattr(attention_weights, "ROWS_AT_ONCE", 1)
    parts = measured_table(model, inputs)
    np.testing.assert_allclose(parts.drop(columns="query"), whole.drop(columns="query"), rtol=1e-6)


def test_a_word_is_a_query_of_its_own():
    model = tiny_model("llava")
    inputs = tiny_inputs(model)
    rows, visual = rows_of(model, inputs)
    ids = inputs["input_ids"][0].numpy()
    word = ids[rows[-1]]
    table = measured_table(model, inputs, words=[str(word)])
    assert table["query"].tolist() == 3 * [ALL_TEXT, str(word)]
    spelled = rows[ids[rows] == word]
    of_word = table[table["query"] == str(word)]
    assert_agrees(of_word, eager_weights(model, inputs), spelled, visual)


def test_a_phrase_spans_tokens_and_an_unknown_word_is_refused():
    model = tiny_model("llava")
    inputs = tiny_inputs(model)
    rows, _ = rows_of(model, inputs)
    phrase = decode(inputs["input_ids"][0, rows[:2]].tolist())
    table = measured_table(model, inputs, words=[phrase])
    assert table[table["query"] == phrase]["tokens"].tolist() == [2, 2, 2]
    with pytest.raises(NormprobeError, match="--word: 'dog' is not in the text after the image"):
        measure(model, inputs, words=["dog"])


def test_the_vision_encoder_is_left_alone():
    """Its attention goes through the same interface."""
    model = tiny_model("llava")
    seen = []
    parts = find_parts(model)
    with (
        torch.no_grad(),
        attention_weights.watching_attention(
            parts.decoder_layers, torch.tensor([3]), lambda *call: seen.append(call)
        ),
    ):
        model(**tiny_inputs(model))
    assert [call[:3] for call in seen] == [(n, "self_attn", 0) for n in (1, 2, 3)]
    assert all(call[3].shape == (4, 1, 24) for call in seen)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_the_model_and_the_interface_are_left_as_they_were(implementation):
    model = tiny_model("llava")
    model.set_attn_implementation(implementation)
    inputs = tiny_inputs(model)
    functions = dict(ALL_ATTENTION_FUNCTIONS)
    with torch.no_grad():
        before = model(**inputs).logits
        hooks = hooks_of(model)
        measure(model, inputs)
        assert hooks_of(model) == hooks
        assert dict(ALL_ATTENTION_FUNCTIONS) == functions
        assert torch.equal(model(**inputs).logits, before)
        with pytest.raises(NormprobeError):
            measure(model, inputs, layers=[4])
        model.model.language_model.layers[1].mlp.forward = None
        with pytest.raises(NormprobeError, match="fails on these inputs"):
            measure(model, inputs)
    assert hooks_of(model) == hooks
    assert dict(ALL_ATTENTION_FUNCTIONS) == functions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": [0]}, "--layer: expected 1 to 3, received 0"),
        ({"box": (0, 0, 17, 4)}, "--box: 0,0,17,4 is no region of the image, which has 16 x 16"),
        ({"box": (4, 0, 4, 4)}, "--box: 4,0,4,4 is no region"),
    ],
)
def test_what_is_not_there_is_refused(options, message):
    model = tiny_model("llava")
    with pytest.raises(NormprobeError, match=message):
        measure(model, tiny_inputs(model), **options)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", sorted(ALL_TYPES))
def test_rows_beside_the_kernel_equal_the_eager_weights(model_type):
    """Every type of transformers that attends inside its decoder layers."""
    if model_type in (*WITHOUT_IMAGES, *REFUSED) or model_type not in EVERY:
        pytest.skip("no text attends to an image inside its decoder layers")
    if model_type in NEEDS:
        pytest.importorskip(NEEDS[model_type])
    model = tiny_model(model_type)
    inputs = tiny_inputs(model)
    table = measured_table(model, inputs)
    model.set_attn_implementation("eager")
    assert (table["heads_mean"] > 0).any()
    pd.testing.assert_frame_equal(measured_table(model, inputs), table, rtol=1e-3, atol=1e-5)


def test_attention_between_the_layers_is_refused():
    model = tiny_model("idefics")
    with pytest.raises(NormprobeError, match="cannot be watched"):
        measure(model, tiny_inputs(model))


def test_code_that_returns_its_weights_where_it_is_asked():
    """As older code does, with attention of its own: here by products of the states."""
    model = tiny_model("llava")
    inputs, layers = tiny_inputs(model), model.model.language_model.layers
    rows, visual = rows_of(model, inputs)
    plain, asked, kept = model.forward, [False], {}

    def forward(output_attentions=None, **named):
        asked[0] = bool(output_attentions)
        return plain(**named)

    def attention(number):
        def attend(hidden_states, **_):
            scores = hidden_states @ hidden_states.mT
            later = torch.ones_like(scores, dtype=torch.bool).triu(1)
            weights = scores.masked_fill(later, -torch.inf).softmax(-1)[:, None]
            kept[number] = weights[0].double().numpy()
            return hidden_states, weights if asked[0] else None

        return attend

    model.forward = forward
    for number, layer in enumerate(layers):
        layer.self_attn.forward = attention(number)
    table = measured_table(model, inputs)
    assert_agrees(table, [kept[number] for number in range(len(layers))], rows, visual)
