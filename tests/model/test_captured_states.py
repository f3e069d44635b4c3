"""States that are taken without hooks, on a made model whose states are known."""

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from support.tiny_inputs import tiny_inputs
from support.tiny_models import tiny_model
from torch import Tensor, nn

from normprobe import find_parts
from normprobe.model.captured_states import (
    ROWS,
    TOKENS,
    captured_calls,
    captured_states,
    in_doubt,
    largest_difference,
)


class Doubles(nn.Module):
    """Doubles what it is given, in place."""

    def forward(self, hidden_states: Tensor, scale: float = 2.0) -> tuple[Tensor]:
        return (hidden_states.mul_(scale),)


class Made(nn.Module):
    """Two layers, called by keyword as some models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Doubles(), Doubles()])

    def forward(self, x: Tensor, output_hidden_states: bool = False) -> Any:
        told = [x.clone()]
        for layer in self.layers:
            (x,) = layer(scale=2.0, hidden_states=x)
            told.append(x.clone())
        return SimpleNamespace(hidden_states=tuple(told) if output_hidden_states else None)


def test_each_layer_gives_what_it_took_and_returned() -> None:
    model, x = Made(), torch.ones(1, 3, 4)
    captured = captured_states(model, list(model.layers), {"x": x})
    assert [float(state.mean()) for state in captured.entered] == [1.0, 2.0]
    assert [float(state.mean()) for state in captured.left] == [2.0, 4.0]
    assert captured.told is not None
    assert [float(state.mean()) for state in captured.told] == [1.0, 2.0, 4.0]
    assert torch.equal(x, torch.ones(1, 3, 4)), "the inputs stay as they are"


def test_the_model_stops_after_the_last_module_and_none_runs_behind() -> None:
    model = Made()
    first, second = model.layers
    modules = {"first": first, "second": second}
    calls = captured_calls(model, modules, {"x": torch.ones(1, 3, 4)}, last=first)
    ((entered, left),) = calls["first"]
    assert (float(entered.mean()), float(left.mean())) == (1.0, 2.0)
    assert calls["second"] == []
    assert not any("forward" in vars(module) for module in model.modules())


def test_states_in_lists_and_model_outputs() -> None:
    class Reads(nn.Module):
        def forward(self, images: list[Tensor]) -> dict[str, Tensor]:
            states = torch.cat([image * 2 for image in images])
            return {"pooled": states[:1], "last_hidden_state": states}

    images = [torch.ones(2, 4), torch.ones(3, 4)]
    model = Reads()
    calls = captured_calls(model, {"all": model}, {"images": images}, last=None)
    ((entered, left),) = calls["all"]
    assert entered.shape == left.shape == (5, 4)
    assert float(left.mean()) == 2.0


def test_forwards_are_put_back_also_after_a_failure() -> None:
    model = Made()
    kept = model.layers[0].forward = Doubles().forward  # as accelerate does
    with pytest.raises(AttributeError):
        captured_states(model, list(model.layers), {"x": None})
    assert vars(model.layers[0])["forward"] is kept
    assert "forward" not in vars(model.layers[1])


def test_what_transformers_hooks_in_to_return_states_does_not_stay() -> None:
    """Hooked twice, a tower inside the model would hand other states to code that counts them."""
    model = tiny_model("llava")
    layers, inputs = list(find_parts(model).decoder_layers.module), tiny_inputs(model)
    model(**inputs)
    before = {name: len(module._forward_hooks) for name, module in model.named_modules()}
    assert captured_states(model, layers, inputs).told is not None
    after = {name: len(module._forward_hooks) for name, module in model.named_modules()}
    assert after == before


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("measured", "recomputed", "relative", "expected"),
    [
        ({"a": 1.1, "b": 20.0}, {"a": 1.0, "b": 20.5}, False, 0.5),
        ({"a": 1.1, "b": 20.0}, {"b": 20.5, "a": 1.0}, True, 0.1),
        ({"a": 0.25}, {"a": 0.0}, True, 0.25),
        ({"a": -1.1}, {"a": -1.0}, True, 0.1),
        ({"a": 1.0, "b": 9.0}, {"a": 1.0}, True, 0.0),
        ({"a": 1.0, "b": 9.0}, {"a": 1.0, "b": NAN}, True, 0.0),
        ({"a": 1.0}, {"a": 1.0, "b": 1.0}, True, INF),
        ({"a": NAN}, {"a": 1.0}, True, INF),
        ({"a": INF}, {"a": 1.0}, False, INF),
    ],
)
def test_largest_difference(
    measured: dict[str, float], recomputed: dict[str, float], relative: bool, expected: float
) -> None:
    found = largest_difference(pd.Series(measured), pd.Series(recomputed), relative=relative)
    assert found == pytest.approx(expected)


def test_rounding_is_no_doubt_and_a_count_is() -> None:
    found = {"norm": 1e-3, "cosine": 1e-9, TOKENS: 1.0, ROWS: 0.0, "angle": INF, "gone": "why"}
    assert in_doubt(found, torch.float32) == ["norm", TOKENS, "angle"]
    assert in_doubt(found, torch.float64) == ["norm", TOKENS, "angle"]
    assert in_doubt(found, torch.bfloat16) == [TOKENS, "angle"]
    assert in_doubt({"norm": NAN}, torch.bfloat16) == ["norm"]
