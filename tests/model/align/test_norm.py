"""The compensated LayerNorm against Eq. 22-26, and what inserting it does to a model."""

import copy
import math
from collections import namedtuple

import accelerate
import numpy as np
import pytest
import torch
from support.cases import model_of
from support.hooks import hooks_of
from support.tiny_inputs import tiny_inputs
from support.tiny_models import tiny_model
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPooling

from normprobe import GlobalWeightCompensatedLayerNorm, NormprobeError, find_parts, remove_norm
from normprobe.model.align.norm import attach_norm, insert_norm, inserted_norm
from normprobe.model.find.parts import Part

HIDDEN = 24


def weighted_norm(gain, *, compensate=True, dtype=torch.float64, **arguments):
    norm = GlobalWeightCompensatedLayerNorm(
        HIDDEN, compensate=compensate, dtype=dtype, **arguments
    ).train()
    with torch.no_grad():
        norm.weight.copy_(torch.as_tensor(gain))
        norm.bias.copy_(torch.linspace(-0.1, 0.1, HIDDEN))
    return norm


def rows(seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 5, HIDDEN, dtype=dtype, generator=generator) * 3 + 1


def gains(seed=1):
    generator = torch.Generator().manual_seed(seed)
    return 0.02 * torch.randn(HIDDEN, dtype=torch.float64, generator=generator)


def gradients(norm, x, upstream):
    """Of the input, gain and bias."""
    norm.zero_grad()
    x = x.clone().requires_grad_()
    norm(x).backward(upstream)
    return x.grad, norm.weight.grad.clone(), norm.bias.grad.clone()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("training", [True, False])
def test_the_forward_is_that_of_layer_norm_bit_for_bit(dtype, training):
    norm = weighted_norm(gains(), dtype=dtype).train(training)
    plain = nn.LayerNorm(HIDDEN, dtype=dtype)
    plain.load_state_dict(norm.state_dict())
    assert torch.equal(norm(rows(dtype=dtype)), plain(rows(dtype=dtype)))


def test_the_state_dict_goes_both_ways():
    norm, plain = GlobalWeightCompensatedLayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
    norm.load_state_dict(plain.state_dict(), strict=True)
    plain.load_state_dict(norm.state_dict(), strict=True)


def test_gradcheck_without_compensation():
    norm = weighted_norm(gains(), compensate=False)
    inputs = (rows().requires_grad_(), norm.weight, norm.bias)
    assert torch.autograd.gradcheck(
        lambda x, weight, bias: torch.func.functional_call(
            norm, {"weight": weight, "bias": bias}, (x,)
        ),
        inputs,
    )


@pytest.mark.parametrize("gain", [gains(), torch.full((HIDDEN,), 0.013), 1e-12 * gains()])
def test_the_backward_is_that_of_the_equations(gain):
    norm, x, upstream = weighted_norm(gain), rows(), rows(seed=2)
    x_grad, gain_grad, bias_grad = (g.numpy() for g in gradients(norm, x, upstream))

    x, upstream, gain = x.numpy(), upstream.numpy(), norm.weight.detach().numpy()
    deviation = np.sqrt(x.var(-1, keepdims=True) + norm.eps)  # Eq. 22
    normalised = (x - x.mean(-1, keepdims=True)) / deviation  # Eq. 23
    clamped = max(np.abs(gain).mean(), 1e-8)  # Eq. 24, 25
    at_normalised = upstream * gain / clamped  # Eq. 26
    mean = at_normalised.mean(-1, keepdims=True)
    along = (at_normalised * normalised).mean(-1, keepdims=True)
    expected = (at_normalised - mean - normalised * along) / deviation
    np.testing.assert_allclose(x_grad, expected, rtol=1e-9, atol=1e-12 * np.abs(expected).max())
    np.testing.assert_allclose(gain_grad, (upstream * normalised).sum((0, 1)), rtol=1e-12)
    np.testing.assert_allclose(bias_grad, upstream.sum((0, 1)), rtol=1e-12)


def test_the_ratio_of_gradients_is_exact_everywhere_upstream():
    """With a mean |gain| of 1/64 the factor is a power of two, and nothing is rounded."""
    signs = torch.where(torch.arange(HIDDEN) % 3 == 0, -1.0, 1.0)
    gain = signs / 64 + torch.where(torch.arange(HIDDEN) % 2 == 0, 1.0, -1.0) * signs / 256
    assert gain.abs().mean() == 1 / 64
    projector = nn.Sequential(nn.Linear(7, 11), nn.GELU(), nn.Linear(11, HIDDEN)).double()
    pixels = torch.randn(2, 5, 7, dtype=torch.float64, requires_grad=True)
    seen = {}
    for compensate in (False, True):
        norm = weighted_norm(gain, compensate=compensate)
        projector.zero_grad()
        pixels.grad = None
        (norm(projector(pixels)) ** 2).sum().backward()
        upstream = [pixels.grad, *(w.grad for w in projector.parameters())]
        seen[compensate] = [[g.clone() for g in upstream], [norm.weight.grad, norm.bias.grad]]
    for plain, compensated in zip(seen[False][0], seen[True][0], strict=True):
        assert plain.abs().max() > 0
        assert torch.equal(64 * plain, compensated)
    for plain, compensated in zip(seen[False][1], seen[True][1], strict=True):
        assert torch.equal(plain, compensated)


def test_no_compensation_in_evaluation_mode():
    plain = gradients(weighted_norm(gains(), compensate=False), rows(), rows(seed=2))
    evaluated = gradients(weighted_norm(gains()).eval(), rows(), rows(seed=2))
    assert all(torch.equal(a, b) for a, b in zip(plain, evaluated, strict=True))


def test_the_clamp_bounds_the_factor():
    plain = gradients(weighted_norm(0.5, compensate=False), rows(), rows(seed=2))
    clamped = gradients(weighted_norm(0.5, min_gain=2.0), rows(), rows(seed=2))
    assert torch.equal(plain[0] / 2, clamped[0])


def test_without_a_gain_there_is_nothing_to_compensate():
    norm = GlobalWeightCompensatedLayerNorm(HIDDEN, elementwise_affine=False).train()
    plain = nn.LayerNorm(HIDDEN, elementwise_affine=False)
    assert torch.equal(norm(rows().float()), plain(rows().float()))


def test_autocast_gives_what_layer_norm_gives():
    norm = weighted_norm(2.0**-6, dtype=torch.float32)
    plain = weighted_norm(2.0**-6, dtype=torch.float32, compensate=False)
    linear = nn.Linear(HIDDEN, HIDDEN)
    outputs, upstream = [], []
    for layer in (norm, plain):
        linear.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            out = layer(linear(rows(dtype=torch.float32)))
        out.float().pow(2).sum().backward()
        outputs.append(out)
        upstream.append(linear.weight.grad.clone())
    assert torch.equal(*outputs)
    assert outputs[0].dtype == outputs[1].dtype
    torch.testing.assert_close(upstream[0], 64 * upstream[1], rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_removing_restores_the_model_bit_for_bit(dtype):
    model = copy.deepcopy(model_of("llava")).to(dtype)
    inputs = {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in tiny_inputs(model).items()
    }
    keys, hooks = set(model.state_dict()), hooks_of(model)
    config = model.config.to_dict()
    with torch.no_grad():
        before = model(**inputs).logits
        norm = insert_norm(model, find_parts(model), 0.1)
        aligned = model(**inputs).logits
        assert norm.weight.dtype == dtype
        added = {"alignment_norm.weight", "alignment_norm.bias"}
        assert set(model.state_dict()) == keys | added  # no existing key is renamed
        remove_norm(model)
        after = model(**inputs).logits
    assert not torch.equal(before, aligned)
    assert torch.equal(before, after)
    assert set(model.state_dict()) == keys
    assert hooks_of(model) == hooks
    assert model.config.to_dict() == config


def test_inserting_twice_leaves_one_layer():
    model = copy.deepcopy(model_of("llava"))
    inputs = tiny_inputs(model)
    parts = find_parts(model)
    insert_norm(model, parts, 0.3)
    once = insert_norm(model, parts, 0.1)
    with torch.no_grad():
        first = model(**inputs).logits
        again = insert_norm(model, parts, 0.1)
        second = model(**inputs).logits
    assert inserted_norm(model) is again is not once
    assert torch.equal(first, second)
    assert sum(isinstance(m, GlobalWeightCompensatedLayerNorm) for m in model.modules()) == 1


def test_removing_nothing_is_allowed():
    model = model_of("llava")
    remove_norm(model)
    assert inserted_norm(model) is None


def test_the_parts_are_found_as_before():
    model = copy.deepcopy(model_of("llava"))
    names = {role: part.name for role, part in find_parts(model)}
    insert_norm(model, find_parts(model), 0.1)
    assert {role: part.name for role, part in find_parts(model)} == names


def test_a_copy_of_the_model_normalises_with_its_own_layer():
    model = copy.deepcopy(model_of("llava"))
    inputs = tiny_inputs(model)
    insert_norm(model, find_parts(model), 0.1)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        before = model(**inputs).logits
        twin.alignment_norm.weight.mul_(3)
        assert torch.equal(model(**inputs).logits, before)
        assert not torch.equal(twin(**inputs).logits, before)
        remove_norm(twin)
        assert torch.equal(model(**inputs).logits, before)


def test_the_norm_may_stay_in_float32_inside_a_bfloat16_model():
    """Steps of a gain of 0.02 are smaller than bfloat16 resolves."""
    model = copy.deepcopy(model_of("llava")).to(torch.bfloat16)
    inputs = tiny_inputs(model) | {"pixel_values": tiny_inputs(model)["pixel_values"].bfloat16()}
    norm = insert_norm(model, find_parts(model), 0.02)
    with torch.no_grad():
        coarse = model(**inputs).logits
        norm.float()
        fine = model(**inputs).logits
    assert fine.dtype == coarse.dtype == torch.bfloat16
    torch.testing.assert_close(fine, coarse, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("whole", [False, True])
def test_an_offloaded_projector_gets_its_norm_where_it_runs(whole):
    """Of a whole model that is offloaded, the modules inside the projector have the hooks."""
    model = copy.deepcopy(model_of("llava"))
    inputs = tiny_inputs(model)
    parts = find_parts(model)
    insert_norm(model, parts, 0.1)
    with torch.no_grad():
        expected = model(**inputs).logits
        remove_norm(model)
        offloaded = model if whole else parts.projector.module
        accelerate.cpu_offload(offloaded, execution_device=torch.device("cpu"))
        assert all(w.is_meta for w in parts.projector.module.parameters())
        norm = insert_norm(model, parts, 0.1)
        assert norm.weight.device == torch.device("cpu")
        assert torch.equal(model(**inputs).logits, expected)


Features = namedtuple("Features", ["grid", "rows"])


class Projector(nn.Module):
    """Wraps what a linear layer gives in the structures that projectors return."""

    def __init__(self, wrap):
        super().__init__()
        self.linear = nn.Linear(4, HIDDEN)
        self.wrap = wrap

    def forward(self, x):
        return self.wrap(self.linear(x))


@pytest.mark.parametrize(
    ("wrap", "unwrap"),
    [
        (lambda y: y, lambda out: out),
        (lambda y: (y, 7), lambda out: out[0]),
        (lambda y: (None, torch.arange(3), (y,)), lambda out: out[2][0]),
        (lambda y: Features(7, y), lambda out: out.rows),
        (lambda y: [y[0], y[1, :2]], lambda out: torch.cat(out)),
        (
            lambda y: BaseModelOutputWithPooling(last_hidden_state=y),
            lambda out: out.last_hidden_state,
        ),
        (
            lambda y: y.transpose(-1, -2).unflatten(-1, (1, 5)),
            lambda out: out.flatten(-2).transpose(-1, -2),
        ),
    ],
    ids=["tensor", "tuple", "nested", "named tuple", "list of images", "model output", "map"],
)
def test_whatever_structure_the_projector_returns(wrap, unwrap):
    model = nn.Module()
    model.projector = Projector(wrap)
    x = torch.randn(2, 5, 4)
    with torch.no_grad():
        before = model.projector(x)
        expected = nn.functional.layer_norm(unwrap(before), (HIDDEN,))
        attach_norm(model, Part("projector", model.projector), HIDDEN, compensate=True)
        after = model.projector(x)
    assert type(after) is type(before)
    torch.testing.assert_close(unwrap(after), expected)


def test_a_projector_of_another_width_is_refused_with_its_shape():
    model = copy.deepcopy(model_of("llava"))
    tower = find_parts(model).vision_encoder
    attach_norm(model, Part(tower.name, tower.module), 17, compensate=True)
    with pytest.raises(NormprobeError, match="reads rows of 17"):
        model(**tiny_inputs(model))


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("chameleon", "image tokenizer"),
        ("mllama", "text attends to visual states"),
        ("ovis2", "discrete visual table"),
        ("llama", "no projector"),
        ("clip", "no text embedding"),
    ],
)
def test_models_that_cannot_be_aligned_say_why(model_type, reason):
    model = tiny_model(model_type)
    with pytest.raises(NormprobeError, match=reason):
        insert_norm(model, find_parts(model), 0.1)
    assert inserted_norm(model) is None


@pytest.mark.parametrize("gain", [0.0, -1.0, math.nan, math.inf])
def test_a_gain_that_is_no_size_is_refused(gain):
    model = model_of("llava")
    with pytest.raises(NormprobeError, match="positive number"):
        insert_norm(model, find_parts(model), gain)
