"""Models without weights: built on meta, and loaded without some of their tensors."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from torch import nn

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
    from normprobe.failures import brings_code, code_failure, install, missing_packages

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


_HIDDEN = "_normprobe_hidden"


def partial_class(
    model_class: type[nn.Module], unneeded: Collection[str], name_or_path: str
) -> Any:
    """A subclass whose instances lack some tensors until ``show_again`` is called on them."""

    def __init__(self: nn.Module, config: Any, *args: Any, **kwargs: Any) -> None:
        config.name_or_path = name_or_path
        model_class.__init__(self, config, *args, **kwargs)
        hidden: list[tuple[nn.Module, str, str]] = []
        _hide(self, "", frozenset(unneeded), hidden)
        setattr(self, _HIDDEN, hidden)
        names = _tensor_names(self, "")
        tied: dict[str, str] = getattr(self, "all_tied_weights_keys", {})
        for target, source in list(tied.items()):
            if target not in names or source not in names:
                del tied[target]

    def tie_weights(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        tied = cast(Any, model_class).tie_weights(self, *args, **kwargs)
        for owner, kind, name in getattr(self, _HIDDEN, ()):
            if getattr(owner, kind)[name] is not None:  # set again by the class
                _move_out(owner, kind, name)
        return tied

    members = {
        "__init__": __init__,
        "tie_weights": tie_weights,
        "__module__": model_class.__module__,
    }
    return type(model_class.__name__, (model_class,), members)


def show_again(model: nn.Module) -> None:
    """Give an instance of ``partial_class`` its hidden modules back; they stay on meta."""
    for owner, kind, name in getattr(model, _HIDDEN):
        getattr(owner, kind)[name] = owner.__dict__.pop(name)
    delattr(model, _HIDDEN)


def _hide(
    module: nn.Module,
    prefix: str,
    unneeded: frozenset[str],
    hidden: list[tuple[nn.Module, str, str]],
) -> None:
    """Hide whole modules where no tensor inside is needed, single parameters elsewhere."""
    for name, child in module._modules.items():
        if child is None:
            continue
        below = _tensor_names(child, f"{prefix}{name}.")
        if below and below <= unneeded:
            hidden.append((module, "_modules", name))
        else:
            _hide(child, f"{prefix}{name}.", unneeded, hidden)
    hidden.extend(
        (module, "_parameters", name)
        for name, parameter in module._parameters.items()
        if parameter is not None and f"{prefix}{name}" in unneeded
    )
    for owner, kind, name in hidden:
        if owner is module:
            _move_out(module, kind, name)


def _move_out(owner: nn.Module, kind: str, name: str) -> None:
    """Still an attribute, which a class may touch when it is initialised, but no member.

    The name stays among the members, so that their order does.
    """
    owner.__dict__[name] = getattr(owner, kind)[name]
    getattr(owner, kind)[name] = None


def _tensor_names(module: nn.Module, prefix: str) -> set[str]:
    parameters = module.named_parameters(remove_duplicate=False)
    buffers = module.named_buffers(remove_duplicate=False)
    return {f"{prefix}{name}" for name, _ in [*parameters, *buffers]}
