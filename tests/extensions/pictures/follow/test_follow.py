"""The way of visual tokens against layouts by hand, own hooks and eager weights, in float64."""

import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import ImageOps
from scipy.stats import spearmanr
from support.eager_attention import eager_weights
from support.pictured import SIZE, loaded, sample

from normprobe import NormprobeError
from normprobe.extensions.pictures.follow.measure import (
    FollowedTokens,
    observer,
    rank_correlation_of,
    rows,
)
from normprobe.extensions.pictures.follow.shown import draw_follow, verdict
from normprobe.extensions.pictures.follow.table import tables
from normprobe.inputs.on_device import inputs_for
from normprobe.model.tower import blocks_of
from normprobe.model.tower_join import BeforeDecoder
from normprobe.runs.run_folder import RunStore
from normprobe.schema import TEXT, TOKEN_GROUPS, VISUAL
from normprobe.tidy import select


def squares(down, across):
    """The token of each patch of a picture whose 2 x 2 squares become one."""
    row, column = np.divmod(np.arange(down * across), across)
    return (row // 2) * (across // 2) + column // 2


def of_tiles(owners, tiles):
    return np.concatenate([owners + tile * (owners.max() + 1) for tile in range(tiles)])


def anyres():
    """LLaVA-NeXT: a thumbnail, then 2 x 2 tiles whose outer rows show padding, as lines."""
    owners = np.full((5, 17), -1)  # the first row of each is CLS
    owners[0, 1:] = np.arange(16)
    lines = 16 + np.arange(48).reshape(6, 8)
    for tile, (down, across) in enumerate([(0, 0), (0, 4), (3, 0), (3, 4)], start=1):
        kept = slice(4, 16) if down == 0 else slice(0, 12)
        owners[tile, 1:][kept] = lines[down : down + 3, across : across + 4].ravel()
    return owners.ravel()


#: What becomes of each row of the tower: -1: no token.
LAYOUTS = {
    "llava": np.arange(17) - 1,
    "gemma3": squares(4, 4),  # pooled
    "lighton_ocr": squares(6, 8),  # a merger
    "paddleocr_vl": squares(6, 8),
    "idefics3": of_tiles(squares(4, 4), 5),  # pixel shuffle, tiles
    "aya_vision": of_tiles(squares(4, 4), 5),
    "llava_next": anyres(),  # lines that end in a newline
}


def followed(model_type, asked=None):
    model, builder = loaded(model_type)
    asked = asked or sample()
    inputs = inputs_for(model.model, builder.build([asked]))
    observe = observer(model)
    first = observe(inputs, [asked])
    again = observe(inputs, [asked])  # from the block that the first one found
    for number, norms in first.before.tower.items():
        np.testing.assert_array_equal(norms, again.before.tower[number])
    return model, inputs, again


def states_of(model, inputs, modules):
    kept = [[] for _ in modules]
    hooks = [
        module.register_forward_hook(lambda *call, to=to: to.append(first_of(call[-1])))
        for module, to in zip(modules, kept, strict=True)
    ]
    with torch.no_grad():
        model.model(**inputs)
    for hook in hooks:
        hook.remove()
    return [np.concatenate([s.reshape(-1, s.shape[-1]) for s in each]) for each in kept]


def first_of(output):
    return (output[0] if isinstance(output, tuple) else output).detach().double().numpy()


def groups_of(model, inputs):
    return model.batch(inputs).groups_at(model.decoder_input(inputs))[0].numpy()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"images": ()}, "it has no picture"),
        ({"videos": ("a clip",)}, "it has a video, whose rows are not told apart"),
    ],
)
def test_a_sample_without_pictures_alone_is_left_out(changed, reason):
    model, builder = loaded("llava")
    asked = sample()
    inputs = inputs_for(model.model, builder.build([asked]))
    seen = observer(model)(inputs, [replace(asked, **changed)])
    assert seen.left_out == reason
    with pytest.raises(NormprobeError, match=f"no sample could be followed; a: {reason}"):
        tables(rows(seen, ["a"]).assign(image_hash="a"))


@pytest.mark.parametrize("model_type", LAYOUTS)
def test_norms_at_every_stage_against_own_hooks(model_type):
    model, inputs, seen = followed(model_type)
    assert not seen.left_out
    blocks = list(blocks_of(model.parts.vision_encoder, model.parts.projector).module)
    owners, groups = LAYOUTS[model_type], groups_of(model, inputs)
    visual = groups == TOKEN_GROUPS.index(VISUAL)
    assert owners.max() + 1 == visual.sum()
    assert max(seen.before.tower) == (2 if "llava" in model_type else len(blocks))
    for number, state in enumerate(states_of(model, inputs, blocks), start=1):
        if number in seen.before.tower:
            norms = np.sqrt((state**2).sum(-1))
            expected = [norms[owners == token].max() for token in range(visual.sum())]
            np.testing.assert_allclose(seen.before.tower[number], expected, rtol=1e-5)
    for number, state in enumerate(states_of(model, inputs, model.decoder_layers), start=1):
        norms = np.sqrt((state**2).sum(-1))
        np.testing.assert_allclose(seen.norms[number], norms[visual], rtol=1e-5)
        assert seen.text[number] == pytest.approx(
            norms[groups == TOKEN_GROUPS.index(TEXT)].mean(), rel=1e-5
        )


@pytest.mark.parametrize("model_type", ["llava", "aya_vision", "idefics3", "llava_next"])
def test_what_tokens_receive_against_eager_weights_and_values(model_type):
    model, inputs, seen = followed(model_type)
    groups = groups_of(model, inputs)
    visual = groups == TOKEN_GROUPS.index(VISUAL)
    text = np.flatnonzero(groups == TOKEN_GROUPS.index(TEXT))
    behind = text[text > np.flatnonzero(visual)[-1]]
    projections = [layer.self_attn.v_proj for layer in model.decoder_layers]
    values = states_of(model, inputs, projections)
    for layer, weights in enumerate(eager_weights(model.model, inputs), start=1):
        given = weights[:, behind]
        expected = given.mean((0, 1))[visual]
        np.testing.assert_allclose(seen.attention[layer], expected, rtol=1e-4, atol=1e-8)
        heads = values[layer - 1].reshape(
            len(groups), -1, model.decoder_layers[0].self_attn.head_dim
        )
        norms = np.sqrt((heads**2).sum(-1)).T.repeat(len(weights) // heads.shape[1], axis=0)
        added = (given.sum(1) * norms).sum(0)
        np.testing.assert_allclose(seen.values[layer], added[visual] / added.sum(), rtol=1e-4)


@pytest.mark.parametrize("model_type", ["llava", "lighton_ocr", "aya_vision", "llava_next"])
def test_a_picture_of_which_one_quarter_is_changed(model_type):
    """Rows of the tower that other pixels move most belong to the tokens that they move most."""
    model, builder = loaded(model_type)
    asked = sample()
    picture = asked.images[0].copy()
    quarter = picture.crop((0, 0, SIZE[0] // 2, SIZE[1] // 2))
    picture.paste(ImageOps.invert(quarter), (0, 0))
    both = [
        inputs_for(model.model, builder.build([replace(asked, images=(each,))]))
        for each in (asked.images[0], picture)
    ]
    place = max(followed(model_type)[2].before.tower) - 1
    block = list(blocks_of(model.parts.vision_encoder, model.parts.projector).module)[place]
    before, after = (states_of(model, inputs, [block])[0] for inputs in both)
    moved = np.sqrt(((before - after) ** 2).sum(-1))
    visual = groups_of(model, both[0]) == TOKEN_GROUPS.index(VISUAL)
    entered = [model.decoder_input(inputs)[0].double().numpy()[visual] for inputs in both]
    reacted = np.sqrt(((entered[0] - entered[1]) ** 2).sum(-1))
    owners = LAYOUTS[model_type]
    joined = np.array([moved[owners == token].max() for token in range(visual.sum())])
    assert spearmanr(joined, reacted).statistic > 0.6


@pytest.mark.parametrize("model_type", ["idefics2", "blip-2"])
def test_what_a_resampler_mixes_is_refused(model_type):
    model, builder = loaded(model_type)
    inputs = inputs_for(model.model, builder.build([sample()]))
    seen = observer(model)(inputs, [sample()])
    assert "mixes rows of the tower" in seen.left_out
    with pytest.raises(NormprobeError, match="no sample could be followed; a: its projector mixes"):
        tables(rows(seen, ["a"]).assign(image_hash="a"))


def test_weights_ask_for_gradients_as_before_and_have_none():
    model, _, _ = followed("llava")
    assert all(each.requires_grad and each.grad is None for each in model.model.parameters())


def made(attended, seed, images=24, tokens=64, layers=3):
    """Pictures with one register each; attention follows it, or follows nothing."""
    random, found = np.random.default_rng(seed), []
    for number in range(images):
        loud = random.lognormal(0, 0.2, tokens)
        register = random.integers(tokens)
        loud[register] = 20.0
        slope = np.linspace(0.5, 2, tokens)  # the last places get more, loud or not
        attention = {}
        for layer in range(1, layers + 1):
            attention[layer] = slope * random.lognormal(0, 0.3, tokens)
            if attended:
                attention[layer][register] = 50 * attention[layer].sum()
            attention[layer] /= 2 * attention[layer].sum()
        norms = {layer: random.lognormal(0, 0.2, tokens) for layer in range(layers + 1)}
        text = dict.fromkeys(norms, 1.0)
        seen = FollowedTokens(
            BeforeDecoder({0: loud, 1: loud}, loud), norms, text, attention, attention
        )
        found.append(rows(seen, [f"{number}"]).assign(image_hash=f"{number}"))
    return pd.concat(found, ignore_index=True)


def said(made_rows):
    run = RunStore({"command": "follow"})
    for name, table in tables(made_rows).items():
        run.write_table(name, table)
    return str(verdict(run))


def test_a_register_that_receives_all_attention_is_said():
    told = said(made(True, 0))
    assert "The loudest 1 % of visual tokens behind the tower get" in told
    assert "more attention than quiet tokens beside them in layers 1-3" in told


def test_ratios_are_those_of_means_over_samples():
    made_rows = made(True, 1, images=5)
    table = tables(made_rows)["follow"]
    loud = made_rows[(made_rows["group"] == "loudest_5") & (made_rows["layer"] == 2)]
    loud = loud[loud["stage"] == "decoder"]
    for others, column in (("rest", "rest_attention"), ("quiet", "twin_attention")):
        found = select(table, f"attention_to_{others}", stage="decoder", layer=2, group="loudest_5")
        expected = loud["attention"].mean() / loud[column].mean()
        assert found["mean"].item() == pytest.approx(expected)
        assert found["samples"].item() == 5
        assert found["band_low"].item() <= found["low"].item() < expected


def test_rank_correlations_need_no_scipy(monkeypatch):
    """Which normprobe does not depend on."""
    random = np.random.default_rng(0)
    first, second = random.integers(0, 5, (2, 30)).astype(float)  # with ties
    expected = spearmanr(first, second).statistic
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    assert rank_correlation_of(first, second) == pytest.approx(expected)


def test_rank_correlations_are_spearmans():
    made_rows = made(False, 2, images=1)
    _, _, seen = followed("llava")
    found = rows(seen, ["a"])
    visual = found[(found["group"] == VISUAL) & (found["stage"] == "decoder")].set_index("layer")
    loud = seen.before.read
    expected = {
        "tower_norm": (seen.norms[2], loud),
        "projector_norm": (seen.norms[2], seen.before.projector),
        "input_norm": (seen.norms[2], seen.norms[0]),
        "attention_tower_norm": (seen.attention[2], loud),
        "attention_norm": (seen.attention[2], seen.norms[1]),
        "value_tower_norm": (seen.values[2], loud),
    }
    for name, pair in expected.items():
        assert visual.loc[2, name] == pytest.approx(spearmanr(*pair).statistic)
    assert not tables(made_rows)["follow_ranks"].empty


def test_brackets_of_a_layer_that_was_picked_are_those_of_all_layers():
    found = tables(made(False, 3))
    ranks = select(found["follow_ranks"], "attention_tower_norm", stage="decoder")
    most = ranks.loc[ranks["mean"].abs().idxmax()]
    told = "[{band_low:.2f}, {band_high:.2f}]".format(**most)
    assert f"layer {most['layer']}: {most['mean'] + 0.0:.2f} {told}" in said(made(False, 3))
    assert most["band_low"] < most["low"] and most["high"] < most["band_high"]


@pytest.mark.slow
def test_where_attention_follows_nothing_no_layer_is_called_apart():
    """One of six layers by its own interval: in 11 of 100."""
    apart = 0
    for seed in range(200, 240):
        found = tables(made(False, seed, layers=6))["follow_ranks"]
        ranks = select(found, "attention_tower_norm", stage="decoder").query("layer > 0")
        apart += ((ranks["band_low"] > 0) | (ranks["band_high"] < 0)).any()
    assert apart <= 2  # 5 % of 40


@pytest.mark.slow
def test_registers_that_nobody_attends_to_are_not_named():
    named = sum("of visual tokens behind" in said(made(False, seed)) for seed in range(100, 140))
    assert named <= 2  # 5 % of 40


def test_all_stages_are_on_one_axis():
    axes = draw_follow("", tables(made(True, 0, images=6))["follow"]).axes[-1]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "1", "P", *"0123"]
