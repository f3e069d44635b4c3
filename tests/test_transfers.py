"""What goes to the CPU arrives in its order, its shape and its dtype."""

import numpy as np
import pytest
import torch

from normprobe.tensors import to_device, to_host


def tensors(device: str) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(shape, generator=generator) for shape in ((2, 3), (), (0, 4), (5,))]
    codes = torch.arange(6, dtype=torch.int8).reshape(3, 2)
    return [tensor.to(device) for tensor in (drawn[0], codes, *drawn[1:], codes.T)]


def check_round_trip(device: str) -> None:
    sent = tensors(device)
    expected = [np.array(tensor.tolist(), dtype=np.float32) for tensor in tensors("cpu")]
    arrived = to_host(sent)
    for tensor in sent:
        tensor.zero_()  # too late to matter
    for _ in range(2):  # it may be asked twice
        for tensor, array, values in zip(sent, arrived(), expected, strict=True):
            assert array.dtype == np.dtype(str(tensor.dtype).removeprefix("torch."))
            assert array.shape == tuple(tensor.shape)
            np.testing.assert_array_equal(array, values.reshape(array.shape))


def test_tensors_arrive_as_they_were() -> None:
    check_round_trip("cpu")
    assert to_host([])() == []


def test_a_tensor_that_is_there_stays() -> None:
    tensor = torch.ones(3)
    assert to_device(tensor, torch.device("cpu")) is tensor


@pytest.mark.gpu
def test_tensors_arrive_from_a_device_as_they_were() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    check_round_trip("cuda")
    moved = to_device(torch.arange(5), torch.device("cuda"))
    assert moved.is_cuda
    assert moved.tolist() == [0, 1, 2, 3, 4]
