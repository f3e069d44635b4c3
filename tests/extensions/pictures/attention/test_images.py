"""Heads, several images and which layers have maps, against the weights of eager attention."""

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from support import pictured
from support.eager_attention import eager_weights
from support.expected_parts import PARTS
from support.flat import flat, tidied
from support.reference import token_groups
from support.several_images import SAMPLES, inputs_of, loaded, rows_of_image
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs
from support.tiny_models import VLM_TYPES, tiny_model

from normprobe import Probe, find_parts
from normprobe.data.sample import Sample
from normprobe.extensions.pictures.attention.measure import (
    attention_of,
    layers_to_show,
    measure_attention,
)
from normprobe.extensions.pictures.attention.words import attention_verdict, focused_and_wide
from normprobe.model.measured_model import MeasuredModel
from normprobe.schema import TEXT, TOKEN_GROUPS, VISUAL

MARKED, _, BEFORE, _ = SAMPLES
TEXT_CODE = TOKEN_GROUPS.index(TEXT)


def several(model_type, tmp_path_factory):
    return loaded(model_type, tmp_path_factory.getbasetemp() / f"several-{model_type}")


def text_behind(model, inputs, place):
    """Positions of the text tokens behind one, at the decoder input."""
    groups = model.batch(inputs).groups_at(model.decoder_input(inputs))[0].numpy()
    text = np.flatnonzero(groups == TEXT_CODE)
    return text[text > place]


@pytest.mark.parametrize("model_type", ["llava", "llava_next", "idefics3", "gemma3", "aya_vision"])
@pytest.mark.parametrize("sample", [MARKED, BEFORE], ids=lambda sample: sample.id)
def test_shares_of_images(model_type, sample, tmp_path_factory):
    model, builder = several(model_type, tmp_path_factory)
    measured = attention_of(model, builder, sample)
    table = flat(measured.images).set_index(["layer", "image"])
    own = [rows_of_image(model, builder, sample, number) for number in (1, 2)]
    inputs = inputs_of(model, builder, sample)
    text = text_behind(model, inputs, np.flatnonzero(own[0] | own[1])[-1])
    for layer, weights in enumerate(eager_weights(model.model, inputs), start=1):
        for number, mask in enumerate(own, start=1):
            expected = weights[:, text][..., mask].sum(-1).mean()
            assert table.loc[(layer, number), "share"] == pytest.approx(expected, abs=1e-5)
            assert table.loc[(layer, number), "visual_tokens"] == mask.sum()
    if measured.heatmaps is not None:
        maps = measured.heatmaps.groupby(["layer", "image"])["attention"].sum()
        assert maps.to_numpy() == pytest.approx(table.loc[maps.index, "share"].to_numpy())


def test_states_that_text_attends_to(tmp_path_factory):
    """Keys of cross-attention follow each other image by image."""
    model, builder = several("mllama", tmp_path_factory)
    measured = attention_of(model, builder, MARKED)
    shares = flat(measured.images).set_index(["layer", "image"])["share"]
    (layer,) = shares.index.get_level_values("layer").unique()
    assert shares[layer].sum() == pytest.approx(1)
    inputs = inputs_of(model, builder, MARKED)
    weights = eager_weights(model.model, inputs)[layer - 1]
    ids = inputs["input_ids"][0].numpy()
    placeholder = np.flatnonzero(ids == model.model.config.image_token_id)[-1]
    text = text_behind(model, inputs, placeholder)
    expected = weights[:, text].reshape(len(weights), len(text), 2, -1).sum(-1).mean((0, 1))
    assert shares[layer].to_numpy() == pytest.approx(expected, abs=1e-5)
    seen = weights.reshape(len(weights), weights.shape[1], 2, -1)[:, text].mean((0, 1)) > 0
    assert flat(measured.images)["visual_tokens"].tolist() == seen.sum(-1).tolist()
    assert measured.heatmaps is None


@pytest.mark.parametrize("model_type", ["llava", "llava_next", "aya_vision"])
def test_a_heat_map_of_each_image(model_type, tmp_path_factory):
    model, builder = several(model_type, tmp_path_factory)
    measured = attention_of(model, builder, BEFORE)
    assert [isinstance(place, float) for place in measured.places] == [True, True]
    assert set(measured.heatmaps["image"]) == {1, 2}


@pytest.mark.parametrize("model_type", [name for name in VLM_TYPES if name != "llava_gptj"])
def test_every_number_of_a_head(model_type):
    model = tiny_model(model_type)
    inputs = tiny_inputs(model)
    measured = MeasuredModel(model, find_parts(model), SPECIAL_IDS)
    found = measure_attention(measured, lambda _: inputs, [Image.new("RGB", (16, 16))], decode=str)
    heads = flat(found.heads).set_index(["layer", "head"])
    groups = token_groups(model, inputs, PARTS[model_type], SPECIAL_IDS)[0]
    visual = groups == VISUAL
    text = np.flatnonzero(groups == TEXT)
    text = text[text > np.flatnonzero(visual)[-1]]
    for layer, weights in enumerate(eager_weights(model, inputs), start=1):
        for head, of_head in enumerate(weights, start=1):
            share = of_head[text][:, visual].sum(-1)
            part = of_head[text][:, visual] / share[:, None]
            entropy = -(part * np.log(part)).sum(-1) / np.log(visual.sum())
            row = heads.loc[layer, head]
            assert row["share"] == pytest.approx(share.mean(), abs=1e-5)
            assert row["share_std"] == pytest.approx(share.std(), abs=1e-5)
            assert row["entropy_mean"] == pytest.approx(entropy.mean(), abs=1e-5)
    # The inputs do not follow the picture: no head has a vertical center.
    assert set(found.heads["quantity"]) == {"share", "entropy"}
    # The heads of a layer average to the numbers of the layer.
    means = flat(found.heads).groupby("layer")[["share", "entropy_mean"]].mean()
    np.testing.assert_allclose(
        means, flat(found.table).set_index("layer")[["share", "entropy_mean"]], atol=1e-6
    )


def specimen_weights(probe, image, prompt):
    """Weights of text rows on the 8 x 8 visual tokens, by layer ``[heads, rows, 8, 8]``."""
    source = probe.source
    model = source.measured([])
    inputs = source.builder.build([Sample("x", prompt, (image,))])
    groups = model.batch(inputs).groups_at(model.decoder_input(inputs))[0].numpy()
    visual = groups == TOKEN_GROUPS.index(VISUAL)
    text = text_behind(model, inputs, np.flatnonzero(visual)[-1])
    layers = eager_weights(model.model, inputs)
    return [weights[:, text][..., visual].reshape(len(weights), -1, 8, 8) for weights in layers]


def test_the_vertical_center_is_that_of_the_weights_over_the_rows_of_patches():
    probe = Probe("specimen", dtype="float32")
    random = np.random.default_rng(0)
    image = Image.fromarray(random.integers(0, 255, (128, 128, 3), dtype=np.uint8))
    run = probe.attention(image, "What is in the lower half?")
    middles = (np.arange(8) + 0.5) / 8
    heads = flat(run.tables["heads"]).set_index(["layer", "head"])["vertical_center_mean"]
    for layer, weights in enumerate(
        specimen_weights(probe, image, "What is in the lower half?"), 1
    ):
        by_row = weights.sum(axis=(1, 3))  # [heads, rows of patches]
        expected = by_row @ middles / by_row.sum(axis=1)
        # Places come from pictures of coordinates, which the processor resizes.
        np.testing.assert_allclose(heads[layer], expected, atol=1e-3)
        whole = by_row.sum(axis=0) @ middles / by_row.sum()
        row = flat(run.table).query(f"layer == {layer}").iloc[0]
        assert row["vertical_center_mean"] == pytest.approx(whole, abs=1e-3)
        assert row["even_vertical_center_mean"] == pytest.approx(0.5, abs=1e-4)


def test_of_several_images_each_token_counts_in_its_own(tmp_path_factory):
    model, builder = several("llava", tmp_path_factory)
    measured = attention_of(model, builder, BEFORE)
    inputs = inputs_of(model, builder, BEFORE)
    own = [rows_of_image(model, builder, BEFORE, number) for number in (1, 2)]
    text = text_behind(model, inputs, np.flatnonzero(own[0] | own[1])[-1])
    maps = measured.heatmaps[measured.heatmaps["layer"] == 1]
    middles = [of_image[["top", "bottom"]].mean(axis=1) for _, of_image in maps.groupby("image")]
    (weights, *_) = eager_weights(model.model, inputs)
    drawn = [weights[:, text][..., mask].mean(axis=(0, 1)) for mask in own]
    whole = sum(part @ middle for part, middle in zip(drawn, middles, strict=True))
    row = flat(measured.table).query("layer == 1").iloc[0]
    assert row["vertical_center_mean"] == pytest.approx(whole / sum(map(np.sum, drawn)), abs=1e-4)


def table(*entropies):
    """Flat: ``tidied`` makes ``attention.csv`` of it."""
    layers = range(1, len(entropies) + 1)
    return pd.DataFrame(
        {"layer": layers, "query": "all text", "heads": 1, "entropy_mean": entropies}
    )


@pytest.mark.parametrize(
    ("entropies", "layers"),
    [
        ((0.5, 0.2, 0.9), [2, 3]),
        ((0.5,), [1]),
        ((float("nan"), 0.4, 0.4), [2]),
        ((float("nan"),), []),
    ],
)
def test_the_narrowest_and_the_widest_layer(entropies, layers):
    assert focused_and_wide(tidied("attention", table(*entropies))) == layers


def test_another_query_has_no_say():
    words = table(0.5, 0.6, 0.55).assign(query="cup", entropy_mean=[0.1, 0.9, 0.5])
    both = pd.concat([table(0.5, 0.6, 0.55), words])
    assert focused_and_wide(tidied("attention", both)) == [1, 2]


def test_the_layers_of_the_sentence_are_shown_beside_those_of_all_depths():
    entropies = [0.5] * 32
    entropies[4], entropies[18] = 0.2, 0.9
    attention = table(*entropies).assign(share_mean=0.5, even_share_mean=0.5)
    attention = tidied("attention", attention)
    sentence = str(attention_verdict(attention))
    assert "0.20 (layer 5) to 0.90 (layer 19)" in sentence
    assert layers_to_show(attention) == [5, 8, 16, 19, 24, 32]


def test_layers_that_were_chosen_stand_alone():
    model, builder = pictured.loaded("llava")
    found = attention_of(model, builder, pictured.sample())
    assert sorted(found.heatmaps["layer"].unique()) == layers_to_show(found.table)
    chosen = attention_of(model, builder, pictured.sample(), layers=[2])
    assert set(chosen.heatmaps["layer"]) == {2}
