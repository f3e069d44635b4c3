"""Attention head by head, and how high in the image it lies, against eager weights in float64."""

import numpy as np
import pytest
from PIL import Image
from support.eager_attention import eager_weights
from support.expected_parts import PARTS
from support.reference import token_groups
from support.several_images import SAMPLES, inputs_of, loaded, rows_of_image
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs
from support.tiny_models import VLM_TYPES, tiny_model

from normprobe import Probe, find_parts
from normprobe.data.sample import Sample
from normprobe.measurements.attention.measure import attention_of, measure_attention
from normprobe.model.measured_model import MeasuredModel
from normprobe.schema import TEXT, TOKEN_GROUPS, VISUAL

IMAGE = Image.new("RGB", (16, 16))
_, _, BEFORE, _ = SAMPLES


@pytest.mark.parametrize("model_type", [name for name in VLM_TYPES if name != "llava_gptj"])
def test_every_number_of_a_head(model_type):
    model = tiny_model(model_type)
    inputs = tiny_inputs(model)
    measured = MeasuredModel(model, find_parts(model), SPECIAL_IDS)
    found = measure_attention(measured, lambda _: inputs, [IMAGE], decode=str)
    heads = found.heads.set_index(["layer", "head"])
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
            assert row["share_mean"] == pytest.approx(share.mean(), abs=1e-5)
            assert row["share_std"] == pytest.approx(share.std(), abs=1e-5)
            assert row["entropy_mean"] == pytest.approx(entropy.mean(), abs=1e-5)
            assert np.isnan(row["vertical_center"])  # the inputs do not follow the picture
    # The heads of a layer average to the numbers of the layer.
    means = found.heads.groupby("layer")[["share_mean", "entropy_mean"]].mean()
    np.testing.assert_allclose(
        means, found.table.set_index("layer")[["share_mean", "entropy_mean"]], atol=1e-6
    )


def specimen_weights(probe, image, prompt):
    """Weights of text rows on the 8 x 8 visual tokens, by layer ``[heads, rows, 8, 8]``."""
    source = probe._source
    model = source.measured([])
    inputs = source.builder.build([Sample("x", prompt, (image,))])
    groups = model.batch(inputs).groups_at(model.decoder_input(inputs))[0].numpy()
    visual = groups == TOKEN_GROUPS.index(VISUAL)
    text = np.flatnonzero(groups == TOKEN_GROUPS.index(TEXT))
    text = text[text > np.flatnonzero(visual)[-1]]
    layers = eager_weights(model.model, inputs)
    return [weights[:, text][..., visual].reshape(len(weights), -1, 8, 8) for weights in layers]


def test_the_vertical_center_is_that_of_the_weights_over_the_rows_of_patches():
    probe = Probe("specimen", dtype="float32")
    random = np.random.default_rng(0)
    image = Image.fromarray(random.integers(0, 255, (128, 128, 3), dtype=np.uint8))
    run = probe.attention(image, "What is in the lower half?")
    middles = (np.arange(8) + 0.5) / 8
    heads = run.tables["heads"].set_index(["layer", "head"])["vertical_center"]
    for layer, weights in enumerate(
        specimen_weights(probe, image, "What is in the lower half?"), 1
    ):
        by_row = weights.sum(axis=(1, 3))  # [heads, rows of patches]
        expected = by_row @ middles / by_row.sum(axis=1)
        # Places come from pictures of coordinates, which the processor resizes.
        np.testing.assert_allclose(heads[layer], expected, atol=1e-3)
        whole = by_row.sum(axis=0) @ middles / by_row.sum()
        row = run.table.query(f"layer == {layer}").iloc[0]
        assert row["vertical_center"] == pytest.approx(whole, abs=1e-3)
        assert row["even_vertical_center"] == pytest.approx(0.5, abs=1e-4)


def test_of_several_images_each_token_counts_in_its_own(tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "several-llava"
    model, builder = loaded("llava", folder)
    measured = attention_of(model, builder, BEFORE)
    inputs = inputs_of(model, builder, BEFORE)
    own = [rows_of_image(model, builder, BEFORE, number) for number in (1, 2)]
    groups = model.batch(inputs).groups_at(model.decoder_input(inputs))[0].numpy()
    text = np.flatnonzero(groups == TOKEN_GROUPS.index(TEXT))
    text = text[text > np.flatnonzero(own[0] | own[1])[-1]]
    maps = measured.heatmaps[measured.heatmaps["layer"] == 1]
    middles = [of_image[["top", "bottom"]].mean(axis=1) for _, of_image in maps.groupby("image")]
    (weights, *_) = eager_weights(model.model, inputs)
    drawn = [weights[:, text][..., mask].mean(axis=(0, 1)) for mask in own]
    whole = sum(part @ middle for part, middle in zip(drawn, middles, strict=True))
    row = measured.table.query("layer == 1").iloc[0]
    assert row["vertical_center"] == pytest.approx(whole / sum(map(np.sum, drawn)), abs=1e-4)
