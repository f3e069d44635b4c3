"""Settings that must hold before transformers is imported, in every test."""

import contextlib
import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"

import torch
import transformers

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()

# The registry's torchvision is built for CUDA: beside a CPU torch its import fails, because it
# registers fake kernels for operators that its extension did not define. So they are defined here.
_torchvision = torch.library.Library("torchvision", "FRAGMENT")
for _operator in ("nms", "qnms"):
    with contextlib.suppress(RuntimeError):
        _torchvision.define(
            f"{_operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )

# One for the session: the code of a repository is imported once, from one cache.
from support.remote_code.fixture import repository_fixture  # noqa: E402, F401
