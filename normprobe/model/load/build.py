"""Builds a checkpoint's model without weights, and explains what transformers refuses to build."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from normprobe.errors import NormprobeError, first_line
from normprobe.model.checkpoint import Checkpoint, auto_class
from normprobe.model.load.repository import FETCH_AGAIN

if TYPE_CHECKING:
    from torch import nn


def build_on_meta(checkpoint: Checkpoint) -> "nn.Module":
    """The modules of a model on the meta device, from the config alone: they hold no values.

    Raises:
        NormprobeError: when the config does not describe a model that can be built.
    """
    import torch

    from normprobe.bridges import foreign_code
    from normprobe.model.load.versions import meta_device_safe_creation_ops

    # As transformers does it: code that asks for a value while it is built gets one.
    with (
        explained_failures(checkpoint),
        foreign_code(checkpoint.trust_remote_code, checkpoint.bridges),
        torch.device("meta"),
        meta_device_safe_creation_ops(),
    ):
        model: Any = auto_class(checkpoint).from_config(
            checkpoint.config, trust_remote_code=checkpoint.trust_remote_code
        )
    model.name_or_path = checkpoint.typed  # messages print it in commands
    built: nn.Module = model.eval()
    return built


@contextmanager
def explained_failures(checkpoint: Checkpoint) -> Iterator[None]:
    """Turn what transformers raises while it builds or loads a model into a ``NormprobeError``."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise NormprobeError(
            f"a weight file of {checkpoint.name} cannot be read: {first_line(error)}", FETCH_AGAIN
        ) from error
    except ImportError as error:
        raise NormprobeError(
            f"{checkpoint.name} needs a package that is not installed: {first_line(error)}",
            "pip install 'normprobe[vision]' (torchvision, timm, scipy)"
            if any(package in str(error) for package in ("torchvision", "timm", "scipy"))
            else "install the package that it names",
        ) from error
    except (NormprobeError, MemoryError):
        raise
    except Exception as error:  # a model class may do anything with fields of other values
        raise NormprobeError(
            f"cannot build {checkpoint.name} ({checkpoint.config.model_type}): "
            f"{first_line(error, most=300)}",
            "check the checkpoint's files against its source; NORMPROBE_DEBUG=1 shows the "
            "traceback",
        ) from error
