"""Devices and dtypes by name."""

import pytest
import torch
from support.cases import model_of

from normprobe.errors import NormprobeError
from normprobe.model.load.device import device_and_dtype, pick_device, placement


def test_auto_takes_a_device_that_is_there() -> None:
    assert torch.ones(1, device=pick_device("auto")).sum() == 1


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("toaster", "there is no device 'toaster'"),
        ("cuda:99", "device 'cuda:99' is not available: "),
    ],
)
def test_a_device_that_is_not_there_is_refused(name: str, problem: str) -> None:
    with pytest.raises(NormprobeError, match=problem) as failure:
        pick_device(name)
    assert "\n" not in failure.value.problem


def test_a_dtype_that_is_unknown_is_refused() -> None:
    with pytest.raises(NormprobeError, match="unknown dtype 'float7'") as failure:
        placement("cpu", "float7", None)
    assert "bfloat16" in failure.value.remedy


def test_weights_on_meta_do_not_count() -> None:
    assert device_and_dtype(model_of("llava")) == ("cpu", "float32")
    assert device_and_dtype(torch.nn.Linear(2, 2, device="meta")) == ("", "None")
