"""What torchvision needs beside a CPU torch, before transformers imports it.

The registry's torchvision is built for CUDA: beside a CPU torch its import fails, because it
registers fake kernels for operators that its extension did not define. So they are defined.
"""

import contextlib

import torch

_LIBRARY = torch.library.Library("torchvision", "FRAGMENT")  # the definitions end with it


def define() -> None:
    """Define them, unless a torchvision that fits has."""
    takes = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    for operator in ("nms", "qnms"):
        with contextlib.suppress(RuntimeError):
            _LIBRARY.define(f"{operator}{takes}")
