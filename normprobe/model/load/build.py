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
    """The modules of a model from the config alone: their parameters hold no values.

    Nor do the buffers of a model of transformers. Code of a repository may need the values of those
    while it is built.
    """
    from normprobe.bridges import foreign_code
    from normprobe.versions import made_on_meta

    with (
        explained_failures(checkpoint),
        foreign_code(checkpoint.trust_remote_code, checkpoint.bridges),
    ):
        model: Any = made_on_meta(
            lambda: auto_class(checkpoint).from_config(
                checkpoint.config, trust_remote_code=checkpoint.trust_remote_code
            ),
            keeps_buffers=checkpoint.own_code,
        )
    model.name_or_path = checkpoint.typed  # messages print it in commands
    built: nn.Module = model.eval()
    return built


@contextmanager
def explained_failures(checkpoint: Checkpoint) -> Iterator[None]:
    """Turn what transformers raises while it builds or loads a model into a ``NormprobeError``."""
    from safetensors import SafetensorError
    from torch import OutOfMemoryError

    try:
        yield
    except SafetensorError as error:
        raise NormprobeError(
            f"a weight file of {checkpoint.name} cannot be read: {first_line(error)}", FETCH_AGAIN
        ) from error
    except (NormprobeError, MemoryError, OutOfMemoryError):
        raise
    except Exception as error:  # a model class may do anything with fields of other values
        raise _told(error, checkpoint) from error


def _told(error: Exception, checkpoint: Checkpoint) -> NormprobeError:
    """What to say of a failure."""
    from normprobe.code_failures import brings_code, code_failure, install, missing_packages

    name, config = checkpoint.name, checkpoint.config
    if packages := missing_packages(error):
        return NormprobeError(
            f"{name} needs {', '.join(packages)}, not installed here", install(packages)
        )
    if checkpoint.trust_remote_code and brings_code(config) and not isinstance(error, OSError):
        return code_failure(error, name, getattr(config, "transformers_version", None))
    if isinstance(error, ImportError):
        return NormprobeError(
            f"{name} needs a package that is not installed: {first_line(error)}",
            "install the package that it names",
        )
    return NormprobeError(
        f"cannot build {name} ({config.model_type}): {first_line(error, most=300)}",
        "check the checkpoint's files against its source; NORMPROBE_DEBUG=1 shows the traceback",
    )
