"""How much attention each of several images draws, against the weights of eager attention."""

import numpy as np
import pytest
from support.eager_attention import eager_weights
from support.several_images import SAMPLES, inputs_of, loaded, rows_of_image

from normprobe.measurements.attention.measure import attention_of
from normprobe.schema import TEXT, TOKEN_GROUPS

MARKED, _, BEFORE, _ = SAMPLES
TEXT_CODE = TOKEN_GROUPS.index(TEXT)


def folder(model_type, tmp_path_factory):
    return tmp_path_factory.getbasetemp() / f"several-{model_type}"


@pytest.mark.parametrize("model_type", ["llava", "llava_next", "idefics3", "gemma3", "aya_vision"])
@pytest.mark.parametrize("sample", [MARKED, BEFORE], ids=lambda sample: sample.id)
def test_shares_of_images(model_type, sample, tmp_path_factory):
    model, builder = loaded(model_type, folder(model_type, tmp_path_factory))
    measured = attention_of(model, builder, sample)
    table = measured.images.set_index(["layer", "image"])
    own = [rows_of_image(model, builder, sample, number) for number in (1, 2)]
    inputs = inputs_of(model, builder, sample)
    groups = model.batch(inputs).groups_at(model.decoder_input(inputs))[0].numpy()
    last = np.flatnonzero(own[0] | own[1])[-1]
    text = [place for place in np.flatnonzero(groups == TEXT_CODE) if place > last]
    for layer, weights in enumerate(eager_weights(model.model, inputs), start=1):
        for number, mask in enumerate(own, start=1):
            expected = weights[:, text][..., mask].sum(-1).mean()
            assert table.loc[(layer, number), "share_mean"] == pytest.approx(expected, abs=1e-5)
            assert table.loc[(layer, number), "visual_tokens"] == mask.sum()
    if measured.heatmaps is not None:
        maps = measured.heatmaps.groupby(["layer", "image"])["attention"].sum()
        assert maps.to_numpy() == pytest.approx(table.loc[maps.index, "share_mean"].to_numpy())


def test_states_that_text_attends_to(tmp_path_factory):
    """Keys of cross-attention follow each other image by image."""
    model, builder = loaded("mllama", folder("mllama", tmp_path_factory))
    measured = attention_of(model, builder, MARKED)
    shares = measured.images.set_index(["layer", "image"])["share_mean"]
    (layer,) = shares.index.get_level_values("layer").unique()
    assert shares[layer].sum() == pytest.approx(1)
    inputs = inputs_of(model, builder, MARKED)
    weights = eager_weights(model.model, inputs)[layer - 1]
    ids = inputs["input_ids"][0].numpy()
    placeholder = np.flatnonzero(ids == model.model.config.image_token_id)[-1]
    groups = model.batch(inputs).groups_at(model.decoder_input(inputs))[0].numpy()
    text = [place for place in np.flatnonzero(groups == TEXT_CODE) if place > placeholder]
    expected = weights[:, text].reshape(len(weights), len(text), 2, -1).sum(-1).mean((0, 1))
    assert shares[layer].to_numpy() == pytest.approx(expected, abs=1e-5)
    assert measured.heatmaps is None


@pytest.mark.parametrize("model_type", ["llava", "llava_next", "aya_vision"])
def test_a_heat_map_of_each_image(model_type, tmp_path_factory):
    model, builder = loaded(model_type, folder(model_type, tmp_path_factory))
    measured = attention_of(model, builder, BEFORE)
    assert [isinstance(place, float) for place in measured.places] == [True, True]
    assert set(measured.heatmaps["image"]) == {1, 2}
