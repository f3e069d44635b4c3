"""Hooks leave nothing behind, whatever happens."""

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BackboneOutput

from normprobe.errors import NormprobeError
from normprobe.hooks import (
    accepted_inputs,
    arguments_of,
    attached,
    by_name,
    hidden_state_of,
    observing,
    on_call,
    on_input,
    on_output,
    path_to_state,
    unused_inputs,
)
from normprobe.hooks import run_until as run


class Layer(nn.Module):
    """Returns a tuple, as older decoder layers do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.ran = 0

    def forward(self, hidden_states: Tensor, mask: Tensor | None = None) -> tuple[Tensor, None]:
        self.ran += 1
        return self.linear(hidden_states), None


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.dropout = nn.Dropout(0.5)

    def forward(self, states: Tensor, use_cache: bool = True) -> Tensor:
        assert not use_cache
        for layer in self.layers:
            states, _ = layer(hidden_states=self.dropout(states))
        return states


@pytest.fixture
def stack() -> Stack:
    return Stack().train()


def hooks_of(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


INPUTS = {"states": torch.ones(1, 2, 4)}


def test_states_are_seen_on_both_sides(stack: Stack) -> None:
    seen: list[Tensor] = []
    layer = stack.layers[1]
    with observing(stack), attached(on_input(layer, seen.append), on_output(layer, seen.append)):
        run(stack, INPUTS)
        expected = layer.linear(seen[0])
    torch.testing.assert_close(seen[1], expected)
    assert not seen[1].requires_grad
    assert hooks_of(stack) == 0


def test_the_forward_stops_where_it_is_told(stack: Stack) -> None:
    with observing(stack):
        run(stack, INPUTS, entering=stack.layers[1])
        assert [layer.ran for layer in stack.layers] == [1, 0, 0]
        run(stack, INPUTS, leaving=stack.layers[1])
        assert [layer.ran for layer in stack.layers] == [2, 1, 0]
    assert hooks_of(stack) == 0


def test_a_model_that_writes_into_its_inputs_gets_copies() -> None:
    class Clamps(nn.Module):
        def forward(self, input_ids: Tensor, data: dict[str, Any]) -> Tensor:
            data["images"][0].zero_()
            data.clear()
            return input_ids.clamp_(0)

    inputs = {"input_ids": torch.tensor([[-1, 3]]), "data": {"images": [torch.ones(2)]}}
    for _ in range(2):
        run(Clamps(), inputs)
        assert inputs["input_ids"].tolist() == [[-1, 3]]
        assert inputs["data"]["images"][0].tolist() == [1, 1]


@pytest.mark.parametrize(("widths", "shape"), [((6, 6), (24, 6)), ((6, 8), (3, 4, 6))])
def test_a_list_of_rows_or_of_pictures_of_different_widths(
    widths: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    class Tower(nn.Module):
        def forward(self, images: list[Tensor]) -> Tensor:
            return torch.stack([image.mean()[None] for image in images])

    tower, seen = Tower(), []
    with attached(on_call(tower, lambda entered, *_: seen.append(entered.shape))):
        tower([torch.ones(3, 4, width) for width in widths])
    assert seen == [shape]


def test_an_error_in_the_model_removes_the_hooks_and_restores_training(stack: Stack) -> None:
    stack.layers[2].eval()

    def fail(_: Tensor) -> None:
        raise ZeroDivisionError

    with (
        pytest.raises(ZeroDivisionError),
        observing(stack),
        attached(on_output(stack.layers[0], fail)),
    ):
        run(stack, INPUTS, leaving=stack.layers[2])
    assert hooks_of(stack) == 0
    assert stack.training
    assert not stack.layers[2].training


def test_a_module_that_never_runs_is_an_error(stack: Stack) -> None:
    with observing(stack), pytest.raises(NormprobeError, match="ends without a call of Linear"):
        run(stack, INPUTS, entering=nn.Linear(4, 4))


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(1, 2, 4),
        (torch.ones(1, 2, 4), None),
        OrderedDict(last_hidden_state=torch.ones(1, 2, 4), pooler_output=torch.zeros(1, 4)),
        (torch.ones(3, dtype=torch.long), torch.ones(1, 2, 4)),
    ],
)
def test_the_hidden_state_is_found_in_what_layers_return(value: object) -> None:
    assert hidden_state_of(value).tolist() == torch.ones(1, 2, 4).tolist()


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (torch.ones(1, 2), ()),
        ([torch.ones(1, 2), torch.ones(3, 2)], ()),
        ((None, [None, torch.ones(1, 2)]), (1, 1)),
        ({"loss": torch.ones(1, 1), "last_hidden_state": torch.ones(1, 2)}, ("last_hidden_state",)),
        ((torch.ones(3), {"features": (7, torch.ones(1, 2))}), (1, "features", 1)),
        # Of all states the last, before a pooled one (PPLLaVA's tower).
        (
            {"pooler_output": torch.ones(1, 2), "hidden_states": (torch.ones(1, 3, 2),) * 3},
            ("hidden_states", 2),
        ),
        ({"last_hidden_state": None, "hidden_states": (7, None)}, None),
        ({"pooler_output": torch.ones(1, 2), "hidden_states": ()}, ("pooler_output",)),
        ((torch.ones(3), 7, [], {}), None),
    ],
)
def test_the_path_leads_to_the_hidden_state(value: object, path: tuple[object, ...]) -> None:
    assert path_to_state(value) == path


def test_a_module_that_passes_no_state_is_an_error() -> None:
    with pytest.raises(NormprobeError, match="no hidden state"):
        hidden_state_of((torch.ones(2, dtype=torch.long), None))


def test_calls_with_ids_are_passed_over() -> None:
    """Ovis looks indicator ids up in the table that also mixes its visual rows."""

    class Table(nn.Embedding):
        def forward(self, weights: Tensor) -> Tensor:
            return (
                super().forward(weights)
                if not weights.is_floating_point()
                else weights @ self.weight
            )

    table, seen = Table(5, 4), []
    with attached(on_call(table, lambda entered, left, _: seen.append((entered, left)))):
        table(torch.tensor([[1, 2]]))
        table(torch.ones(1, 2, 5))
    assert len(seen) == 1
    assert seen[0][0].shape == (1, 2, 5)


def test_inputs_that_code_asserts_otherwise_of_are_a_known_failure() -> None:
    """As the original LLaVA-NeXT does of the rows of a tile."""

    class Asserting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise AssertionError  # as an `assert` without a message

    with pytest.raises(NormprobeError, match="fails on these inputs: AssertionError"):
        run(Asserting(), {"x": torch.ones(1)})


def test_inputs_that_the_model_refuses_are_a_known_failure(stack: Stack) -> None:
    with observing(stack), pytest.raises(NormprobeError, match="Stack fails on these inputs"):
        run(stack, {"states": torch.ones(1, 2, 5)})
    with observing(stack), pytest.raises(NormprobeError, match="takes no pixels"):
        run(stack, {**INPUTS, "pixels": torch.ones(1, 2)})


def test_running_out_of_memory_is_not_the_inputs_fault(stack: Stack) -> None:
    def exhaust(_: Tensor) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with (
        pytest.raises(torch.OutOfMemoryError),
        observing(stack),
        attached(on_output(stack.layers[0], exhaust)),
    ):
        run(stack, INPUTS)


def test_a_part_of_a_sharded_model_that_ran_before_it_is_told_by_the_name_of_fsdp() -> None:
    class Refusing(nn.Module):
        def forward(self, **_: object) -> None:
            raise RuntimeError("FSDP requires running forward through the root module first")

    with pytest.raises(NormprobeError, match="FSDP shards Refusing") as failure:
        run(Refusing(), {})
    assert "forward of the whole model" in failure.value.remedy


class Named(nn.Module):
    def forward(self, ids: Tensor, image: Tensor | None = None, mask: Tensor | None = None) -> None:
        self.given = (ids, image, mask)


def test_a_class_without_a_forward_is_named() -> None:
    """Phantom has `generate` alone."""

    class Generating(nn.Module): ...

    with pytest.raises(NormprobeError, match="Generating has no forward") as refused:
        accepted_inputs(Generating(), {"input_ids": torch.ones(1, 2)})
    assert "write forward(model, **inputs) in an --inputs file" in refused.value.remedy


@pytest.mark.parametrize(
    ("more", "dropped"),
    [
        ({"mm_token_type_ids": torch.ones(1, 3).long()}, ["mm_token_type_ids"]),
        (
            {"num_crops": [1], "attention_mask": torch.ones(1, 3).long()},
            ["attention_mask", "num_crops"],
        ),
        ({"visual_mask": torch.ones(1, 3)}, []),  # never passed on, and no input of the model's
    ],
)
def test_what_a_forward_has_no_name_for_is_left_out(more: dict, dropped: list[str]) -> None:
    model, inputs = Named(), {"ids": torch.ones(1, 3).long(), **more}
    run(model, inputs)
    assert model.given[0].tolist() == [[1, 1, 1]]
    assert unused_inputs(model, inputs) == dropped


@pytest.mark.parametrize(
    "name_and_value",
    [
        ("pixel_values", torch.ones(1, 3, 4, 4)),
        ("position_ids", torch.ones(1, 3).long()),
        ("attention_mask", torch.tensor([[1, 1, 0]])),
    ],
)
def test_what_changes_numbers_is_never_left_out(name_and_value: tuple[str, Tensor]) -> None:
    name, value = name_and_value
    with pytest.raises(NormprobeError, match=rf"Named\.forward takes no {name}") as raised:
        run(Named(), {"ids": torch.ones(1, 3).long(), name: value})
    assert "it takes ids, image, mask" in raised.value.problem


def test_an_input_that_is_needed_is_named() -> None:
    with pytest.raises(NormprobeError, match=r"needs ids; the inputs hold input_ids, image"):
        run(Named(), {"input_ids": torch.ones(1, 3).long(), "image": torch.ones(1, 3)})


def test_a_function_that_does_not_call_the_model() -> None:
    with pytest.raises(NormprobeError, match="does not call Named"):
        arguments_of(Named(), lambda model: None)
    with pytest.raises(NormprobeError, match="4 inputs in a row"):
        by_name(Named(), (1, 2, 3, 4), {})


class Reading(nn.Module):
    """As Nemotron-Parse: it reads words under another name, and takes any."""

    def forward(self, pixel_values: Any = None, decoder_input_ids: Any = None, **more: Any) -> None:
        pass


def test_words_that_would_go_nowhere_are_refused() -> None:
    words, pixels = torch.ones(1, 2, dtype=torch.long), torch.ones(1, 3, 2, 2)
    with pytest.raises(NormprobeError, match="reads words as decoder_input_ids, and input_ids"):
        accepted_inputs(Reading(), {"input_ids": words, "pixel_values": pixels})
    for name in ("decoder_input_ids", "inputs_embeds"):
        assert accepted_inputs(Reading(), {name: words}).keys() == {name}


def test_maps_of_a_backbone_are_what_it_hands_over() -> None:
    """Behind its last norm (MAIRA-2)."""
    maps, states = torch.zeros(1, 4, 3), torch.ones(1, 5, 3)
    made = BackboneOutput(feature_maps=(maps + 1, maps), hidden_states=(states, states + 1))
    assert hidden_state_of(made) is made.feature_maps[-1]
