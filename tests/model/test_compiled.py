"""A model that torch.compile has made a graph of is measured as before, and stays compiled."""

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
import torch
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs
from support.tiny_models import tiny_model

from normprobe import Probe


def whole(model: Any, backend: Any) -> Any:
    model.compile(backend=backend)
    return model


def wrapped(model: Any, backend: Any) -> Any:
    return torch.compile(model, backend=backend)


def forward(model: Any, backend: Any) -> Any:
    model.forward = torch.compile(model.forward, backend=backend)
    return model


def part(model: Any, backend: Any) -> Any:
    model.model.language_model.compile(backend=backend)
    return model


@pytest.fixture(autouse=True)
def _graphs() -> Iterator[None]:
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("compiled", [whole, wrapped, forward, part])
def test_a_compiled_model_has_the_numbers_of_one_that_is_not(
    compiled: Callable[[Any, Any], Any],
) -> None:
    model = tiny_model("llava")
    inputs = tiny_inputs(model, 2)
    expected = Probe(model, special_token_ids=SPECIAL_IDS).layers(inputs).table
    ran: list[int] = []

    def backend(graph: Any, _: Any) -> Any:
        def run(*args: Any) -> Any:
            ran.append(1)
            return graph.forward(*args)

        return run

    made = compiled(model, backend)
    with torch.no_grad():
        made(**inputs)  # the graphs are made without hooks
        before = len(ran)
        found = Probe(made, special_token_ids=SPECIAL_IDS).layers(inputs).table
        assert len(ran) == before > 0
        pd.testing.assert_frame_equal(found, expected)
        made(**inputs)
    assert len(ran) > before
