"""Tensors in any depth are replaced; the value itself is left alone."""

from typing import NamedTuple

import torch
from torch import Tensor

from normprobe.nested import with_tensors


class Pair(NamedTuple):
    first: Tensor
    second: str


def test_tensors_are_replaced_wherever_they_are() -> None:
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
