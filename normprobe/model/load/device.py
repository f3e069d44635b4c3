"""Where weights go and in which type: from the options of a command to devices and dtypes."""

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from normprobe.errors import NormprobeError, first_line

if TYPE_CHECKING:
    import torch
    from torch import nn

#: What weights are loaded in; ``auto``: as they are saved.
DTYPES = ("auto", "float32", "bfloat16", "float16")


def pick_device(name: str) -> "torch.device":
    """The device of a name; ``auto`` takes the first of cuda, mps and cpu that is there."""
    import torch

    if name == "auto":
        there = torch.accelerator.is_available()
        return (torch.accelerator.current_accelerator() if there else None) or torch.device("cpu")
    remedy = "pass --device auto, cpu, cuda, cuda:1, mps or balanced"
    try:
        device = torch.device(name)
    except RuntimeError as error:  # it lists devices that nobody here has heard of
        raise NormprobeError(f"there is no device {name!r}", remedy) from error
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise NormprobeError(
            f"device {name!r} is not available: {first_line(error)}", remedy
        ) from error
    return device


def placement(
    device: str, dtype: str, device_map: str | Mapping[str, str] | None
) -> dict[str, Any]:
    """The arguments of ``from_pretrained`` that say where weights go and in which type."""
    arguments: dict[str, Any] = {"dtype": _dtype(dtype)}
    if device_map is not None:
        arguments |= {"device_map": device_map, "offload_folder": _offload_folder()}
    elif (target := pick_device(device)).type != "cpu":
        arguments["device_map"] = {"": str(target)}
    return arguments


def device_and_dtype(model: "nn.Module") -> tuple[str, str]:
    """Where the loaded weights of a model are, and their first float type, such as bfloat16."""
    loaded = [weight for weight in model.parameters() if not weight.is_meta]
    devices = sorted({str(weight.device) for weight in loaded})
    dtype = next((weight.dtype for weight in loaded if weight.is_floating_point()), None)
    return ", ".join(devices), str(dtype).removeprefix("torch.")


def check_dtype(name: str) -> None:
    """Refuse a dtype that weights cannot be loaded in."""
    if name not in DTYPES:
        raise NormprobeError(f"unknown dtype {name!r}", f"pass --dtype {', '.join(DTYPES)}")


def _dtype(name: str) -> "torch.dtype | str":
    import torch

    check_dtype(name)
    return name if name == "auto" else getattr(torch, name)


def _offload_folder() -> str:
    """Where accelerate puts weights that fit nowhere else and are not stored as they are used."""
    folder = tempfile.mkdtemp(prefix="normprobe-offload-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
