"""Interventions themselves: what scale and gain have to do with each other, and what stays."""

import random
from contextlib import nullcontext
from unittest.mock import patch

import numpy as np
import pytest
import torch
from support.decoder_by_hand import (
    NORMS_BEHIND,
    OPENED_BY_NORMS,
    batch_of,
    decoder_of,
    linear_by_hand,
    rounded_by_hand,
)
from support.hooks import hooks_of
from support.processors import make_processor
from support.tiny.gemmas import GEMMAS
from support.tiny_inputs import SPECIAL_IDS, tiny_samples
from support.tiny_models import IMAGE, tiny_model

from normprobe import NormprobeError, Probe
from normprobe.hooks import after_call, attached
from normprobe.model.intervention_plan import DOSES, Intervention
from normprobe.model.interventions import (
    TokenRows,
    called_as_loud_as_text,
    fake_quantised,
    intervened,
    quantised_inputs,
)


def rows_of(batch) -> TokenRows:
    seeds = list(range(len(batch.answers)))
    return TokenRows(batch.rows("visual"), batch.rows("text"), seeds)


@torch.no_grad()
def logits(batch, name="untouched", dose=1.0):
    layers = list(decoder_of(batch.model).layers)
    with intervened(layers, Intervention(name, dose), rows_of(batch)):
        made = batch.model(**batch.inputs, use_cache=False).logits
    return made[~batch.rows("visual") & (batch.inputs["attention_mask"] > 0)]


# --- scale s is gain 1 / s, where a norm opens each branch ----------------------------------------


@pytest.mark.parametrize("name", OPENED_BY_NORMS)
@pytest.mark.parametrize("scale", [0.25, 3.0])
def test_where_norms_open_branches_scale_is_the_inverse_of_gain(name, scale):
    """To rounding, with eps = 0: whether another norm ends the branch or not."""
    batch = batch_of(name, 1, eps=0.0)
    scaled, gained = logits(batch, "scale", scale), logits(batch, "gain", 1 / scale)
    moved = (scaled - logits(batch)).abs().max()
    assert moved > 1e-4
    assert (scaled - gained).abs().max() < 1e-9 * moved


@pytest.mark.parametrize("name", NORMS_BEHIND)
def test_where_norms_stand_behind_branches_alone_it_is_not(name):
    batch = batch_of(name, 1, eps=0.0)
    scaled, gained = logits(batch, "scale", 0.25), logits(batch, "gain", 4.0)
    assert (scaled - gained).abs().max() > 0.1 * (scaled - logits(batch)).abs().max()


@torch.no_grad()
def test_a_layer_that_is_called_beside_leaves_later_ones_their_keys_and_values():
    """Gemma 4's last layers read what one before them has left."""
    text = GEMMAS["gemma4"].config["text_config"] | {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "per_layer_config": {1: {"head_dim": 32}, 3: {"head_dim": 32}},
    }
    model = tiny_model("gemma4", text_config=text)
    (inputs,) = tiny_samples(tiny_model("gemma4"), 1)
    visual = inputs["input_ids"] == IMAGE
    rows = TokenRows(visual, ~visual, [0])
    layers = list(model.model.language_model.layers)
    expected = model(**inputs, use_cache=False).logits

    def call_again(layer, args, kwargs, _):
        called_as_loud_as_text(layer, args, kwargs, rows)

    with attached(*(after_call(layer, call_again) for layer in layers)):
        made = model(**inputs, use_cache=False).logits
    assert layers[-1].self_attn.is_kv_shared_layer
    assert torch.equal(made, expected)


# --- linear layers that read rounded inputs -------------------------------------------------------

ROUNDED = ("int8-tensor", "int8-token", "fp8-tensor", "fp8-token")


@pytest.mark.parametrize("how", ROUNDED)
def test_numbers_are_rounded_as_by_hand(how):
    drawn = np.random.default_rng(0).standard_normal((3, 7, 40)) ** 3
    drawn[0, 0] = 0.0
    drawn[1, :, :8] = 127 * 2.0 ** np.arange(8)  # ties, and numbers below the smallest
    made = fake_quantised(torch.from_numpy(drawn), how).numpy()
    assert np.abs(made - rounded_by_hand(drawn, how)).max() < 1e-12 * np.abs(drawn).max()
    assert (made[0, 0] == 0).all()
    assert (made != drawn).any()
    half = torch.from_numpy(drawn).bfloat16()
    assert fake_quantised(half, how).dtype is torch.bfloat16
    assert fake_quantised(half[:0], how).shape == (0, 7, 40)


@pytest.mark.parametrize("how", ROUNDED)
@pytest.mark.parametrize(
    "name", ["llava", "qwen2_5_vl", "paligemma", "idefics3", "gemma3", "olmo2"]
)
@torch.no_grad()
def test_a_forward_with_rounded_inputs_is_the_one_by_hand(name, how):
    """Logits, and squares of what each linear layer reads and of its error."""
    batch = batch_of(name, 1)
    layers = list(decoder_of(batch.model).layers)
    before, untouched = state_of(batch.model), logits(batch)
    for rows in (None, batch.rows("visual")[0], ~batch.rows("visual")[0]):
        with quantised_inputs(layers, how, rows) as read:
            made = logits(batch)
        with linear_by_hand(layers, how, rows) as seen:
            expected = logits(batch)
        assert (made - expected).abs().max() < 1e-6 * expected.abs().max()
        assert (made - untouched).abs().max() > 1e-5
        assert read.keys() == seen.keys()
        for module, calls in seen.items():
            x, rounded = calls[-1]
            squares = [(x**2).sum(-1).ravel(), ((rounded - x) ** 2).sum(-1).ravel()]
            np.testing.assert_allclose(read[module].numpy(), squares, rtol=1e-6, atol=1e-12)
    assert state_of(batch.model) == before
    assert torch.equal(logits(batch), untouched)


def test_no_input_stays_rounded_where_a_forward_is_stopped():
    batch = batch_of("llava")
    layers = list(decoder_of(batch.model).layers)
    before = state_of(batch.model)
    with (
        pytest.raises(Stopped),
        patch.object(layers[1], "forward", side_effect=Stopped),
        quantised_inputs(layers, "int8-token"),
    ):
        batch.model(**batch.inputs)
    assert state_of(batch.model) == before


# --- the model is left as it was -----------------------------------------------------------------


def state_of(model) -> dict[str, object]:
    return {
        "hooks": hooks_of(model),
        "forwards": {n: m.forward for n, m in model.named_modules() if "forward" in vars(m)},
        "modes": [module.training for module in model.modules()],
        "weights": [(weight.data_ptr(), weight._version) for weight in model.parameters()],
        "torch": torch.get_rng_state().tolist(),
        "random": (random.getstate(), np.random.get_state()[1].tolist()),
    }


class Stopped(BaseException):
    """As Ctrl-C, but of nobody else."""


@pytest.mark.parametrize("name", DOSES)
def test_nothing_stays_where_a_forward_is_stopped(name):
    batch = batch_of("llava")
    layers = list(decoder_of(batch.model).layers)
    expected, before = logits(batch), state_of(batch.model)
    done = Intervention(name, 0.5, layer=1)
    with (
        pytest.raises(Stopped),
        patch.object(layers[1], "forward", side_effect=Stopped),
        intervened(layers, done, rows_of(batch), batch.entered + 1.0),
    ):
        batch.model(**batch.inputs)
    assert state_of(batch.model) == before
    assert torch.equal(logits(batch), expected)


@pytest.mark.parametrize("broken", [None, RuntimeError("no"), KeyboardInterrupt()])
def test_the_model_is_as_it_was_after_a_run(broken):
    """Of every intervention; also where a forward fails, or somebody stops it."""
    model = tiny_model("llava").train()
    probe = Probe(model, make_processor("llava"), special_token_ids=SPECIAL_IDS)
    asked = {"do": tuple(DOSES), "limit": 1}
    probe.cause(**asked)  # transformers adds hooks of its own in a first forward
    layer, calls = decoder_of(model).layers[1], []
    before, forward = state_of(model), layer.forward

    def failing(*args, **kwargs):
        calls.append(1)
        if broken is not None and len(calls) == 8:
            raise broken
        return forward(*args, **kwargs)

    stopped = pytest.raises((type(broken), NormprobeError)) if broken else nullcontext()
    with patch.object(layer, "forward", failing), stopped:
        probe.cause(**asked)
    assert len(calls) >= 8
    assert state_of(model) == before
