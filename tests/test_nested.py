"""Values inside dicts, lists and tuples."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import BatchFeature

from normprobe.inputs.on_device import moved_to, with_other_pixels
from normprobe.tensors import (
    arrays_as_tensors,
    find_named,
    flattened,
    unflattened,
    with_tensors,
)


class Pair(NamedTuple):
    first: Tensor
    second: str


def test_tensors_are_replaced_wherever_they_are() -> None:
    """The value itself is left alone."""
    one = torch.ones(2)
    value = {"a": one, "data": {"b": [one, (one, "text")]}, "pair": Pair(one, "name"), "c": None}
    changed = with_tensors(value, lambda tensor: tensor + 1)
    two = one + 1
    torch.testing.assert_close(changed["a"], two)
    torch.testing.assert_close(changed["data"]["b"][0], two)
    torch.testing.assert_close(changed["data"]["b"][1][0], two)
    assert changed["data"]["b"][1][1] == "text"
    assert isinstance(changed["pair"], Pair)
    torch.testing.assert_close(changed["pair"].first, two)
    assert changed["c"] is None
    assert value["data"]["b"][0] is one
    assert one.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("inputs", "value"),
    [
        ({"input_ids": 1, "data": {"input_ids": 2}}, 1),
        ({"input_ids": None, "data": {"input_ids": 2}}, 2),
        ({"mask": 0, "data": {"more": {"input_ids": 3}}}, 3),
        ({"first": {"input_ids": None}, "second": {"input_ids": 4}}, 4),
        ({"mask": 0, "data": {}}, None),
        ({}, None),
    ],
)
def test_an_input_is_found_wherever_it_lies(inputs, value):
    assert find_named(inputs, "input_ids") == value


@pytest.mark.parametrize("inputs", [{}, {"a": 1, "b": {"c": [2], "d": {"e": None}}}])
def test_what_is_flattened_can_be_put_back(inputs):
    flat = flattened(inputs)
    assert not any(isinstance(value, dict) for value in flat.values())
    assert unflattened(flat) == inputs


@pytest.mark.parametrize("change", ["moved", "from arrays", "other pixels"])
def test_a_mapping_stays_of_its_kind(change: str) -> None:
    """Code asks a processor's for its attributes (Lyra), wherever it lies."""
    held = BatchFeature({"pixel_values": torch.rand(1, 3, 4, 4), "sizes": [4, 4]})
    inputs = {"images": [held, {"pixel_values": held["pixel_values"]}]}
    changed = {
        "moved": lambda: moved_to(torch.nn.Linear(1, 1), inputs),
        "from arrays": lambda: arrays_as_tensors(inputs),
        "other pixels": lambda: with_other_pixels(inputs),
    }[change]()
    same, plain = changed["images"]
    assert (type(same), type(plain)) == (BatchFeature, dict)
    assert same.sizes == [4, 4]
    assert same.pixel_values.equal(held.pixel_values) == (change != "other pixels")
    assert held.pixel_values is inputs["images"][0]["pixel_values"]
    assert same is not held
