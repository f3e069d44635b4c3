"""Cosines and scores of a word against float64 NumPy, over states and scores captured elsewhere."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import ImageOps
from support.capture import capture
from support.expected_parts import ExpectedParts
from support.pictured import BOX, WORD, loaded, sample, share_in
from support.scores import scores_of
from support.tiny_inputs import SPECIAL_IDS

from normprobe import NormprobeError, find_parts
from normprobe.extensions.pictures.attention.measure import attention_of
from normprobe.extensions.pictures.grounding import measure
from normprobe.inputs.on_device import inputs_for
from normprobe.model.image_places import image_places
from normprobe.model.measured_model import MeasuredModel
from normprobe.tidy import select

#: Every type with a grid of places, some with tiles, a thumbnail, newlines or padding.
TYPES = (
    "llava",
    "paligemma",
    "gemma3",
    "deepseek_vl",
    "lighton_ocr",
    "hunyuan_vl",
    "paddleocr_vl",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "glm4v",
    "mistral3",
    "idefics3",
    "granite_docling",
    "ovis2",
    "aya_vision",
    "qianfan_ocr",
    "internvl",
    "llava_next",
    "llava_onevision",
)


def observed(model, builder, asked):
    inputs = builder.build([asked])
    observe = measure.observer(model, builder)
    return measure.rows(observe(inputs_for(model.model, inputs), [asked]), [asked.id])


def states_of(model, builder, asked):
    """What each decoder layer takes and returns."""
    parts = ExpectedParts(decoder_layers=model.parts.decoder_layers.name)
    return capture(model.model, dict(inputs_for(model.model, builder.build([asked]))), parts).layers


def positions(model, builder, asked):
    """Those of the word, and of the visual tokens: what another picture moves."""
    inputs = builder.build([asked])
    ids = inputs["input_ids"][0].tolist()
    letters = [builder.tokenizer.convert_tokens_to_ids(letter) for letter in WORD]
    starts = [n for n in range(len(ids)) if ids[n : n + len(letters)] == letters]
    other = replace(asked, images=(ImageOps.invert(asked.image),))
    before, after = (states_of(model, builder, one)[0].entered[0] for one in (asked, other))
    moved = np.flatnonzero((before != after).any(axis=-1))
    return np.arange(starts[-1], starts[-1] + len(letters)), moved


def expected(by_token, inside):
    """Mean inside and outside, and the gap."""
    known = ~np.isnan(inside)
    part, values = inside[known], by_token[known]
    if not np.isfinite(values).all():  # a sliding window hides some of the picture
        return (np.nan,) * 3
    signal, noise = np.average(values, weights=part), np.average(values, weights=1 - part)
    return signal, noise, signal - noise


def cosine_maps(states, word, visual):
    """Of the decoder input and of each layer the mean over all pairs, pair by pair."""
    for state in (states[0].entered[0], *(layer.left[0] for layer in states)):
        pairs = [
            [
                state[v] @ state[w] / np.sqrt((state[v] @ state[v]) * (state[w] @ state[w]))
                for w in word
            ]
            for v in visual
        ]
        yield np.array(pairs).mean(axis=1)


def assert_rows(rows, quantity, layer, values, tolerance=1e-4):
    row = rows.set_index("layer").loc[layer]
    found = [row[f"{quantity}_{side}"] for side in measure.SIDES]
    np.testing.assert_allclose(found, values, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("model_type", TYPES)
def test_numbers(model_type):
    model, builder = loaded(model_type)
    asked = sample()
    rows = observed(model, builder, asked)
    assert (rows["left_out"] == "").all()
    word, visual = positions(model, builder, asked)
    layers = model.model.get_submodule(model.parts.decoder_layers.name)
    with scores_of(layers) as scores:
        states = states_of(model, builder, asked)
    mask = np.isin(np.arange(states[0].entered.shape[1]), visual)
    places, _ = image_places(
        model, lambda i: builder.build([replace(asked, images=(i,))]), asked.image, mask
    )
    inside = np.array([share_in(place, BOX) for place in places])
    assert rows["layer"].tolist() == list(range(len(layers) + 1))
    for layer, by_token in enumerate(cosine_maps(states, word, visual)):
        assert_rows(rows, "cosine", layer, expected(by_token, inside))
    assert sorted(scores) == list(range(1, len(layers) + 1))
    for layer, matrix in scores.items():
        by_token = matrix[:, word][..., visual].mean(axis=(0, 1))
        assert_rows(rows, "score", layer, expected(by_token, inside))
    assert rows.loc[0, ["score_inside", "score_outside", "score_gap"]].isna().all()


def test_attention_has_the_same_scores_of_the_same_word_and_box():
    model, builder = loaded("llava")
    asked = sample()
    word, visual = positions(model, builder, asked)
    with scores_of(model.decoder_layers) as scores:
        states_of(model, builder, asked)
    mask = np.isin(np.arange(next(iter(scores.values())).shape[1]), visual)
    places, _ = image_places(
        model, lambda i: builder.build([replace(asked, images=(i,))]), asked.image, mask
    )
    inside = np.array([share_in(place, BOX) for place in places])
    table = attention_of(model, builder, asked, words=[WORD], box=BOX).table
    found = select(table, "score_gap", query=WORD).set_index("layer")["mean"]
    for layer, matrix in scores.items():
        by_token = matrix[:, word][..., visual].mean(axis=(0, 1))
        assert found[layer] == pytest.approx(expected(by_token, inside)[2], abs=1e-5)


def test_tokens_that_show_none_of_the_image_lie_on_no_side():
    """Such as the end of a line of patches, whose place is empty."""
    places = np.array([[0, 0, 0.5, 1], [0.5, 0, 1, 1], [0, 0, 0, 0]])
    inside = measure._inside(places, sample((0, 0, 48, 64)), 3)
    np.testing.assert_array_equal(inside, [1, 0, np.nan])
    by_token = np.array([0.9, 0.4, -5.0])
    assert measure._sides(by_token, inside) == pytest.approx((0.9, 0.4, 0.5))


class Padding:
    """A builder whose prompts are padded on one side."""

    def __init__(self, builder, amounts):
        self.tokenizer = builder.tokenizer
        self._builder, self._amounts = builder, amounts

    def build(self, samples):
        inputs = self._builder.build(samples)
        length = inputs["input_ids"].shape[1]
        return {
            name: torch.nn.functional.pad(tensor, self._amounts)
            if tensor.dim() == 2 and tensor.shape[1] == length
            else tensor
            for name, tensor in inputs.items()
        }


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("model_type", ["llava", "gemma3", "internvl"])
def test_padding_moves_no_number(model_type, side):
    model, builder = loaded(model_type)
    plain = observed(model, builder, sample()).drop(columns=["sample_id", "left_out"])
    padding = Padding(builder, (5, 0) if side == "left" else (0, 5))
    found = observed(model, padding, sample()).drop(columns=["sample_id", "left_out"])
    np.testing.assert_allclose(found, plain, rtol=1e-3, atol=1e-4)


@pytest.fixture
def planted(monkeypatch):
    """LLaVA whose visual tokens in the left half are the word, and whose layers change nothing."""
    model, builder = loaded("llava")
    changed = copy.deepcopy(model.model)
    width = changed.config.text_config.hidden_size
    axes = torch.eye(width)
    projector, text = changed.model.multi_modal_projector, changed.model.language_model
    left = torch.tensor([1.0, 1.0, 0.0, 0.0] * 4)[:, None]
    forward = projector.forward
    # A trace of the pixels is left, by which the model confirms the places.
    projector.forward = lambda x: 1e-4 * forward(x) + 30 * (left * axes[0] + (1 - left) * axes[1])
    with torch.no_grad():
        for letter in WORD:
            text.embed_tokens.weight[builder.tokenizer.convert_tokens_to_ids(letter)] = axes[0]
        for layer in text.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return MeasuredModel(changed, find_parts(changed), SPECIAL_IDS), builder


@pytest.mark.parametrize(
    ("box", "gap"),
    [
        ((0, 0, 48, 64), 1.0),  # the left half: all of the word, and none outside
        ((48, 0, 96, 64), -1.0),
        ((24, 0, 72, 64), 0.0),  # half and half, inside and outside
        ((0, 0, 24, 64), 1 - 1 / 3),  # a third of the rest is the word too
        ((0, 0, 96, 32), 0.0),
        ((0, 0, 36, 64), 1 - 0.5 / 2.5),  # half of the second column
    ],
)
def test_a_planted_gap_is_found_in_every_layer(planted, box, gap):
    rows = observed(*planted, sample(box))
    assert rows["cosine_gap"].to_numpy() == pytest.approx(gap, abs=0.01)


@pytest.mark.parametrize(
    ("values", "inside"),
    [([1.0, np.nan], [1.0, 0.0]), ([np.nan, 1.0], [1.0, 0.0]), ([1.0, 2.0], [1.0, 1.0])],
)
def test_one_side_alone_is_not_shown(values, inside):
    """Of the other side there is no number, and so no gap."""
    assert np.isnan(measure._sides(np.array(values), np.array(inside))).all()


def test_places_are_asked_once_a_size(monkeypatch):
    model, builder = loaded("llava")
    asked = []
    real = measure.image_places
    monkeypatch.setattr(measure, "image_places", lambda *a: asked.append(a) or real(*a))
    observe = measure.observer(model, builder)
    small = replace(sample((0, 0, 20, 40)), images=(sample().image.resize((60, 40)),))
    for one in (sample(), small, sample((0, 0, 48, 32)), small):
        observe(inputs_for(model.model, builder.build([one])), [one])
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"word": "spoon"}, "the word is not in the model's text"),
        ({"box": (0, 0, 96, 64)}, "every visual token lies in the box"),
    ],
)
def test_what_says_nothing_is_left_out_with_its_reason(changes, reason):
    rows = observed(*loaded("llava"), sample(**changes))
    assert rows["left_out"].tolist() == [reason]
    assert rows["cosine_gap"].isna().all()


def test_a_box_that_the_processor_cuts_off_is_left_out():
    model, builder = loaded("llava")
    processor = copy.deepcopy(builder.processor)
    processor.image_processor.do_center_crop = True
    processor.image_processor.size = {"shortest_edge": 16}
    processor.image_processor.crop_size = {"height": 16, "width": 16}
    rows = observed(model, replace(builder, processor=processor), sample((0, 0, 12, 64)))
    assert rows["left_out"].tolist() == ["no visual token looks into the box"]


def test_a_sample_without_a_box_is_refused():
    with pytest.raises(NormprobeError, match="boxes/cup says no word and box"):
        observed(*loaded("llava"), replace(sample(), referent=None))


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [("blip-2", "do not react to the places"), ("mllama", "no rows of its sequence")],
)
def test_a_model_whose_places_are_unknown_is_refused_with_the_reason(model_type, reason):
    with pytest.raises(NormprobeError, match=reason):
        observed(*loaded(model_type), sample())


def test_a_model_that_returns_its_weights_has_cosines_alone():
    model, builder = loaded("llava")
    eager = copy.deepcopy(model.model)
    eager.set_attn_implementation("eager")
    rows = observed(MeasuredModel(eager, find_parts(eager), SPECIAL_IDS), builder, sample())
    assert rows["cosine_gap"].notna().all()
    assert rows["score_gap"].isna().all()
