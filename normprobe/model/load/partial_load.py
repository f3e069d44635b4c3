"""A partial load: a model class whose instances are loaded without some of their tensors.

transformers' loader reads the tensors that the model it built has a place for. So the modules that
are not needed are hidden from the built model, which is still on the meta device and costs nothing.
They are shown again when the loader is done, on the meta device, without values. All other tensors
are those of a full load, under the same names, from the same config.
"""

from collections.abc import Collection
from typing import Any, cast

from torch import nn

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
