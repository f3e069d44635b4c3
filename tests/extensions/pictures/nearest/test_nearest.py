"""Nearest words against plain float64 NumPy, and where pictures hold words or none."""

import io
import re

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from rich.console import Console
from support.pictured import loaded, sample

from normprobe import NormprobeError
from normprobe.data.sample import Sample
from normprobe.extensions.pictures.nearest.measure import (
    CHANCE,
    NearestRows,
    SeenWords,
    WordRows,
    above_chance,
    observer,
    rows,
)
from normprobe.extensions.pictures.nearest.shown import show, verdict
from normprobe.extensions.pictures.nearest.table import tables
from normprobe.hooks import on_input, on_output
from normprobe.inputs.on_device import inputs_for, with_permuted_pixels
from normprobe.model.find.parts import weight_of
from normprobe.runs.run_folder import RunStore
from normprobe.schema import TEXT, TOKEN_GROUPS, VISUAL
from normprobe.tidy import select

TYPES = ["llava", "gemma3", "lighton_ocr", "idefics3", "llava_next", "chameleon"]


def states_of(model, inputs):
    kept = []
    layers = model.decoder_layers
    hooks = [on_input(layers[0], kept.append), *(on_output(each, kept.append) for each in layers)]
    with torch.no_grad():
        model.model(**inputs)
    for hook in hooks:
        hook.remove()
    return [model.read_stream(state)[0].double().numpy() for state in kept]


def nearest_by_hand(states, table, words):
    units = states / np.sqrt((states**2).sum(-1, keepdims=True))
    rows_of = table[words]
    cosines = units @ (rows_of / np.sqrt((rows_of**2).sum(-1, keepdims=True))).T
    return cosines.max(-1), np.array(words)[cosines.argmax(-1)]


@pytest.mark.parametrize("model_type", TYPES)
def test_nearest_rows_against_own_hooks(model_type):
    model, builder = loaded(model_type)
    asked = sample()
    inputs = inputs_for(model.model, builder.build([asked]))
    seen = observer(model, builder)(inputs, [asked])
    table = weight_of(model.parts.text_embedding).double().numpy()
    none = {*builder.special_token_ids, *model.parts.image_token_ids}
    mapping = getattr(getattr(model.model, "model", None), "vocabulary_mapping", None)
    none |= {int(id_) for id_ in getattr(mapping, "image_tokens", ())}
    words = [id_ for id_ in builder.vocabulary_ids if id_ < len(table) and id_ not in none]
    words = [id_ for id_ in words if (table[id_] ** 2).sum() > 0]
    groups = model.batch(inputs).groups_at(model.decoder_input(inputs))[0].numpy()
    for found, group, given in (
        (seen.visual, VISUAL, inputs),
        (seen.text, TEXT, inputs),
        (seen.permuted, VISUAL, with_permuted_pixels(inputs)),
    ):
        mask = groups == TOKEN_GROUPS.index(group)
        for layer, states in enumerate(states_of(model, given)):
            cosines, ids = nearest_by_hand(states[mask], table, words)
            np.testing.assert_allclose(found.cosines[layer], cosines, rtol=1e-5, atol=1e-6)
            assert (found.ids[layer] == ids).mean() > 0.99  # two rows may be as near


def test_a_table_in_pieces_is_one_table(monkeypatch):
    model, builder = loaded("llava")
    inputs = inputs_for(model.model, builder.build([sample()]))
    whole = observer(model, builder)(inputs, [sample()]).visual
    monkeypatch.setattr("normprobe.extensions.pictures.nearest.measure._ROWS_AT_ONCE", 7)
    pieces = observer(model, builder)(inputs, [sample()]).visual
    np.testing.assert_allclose(pieces.cosines, whole.cosines, rtol=1e-6)
    np.testing.assert_array_equal(pieces.ids, whole.ids)


def test_permuted_pixels_are_the_same_pixels():
    model, builder = loaded("llava")
    inputs = inputs_for(model.model, builder.build([sample()]))
    found = with_permuted_pixels(inputs)["pixel_values"]
    assert not torch.equal(found, inputs["pixel_values"])
    assert torch.equal(
        found.flatten().sort().values, inputs["pixel_values"].flatten().sort().values
    )
    assert torch.equal(found, with_permuted_pixels(inputs)["pixel_values"])


def test_models_whose_text_attends_to_the_picture_are_refused():
    model, builder = loaded("mllama")
    with pytest.raises(NormprobeError, match="nearest words need visual tokens"):
        observer(model, builder)


def test_states_of_another_width_than_the_table_have_no_cosine():
    table = torch.ones(5, 4)
    words = WordRows(table, table.norm(dim=1), torch.zeros(5))
    with pytest.raises(NormprobeError, match="the text table are 4 wide, states 6"):
        words.nearest(torch.ones(3, 6))


def test_a_sample_without_a_picture_is_left_out():
    model, builder = loaded("llava")
    asked = Sample("a", "Where is the cup?")
    seen = observer(model, builder)(inputs_for(model.model, builder.build([asked])), [asked])
    assert seen.left_out == "it has no picture"
    with pytest.raises(NormprobeError, match="no sample could be measured; a: it has no picture"):
        tables(rows(seen, ["a"]).assign(image_hash="a"))


# --- planted ------------------------------------------------------------------------------------


def test_patches_that_become_words_are_told_with_their_words():
    """The projector writes a word for each flat patch, and noise for one that is not flat."""
    model, builder = loaded("llava")
    asked = Sample("flat", "What is it?", (Image.new("RGB", (96, 64), (200, 30, 60)),))
    inputs = inputs_for(model.model, builder.build([asked]))
    pixels, word = {}, 20
    table = weight_of(model.parts.text_embedding)

    def write(_, __, output):
        random = torch.randn(output.shape, generator=torch.Generator().manual_seed(0))
        return table[word].expand_as(output).clone() if pixels["flat"] else random

    pixel = inputs["pixel_values"]
    steps = torch.linspace(0.9, 1.1, pixel.shape[-1])  # else no order of them is another one
    inputs["pixel_values"] = pixel.mean(dim=(2, 3), keepdim=True) * steps.expand(pixel.shape)
    hooks = [
        model.parts.vision_encoder.module.register_forward_pre_hook(
            smooth(pixels), with_kwargs=True
        ),
        model.parts.projector.module.register_forward_hook(write),
    ]
    try:
        seen = observer(model, builder)(inputs, [asked])
    finally:
        for hook in hooks:
            hook.remove()
    found = rows(seen, ["flat"])
    first = found[found["layer"] == 0]
    assert first.loc[first["rank"] == 0, "above_chance"].item() == 1
    assert first.loc[first["rank"] == 1, "token_id"].item() == word
    assert first.loc[first["rank"] == 1, "nearest_cosine"].item() == pytest.approx(1, abs=1e-6)


def smooth(pixels):
    """Say whether neighbouring pixels are alike."""

    def look(_, args, kwargs):
        given = kwargs["pixel_values"] if "pixel_values" in kwargs else args[0]
        pixels["flat"] = bool(given.diff(dim=-1).abs().mean() < 0.1)

    return look


@pytest.mark.parametrize("tokens", [5, 16, 64, 300])
def test_tokens_like_the_permuted_ones_are_above_them_by_chance(tokens):
    random = np.random.default_rng(tokens)
    found = [above_chance(*random.normal(size=(2, tokens))) for _ in range(4000)]
    shares, (chance, *_) = zip(*found, strict=True)
    assert np.mean(shares) == pytest.approx(chance, rel=0.1)
    assert chance <= CHANCE or chance == 1 / (tokens + 1)


def made(shift, seed, images=24, tokens=64, layers=3):
    """Pictures with a level of their own; in each layer tokens are so much nearer than permuted."""
    random, found = np.random.default_rng(seed), []
    for number in range(images):
        level = random.normal(0.3, 0.02)
        permuted = random.normal(level, 0.03, (layers, tokens))
        visual = random.normal(level + shift, 0.03, (layers, tokens))
        ids = random.integers(0, 50, (layers, tokens))
        text = NearestRows(np.ones((layers, 4)), np.zeros((layers, 4), int))
        seen = SeenWords(NearestRows(visual, ids), NearestRows(permuted, ids), text, "w{}".format)
        found.append(rows(seen, [f"{number}"]).assign(image_hash=f"{number}"))
    return pd.concat(found, ignore_index=True)


def said(made_rows):
    run = RunStore({"command": "nearest"})
    for name, table in tables(made_rows).items():
        run.write_table(name, table)
    return str(verdict(run))


def test_words_and_their_absence_are_said():
    assert "more often than by chance in layers 0-2" in said(made(0.05, 0))
    assert "less often than by chance in layers 0-2" in said(made(-0.03, 0))
    assert "No visual token is nearer to a word than chance would have it." in said(made(-1, 0))


def test_means_shares_and_words_are_those_of_the_samples():
    made_rows = made(0.02, 1, images=5)
    found = tables(made_rows)
    of_layer = made_rows[(made_rows["rank"] == 0) & (made_rows["layer"] == 2)]
    ratio = of_layer["above_chance"].mean() / of_layer["chance"].mean()
    assert select(found["nearest"], "to_chance", layer=2)["mean"].item() == pytest.approx(ratio)
    mean = select(found["nearest"], "nearest_cosine", layer=2)["mean"].item()
    assert mean == pytest.approx(of_layer["nearest_cosine"].mean())
    words = found["nearest_words"].query("layer == 2")
    of_words = made_rows[(made_rows["rank"] > 0) & (made_rows["layer"] == 2)]
    expected = of_words.groupby("word")["share"].sum().sort_values(ascending=False) / 5
    np.testing.assert_allclose(words["share"], expected[:10])


def test_words_are_shown_at_the_decoder_input_in_the_middle_and_behind_the_last_layer():
    run = RunStore({"command": "nearest"})
    for name, table in tables(made(0.02, 1, layers=6)).items():
        run.write_table(name, table)
    printed = io.StringIO()
    show(run, Console(file=printed))
    assert re.findall(r"^Layer (\d+): ", printed.getvalue(), re.MULTILINE) == ["0", "3", "5"]


@pytest.mark.slow
def test_where_pictures_hold_no_words_none_are_said():
    told = [said(made(0.0, seed)) for seed in range(100, 140)]
    assert sum("often than by chance" in each for each in told) <= 2  # 5 % of 40
