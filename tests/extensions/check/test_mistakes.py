"""What was saved in place of a model's states is named, and nothing is where all is right."""

from collections.abc import Callable, Mapping

import pytest
import torch
from support.tiny_inputs import SPECIAL_IDS, tiny_samples
from support.tiny_models import tiny_model
from torch import Tensor

from normprobe import find_parts
from normprobe.extensions.check.mistakes import Own, mistake, own_states
from normprobe.inputs.on_device import inputs_for
from normprobe.model.measured_model import MeasuredModel

States = dict[int, Tensor]
TYPES = ["llava", *(pytest.param(n, marks=pytest.mark.slow) for n in ("qwen2_vl", "paligemma"))]


def known(model_type: str) -> list[Own]:
    model = tiny_model(model_type)
    found = MeasuredModel(model, find_parts(model), SPECIAL_IDS)
    return [own_states(found, inputs_for(model, sample)) for sample in tiny_samples(model, 2)]


def one_later(own: Own) -> States:
    return {n: own.states[n - 1] for n in own.states if n}


def one_earlier(own: Own) -> States:
    return {n: own.states[n + 1] for n in own.states if n + 1 in own.states}


def without_stream(own: Own) -> States:
    return {n: own.states[n] - own.states[n - 1] for n in own.states if n}


def mlp_alone(own: Own) -> States:
    return {n: of["mlp"] for n, of in own.inside.items()}


def without_mlp(own: Own) -> States:
    return {n: own.states[n] - of["mlp"] for n, of in own.inside.items()}


def zeros(own: Own) -> States:
    return {n: torch.zeros_like(state) for n, state in own.states.items()}


def padded(own: Own) -> States:
    def moved(state: Tensor) -> Tensor:
        return torch.cat([torch.zeros(3, state.shape[1]), state[:-3]])

    return {n: moved(state) for n, state in own.states.items()}


def normed_last(own: Own) -> States:
    (state,) = own.normed.values()
    return {**own.states, max(own.states): state}


def scaled(by: Callable[[int], float]) -> Callable[[Own], States]:
    return lambda own: {n: state * by(state.shape[1]) for n, state in own.states.items()}


MISTAKES: dict[str, tuple[Callable[[Own], States], str]] = {
    "one layer late": (one_later, "under its number stands what enters it"),
    "one layer early": (one_earlier, "stands what the layer after it returns"),
    "no stream": (without_stream, "The residual stream is left out"),
    "the MLP alone": (mlp_alone, "Each is what `mlp` of its layer returns"),
    "no MLP": (without_mlp, "What `mlp` of the layer returns is not added"),
    "the final norm": (normed_last, "The last one is what the final norm, `norm`, makes of it"),
    "zeros": (zeros, "All are zero"),
    "padding": (padded, "Each row stands 3 places later"),
    "scaled": (scaled(lambda size: 0.3), "All are 0.3 times those of the model."),
    "root": (scaled(lambda size: size**0.5), "(the square root of the hidden size, "),
    "one by root": (scaled(lambda size: size**-0.5), "(1 / the square root of it, "),
}


@pytest.mark.parametrize("model_type", TYPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(name: str, dtype: torch.dtype, model_type: str) -> None:
    own, _ = known(model_type)
    make, told = MISTAKES[name]
    saved = {n: state.to(dtype) for n, state in make(own).items()}
    assert told in mistake(saved, own, {}, 1e-4)


def test_a_little_error_between_layers_that_add_little_is_no_shift() -> None:
    """It is nearer to the layer before than to its own, and as far from both."""
    noise = torch.Generator().manual_seed(0)
    first, way = (torch.randn(8, 16, generator=noise) for _ in range(2))
    way *= first.norm() / way.norm()
    own = Own({n: first - 0.005 * n * way for n in range(6)}, {})
    saved = {n: state + 0.0215 * way for n, state in own.states.items()}
    assert mistake(saved, own, {}, 1e-4) == ""


def test_exchanged_samples_are_named() -> None:
    own, other = known("llava")
    rows = min(len(own.states[0]), len(other.states[0]))
    theirs = {n: state[:rows] for n, state in other.states.items()}
    ours = Own({n: state[:rows] for n, state in own.states.items()}, {})
    assert "They are the states of b" in mistake(theirs, ours, {"b": theirs}, 1e-4)


@pytest.mark.parametrize("model_type", TYPES)
def test_right_states_and_other_ones_have_no_name(model_type: str) -> None:
    own, _ = known(model_type)
    assert mistake(own.states, own, {}, 1e-4) == ""
    rounded = {n: state.bfloat16() for n, state in own.states.items()}
    assert mistake(rounded, own, {}, 1e-4) == ""
    noise = torch.Generator().manual_seed(0)
    others: Mapping[int, Tensor] = {
        n: torch.randn(state.shape, generator=noise) for n, state in own.states.items()
    }
    assert mistake(others, own, {}, 1e-4) == ""
