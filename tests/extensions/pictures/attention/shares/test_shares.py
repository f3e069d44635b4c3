"""Shares over samples against eager weights and keys of the projections, in float64 NumPy."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import ImageOps
from support.eager_attention import eager_weights
from support.pictured import loaded, sample
from support.slow_bootstrap import SAMPLES, assert_intervals, slow_draws, use_few_draws

from normprobe import NormprobeError, Probe
from normprobe.data.data_set import open_data
from normprobe.extensions.pictures.attention.shares import measure
from normprobe.extensions.pictures.attention.shares.shown import verdict
from normprobe.inputs.on_device import inputs_for
from normprobe.runs.run_folder import RunStore
from normprobe.schema import TEXT, TOKEN_GROUPS, VISUAL
from normprobe.tidy import select


def observed(model, builder, asked):
    inputs = inputs_for(model.model, builder.build([asked]))
    return inputs, measure.rows(measure.observer(model, builder)(inputs, [asked]), [asked.id])


def groups_of(model, inputs):
    groups = model.batch(inputs).groups_at(model.decoder_input(inputs))[0].numpy()
    return groups == TOKEN_GROUPS.index(VISUAL), groups == TOKEN_GROUPS.index(TEXT)


def keys_of(model, inputs):
    """What each layer's key projection, or the norm behind it, returns, by key head."""
    kept = []
    attend = [layer.self_attn for layer in model.decoder_layers]
    normed = hasattr(attend[0], "k_norm")
    hooks = [
        (each.k_norm if normed else each.k_proj).register_forward_hook(
            lambda *call: kept.append(call[-1][0].double().numpy())
        )
        for each in attend
    ]
    with torch.no_grad():
        model.model(**inputs)
    for hook in hooks:
        hook.remove()
    if normed:
        return kept
    width = attend[0].head_dim
    return [k.reshape(len(k), -1, width).swapaxes(0, 1) for k in kept]


@pytest.mark.parametrize("model_type", ["llava", "gemma3", "aya_vision", "idefics3"])
def test_every_head_against_eager_weights(model_type):
    model, builder = loaded(model_type)
    inputs, rows = observed(model, builder, sample())
    visual, text = groups_of(model, inputs)
    behind = np.flatnonzero(text)[np.flatnonzero(text) > np.flatnonzero(visual)[-1]]
    keys = keys_of(model, inputs)
    for layer, weights in enumerate(eager_weights(model.model, inputs), start=1):
        found = rows[rows["layer"] == layer]
        assert found["head"].tolist() == list(range(1, len(weights) + 1))
        seen, read = weights[:, behind], (weights[:, behind][..., text]).sum(-1).mean(-1)
        share = seen[..., visual].sum(-1).mean(-1)
        # A sliding window hides some of the picture from some rows, and all of it from others.
        with np.errstate(invalid="ignore", divide="ignore"):
            part = seen[..., visual] / seen[..., visual].sum(-1, keepdims=True)
            nats = -np.where(part == 0, 0, part * np.log(part)).sum(-1) / np.log(visual.sum())
        entropy = np.nanmean(nats, axis=-1)
        expected = {"share": share, "share_of_content": share / (share + read), "entropy": entropy}
        norms = np.sqrt((keys[layer - 1] ** 2).sum(-1))  # rotary positions keep them
        norms = norms.repeat(len(weights) // len(norms), axis=0)
        expected["visual_key_norm"] = norms[:, visual].mean(-1)
        expected["text_key_norm"] = norms[:, text].mean(-1)
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-6, err_msg=name)


def made_rows():
    random, made = np.random.default_rng(0), []
    for name, image in SAMPLES:
        for layer in (1, 2):
            for head in (1, 2, 3):
                numbers = dict(zip(measure._OF_LAYERS, random.uniform(0.1, 0.9, 6), strict=True))
                row = {"sample_id": name, "image_hash": image, "left_out": "", "layer": layer}
                made.append({**row, "head": head, "images": 0, "image": 0, **numbers})
    return pd.DataFrame(made)


def test_means_over_heads_then_samples_with_the_intervals_of_drawn_images(monkeypatch):
    use_few_draws(monkeypatch)
    rows = made_rows()
    table = measure.tables(rows)["shares"]
    columns = ["share", "share_to_even", "key_norm_ratio"]

    def means(drawn):
        found = drawn.groupby("layer")[[*measure._OF_LAYERS]].mean()
        found["share_to_even"] = found["share"] / found["even_share"]
        found["key_norm_ratio"] = found["visual_key_norm"] / found["text_key_norm"]
        return found[columns].reset_index()

    wide = means(rows)
    for name in columns:
        found = select(table, name)
        np.testing.assert_allclose(found["mean"], wide[name])
        assert (found["samples"] == rows["sample_id"].nunique()).all()
        assert (found["band_low"] <= found["low"]).all()
        assert (found["band_high"] >= found["high"]).all()
    flat = pd.DataFrame({"layer": [1, 2]})
    for name in columns:
        found = select(table, name)
        for column, estimate in (("", "mean"), ("_ci_low", "low"), ("_ci_high", "high")):
            flat[name.replace("share_to_even", "even_ratio") + column] = found[estimate].to_numpy()
    # A draw is that of a ratio of means, not the mean of ratios.
    slow = slow_draws(
        rows, lambda r: means(r).rename(columns={"share_to_even": "even_ratio"}), ["layer"]
    )
    assert_intervals(flat, slow, ["layer"], ["even_ratio", "key_norm_ratio"])


def test_several_pictures_share_what_falls_on_all():
    model, builder = loaded("llava")
    asked = sample()
    both = replace(asked, images=(asked.images[0], ImageOps.mirror(asked.images[0])))
    rows = observed(model, builder, both)[1].assign(image_hash="x")
    found = measure.tables(rows)
    by_image = select(found["share_images"], "share")
    assert by_image["image"].tolist() == 3 * [1, 2]
    assert (by_image["images"] == 2).all()
    whole = select(found["shares"], "share")["mean"]
    np.testing.assert_allclose(by_image.groupby("layer")["mean"].sum(), whole, rtol=1e-6)


def test_a_planted_preference_is_said():
    """Keys of visual tokens that answer every query get more than their even share."""
    rows = made_rows()
    random = np.random.default_rng(1)
    rows["share"], rows["even_share"] = 0.8 + 0.01 * random.random(len(rows)), 0.2
    rows["visual_key_norm"], rows["text_key_norm"] = 9.0, 3.0 + 0.01 * random.random(len(rows))
    run = RunStore({"command": "shares"})
    run.write_table("shares", measure.tables(rows)["shares"])
    told = str(verdict(run))
    assert "Text gives 80 % of its attention" in told or "Text gives 81 %" in told
    assert "4.0 x more than an even spread in layers 1-2" in told
    assert "Keys of visual tokens are larger than those of text in layers 1-2" in told


def test_samples_without_a_picture_are_left_out_and_listed():
    model, builder = loaded("llava")
    plain = replace(sample(), images=())
    seen = measure.observer(model, builder)({}, [plain])
    out = measure.rows(seen, ["a"]).assign(image_hash=None)
    with pytest.raises(NormprobeError, match="a: it has no picture"):
        measure.tables(out)
    found = measure.tables(pd.concat([made_rows(), out]))
    assert found["left_out"].to_dict("records") == [
        {"sample_id": "a", "reason": "it has no picture"}
    ]


@pytest.mark.slow
def test_cross_attention_says_that_all_of_it_is_no_finding():
    model, builder = loaded("mllama")
    rows = observed(model, builder, sample())[1].assign(image_hash="x")
    table = measure.tables(rows)["shares"]
    assert select(table, "share")["mean"].to_numpy() == pytest.approx(1.0)
    assert select(table, "share_of_content").empty
    run = RunStore({"command": "shares"})
    run.write_table("shares", table)
    assert "no finding" in str(verdict(run))


@pytest.mark.slow
def test_one_sample_has_what_attention_says_of_it():
    probe = Probe("specimen")
    shares = probe.measure("shares", "sample", limit=1)
    (asked,) = open_data("sample", limit=1, seed=42)
    table = probe.attention(asked).tables["attention"]
    for name in ("share", "even_share", "entropy"):
        known = select(table, name, query="all text")["mean"].to_numpy()
        np.testing.assert_allclose(select(shares.tables["shares"], name)["mean"], known, rtol=1e-5)
