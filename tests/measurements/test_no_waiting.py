"""Measuring asks a device for no value before the forward has been asked for as a whole.

On a CPU every value is there at once. What would make the host wait for a device are the operations
that hand a value of a tensor to Python, or whose result has a shape that depends on values.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from traceback import extract_stack
from typing import Any

import pytest
import torch
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs
from support.tiny_models import tiny_model
from torch.utils._python_dispatch import TorchDispatchMode

from normprobe import find_parts
from normprobe.hooks import observing, run_until
from normprobe.measurements import measurement
from normprobe.measurements.layers import WATCHERS
from normprobe.model.measured_model import MeasuredModel
from normprobe.schema import IMAGE_NUMBERS
from normprobe.statistics import token_metrics

WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim"}
TYPES = ["llava", "llava_next", "ovis2", "qwen2_5_vl", "mllama"]


class _Waits(TorchDispatchMode):
    """Names the operations that would make the host wait, from when it is told to watch."""

    def __init__(self) -> None:
        super().__init__()
        self.watching = False
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        chosen = [index for index in args[1] if index is not None] if name == "index" else []
        by_mask = any(index.dtype == torch.bool for index in chosen)
        if self.watching and (name in WAITING or by_mask) and not _asks_a_cpu_alone():
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


def _asks_a_cpu_alone() -> bool:
    """Whether it is asked if a state is too large to be squared, or not finite: of no device."""
    asking = {token_metrics.__file__}
    return any(frame.filename in asking for frame in extract_stack())


@contextmanager
def waits(model: torch.nn.Module) -> Iterator[list[str]]:
    """The operations from the start of the model's forward to the end of the block."""
    mode = _Waits()

    def watch(*_: Any) -> None:
        mode.watching = True

    handle = model.register_forward_pre_hook(watch)
    try:
        with mode:
            yield mode.seen
    finally:
        handle.remove()


@pytest.mark.parametrize("watching", [(), *[(name,) for name in WATCHERS]])
@pytest.mark.parametrize("model_type", TYPES)
def test_the_hooks_ask_for_no_value(model_type: str, watching: tuple[str, ...]) -> None:
    model = tiny_model(model_type)
    inputs: dict[str, Any] = dict(tiny_inputs(model, 2))
    inputs[IMAGE_NUMBERS] = torch.ones_like(inputs["input_ids"])
    measured = MeasuredModel(model, find_parts(model), SPECIAL_IDS)
    layers = measurement("layers").asking(also=watching)
    layers.observe(measured, inputs)  # which placeholders are structural is asked once
    with waits(model) as bare, observing(model):
        run_until(model, inputs, leaving=measured.decoder_layers[-1])
    with waits(model) as seen:
        layers.observe(measured, inputs)
    assert seen == bare


@pytest.mark.parametrize("model_type", TYPES)
def test_token_groups_are_told_where_the_inputs_are(model_type: str) -> None:
    """A tensor on ``meta`` holds no value: to ask for one is an error."""
    model = tiny_model(model_type)
    inputs: Mapping[str, Any] = tiny_inputs(model, 2)
    measured = MeasuredModel(model, find_parts(model), SPECIAL_IDS)
    expected = measured.batch(inputs).prompt_groups
    model.to("meta")
    groups = measured.batch(inputs).prompt_groups
    assert groups.device.type == "cpu"
    assert torch.equal(groups, expected)
