"""What torchvision needs beside a CPU torch, before transformers imports it.

The registry's torchvision is built for CUDA: beside a CPU torch its import fails, because it
registers fake kernels for operators that its extension did not define. So they are defined. Beside
a torch that fits, its extension defines them itself, and ends the process where they are defined.
"""

import sys
from importlib import import_module

import torch

_LIBRARY = torch.library.Library("torchvision", "FRAGMENT")  # the definitions end with it


def define() -> None:
    """Define them where torchvision is installed and does not."""
    try:
        import_module("torchvision")
    except ImportError:
        return
    except RuntimeError:
        for module in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[module]
        takes = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        for operator in ("nms", "qnms"):
            _LIBRARY.define(f"{operator}{takes}")
