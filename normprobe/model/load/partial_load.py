"""Models without weights: built on meta, and loaded without some of their tensors.

transformers 5 gives buffers that no checkpoint holds, such as rotary tables, memory without values.
Only ``_init_weights`` of the model's class fills it, and code that is older than transformers 5 has
none for its tables: what they hold then is garbage that differs from run to run. So they are made
again as the model's ``__init__`` makes them.
"""

import copy
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any, cast
from unittest.mock import patch

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from normprobe.errors import NormprobeError, first_line
from normprobe.model.checkpoint import Checkpoint
from normprobe.model.load.repository import FETCH_AGAIN
from normprobe.model.load.required_tensors import tensor_names
from normprobe.model.model_kind import auto_class
from normprobe.remote_code_bridges import foreign_code
from normprobe.versions import is_line_5, made_on_meta


def build_on_meta(checkpoint: Checkpoint) -> nn.Module:
    """The modules of a model from the config alone: their parameters hold no values.

    Nor do the buffers of a model of transformers. Code of a repository may need the values of those
    while it is built.
    """
    with (
        explained_failures(checkpoint),
        foreign_code(checkpoint.trust_remote_code, checkpoint.bridges),
    ):
        config = copy.deepcopy(checkpoint.config)  # a class may write into what it is built of
        model: Any = made_on_meta(
            lambda: auto_class(checkpoint.kind, config).from_config(
                config,
                trust_remote_code=checkpoint.trust_remote_code,
                **checkpoint.keywords_of_class,
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
        raise _failure_words(error, checkpoint) from error


def _failure_words(error: Exception, checkpoint: Checkpoint) -> NormprobeError:
    """What to say of a failure."""
    from normprobe.failures import brings_code, code_failure, install, missing_packages

    name, config = checkpoint.name, checkpoint.config
    if packages := missing_packages(error):
        return NormprobeError(
            f"{name} needs {', '.join(packages)}, not installed here", install(packages)
        )
    if lacking := _lacking_keyword(error, config):
        return NormprobeError(
            f"the class of {name} takes {lacking!r} beside its config: {first_line(error)}",
            f"pass it as its README does to from_pretrained: keywords = {{{lacking!r}: VALUE}} in "
            "an --inputs file",
        )
    own = brings_code(config) or checkpoint.own_code  # of a repository, or of a package
    if checkpoint.trust_remote_code and own and not isinstance(error, OSError):
        return code_failure(error, name, getattr(config, "transformers_version", None))
    if isinstance(error, ImportError):
        return NormprobeError(
            f"{name} needs a package that is not installed: {first_line(error)}",
            "install the package that it names",
        )
    remedy = (
        "check the checkpoint's files against its source; NORMPROBE_DEBUG=1 shows the traceback"
    )
    if checkpoint.own_code and not checkpoint.trust_remote_code:  # of a package
        remedy = "pass --trust-remote-code: it bridges what transformers changed for older code"
    return NormprobeError(
        f"cannot build {name} ({config.model_type}): {first_line(error, most=300)}", remedy
    )


def _lacking_keyword(error: Exception, config: Any) -> str:
    """What the model's class asks for beside its config; empty where it does not."""
    named = config.architectures or ()
    missing = re.match(r"(\w+)\.__init__\(\) missing .*?'(\w+)'", str(error))
    if isinstance(error, TypeError) and missing and missing[1] in named:
        return missing[2]
    if isinstance(error, KeyError) and error.__traceback__ is not None:
        *_, (frame, _) = walk_tb(error.__traceback__)
        given, built = (frame.f_locals.get(name) for name in ("kwargs", "self"))
        # The model's own class, as LISA's: a part of it is given its keywords by other code.
        if isinstance(given, dict) and type(built).__name__ in named:
            return str(error.args[0]) if error.args[0] not in given else ""
    return ""


_HIDDEN = "_normprobe_hidden"


def partial_class(
    model_class: type[nn.Module], unneeded: Collection[str], name_or_path: str
) -> Any:
    """A subclass whose instances lack some tensors until ``show_again`` is called on them."""

    def __init__(self: nn.Module, config: Any, *args: Any, **kwargs: Any) -> None:
        config.name_or_path = name_or_path
        model_class.__init__(self, config, *args, **kwargs)
        hidden: list[tuple[nn.Module, str, str]] = []
        _hide(self, "", tensor_names(self), frozenset(unneeded), hidden)
        setattr(self, _HIDDEN, hidden)
        names = tensor_names(self)
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
    """Give an instance of ``partial_class`` its hidden modules back; what was not read is on meta.

    ``skip_init`` gives weights memory in any case: what lies in it is no weight (VisualGLM).
    """
    for owner, kind, name in getattr(model, _HIDDEN):
        member = getattr(owner, kind)[name] = owner.__dict__.pop(name)
        if kind == "_parameters":
            getattr(owner, kind)[name] = _without_unread(member)
        for module in member.modules() if kind == "_modules" else ():
            for own, weight in module._parameters.items():
                module._parameters[own] = _without_unread(weight)
    delattr(model, _HIDDEN)


def _without_unread(weight: nn.Parameter | None) -> nn.Parameter | None:
    """A parameter as it is if the loader read it; else one without values."""
    if weight is None or weight.is_meta or hasattr(weight, _READ):
        return weight
    return nn.Parameter(weight.to("meta"), requires_grad=weight.requires_grad)


def _hide(
    module: nn.Module,
    prefix: str,
    names: set[str],
    unneeded: frozenset[str],
    hidden: list[tuple[nn.Module, str, str]],
) -> None:
    """Hide whole modules where no tensor inside is needed, single parameters elsewhere.

    ``prefix`` is what the names of its tensors begin with; ``names`` holds all of these.
    """
    for name, child in module._modules.items():
        if child is None:
            continue
        inside = f"{prefix}{name}."
        below = {tensor for tensor in names if tensor.startswith(inside)}
        if below and below <= unneeded:
            hidden.append((module, "_modules", name))
        else:
            _hide(child, inside, below, unneeded, hidden)
    hidden.extend(
        (module, "_parameters", name)
        for name, parameter in module._parameters.items()
        if parameter is not None and f"{prefix}{name}" in unneeded
    )
    for owner, kind, name in hidden:
        if owner is module and getattr(module, kind)[name] is not None:
            _move_out(module, kind, name)


def _move_out(owner: nn.Module, kind: str, name: str) -> None:
    """Still an attribute, which a class may touch when it is initialised, but no member.

    The name stays among the members, so that their order does.
    """
    owner.__dict__[name] = getattr(owner, kind)[name]
    getattr(owner, kind)[name] = None


#: The mark of the loader on what it read.
_READ = "_is_hf_initialized"

#: Where a tensor is kept: a buffer that checkpoints hold, one that they do not, neither.
_SAVED, _UNSAVED, _ATTRIBUTE = "saved", "unsaved", "attribute"


def restore_buffers(checkpoint: Checkpoint, model: nn.Module) -> list[str]:
    """Give every tensor that no checkpoint holds the value that its module's ``__init__`` makes.

    These are buffers that are not saved, or were not, and tensors that are plain attributes of a
    module. The model is built a second time, its parameters without memory; with code of its own
    also a third time, with other random numbers: what was drawn at random, nobody can make again.
    """
    unsaved = _unsaved_tensors(model)
    if not unsaved:
        return []
    seeds = (0, 1) if checkpoint.trust_remote_code else (0,)
    builds = [_built(checkpoint, model, next(iter(unsaved)), seed) for seed in seeds]
    made, *others = ({name: tensor for name, tensor, _ in _tensors(build)} for build in builds)
    restored = []
    for name, tensor in unsaved.items():
        value = made.get(name)
        if value is None or value.is_meta or value.shape != tensor.shape:
            raise _unknown(checkpoint, name, "a second build of the model does not make it")
        if any(not _same(value, other[name]) for other in others):
            raise _unknown(checkpoint, name, "each build of the model draws other random numbers")
        value = value.to(tensor.dtype)
        if tensor.is_meta or not torch.equal(tensor.cpu(), value):
            _put(model, name, value, tensor)
            restored.append(name)
    return restored


def changed_buffers(checkpoint: Checkpoint, model: nn.Module) -> list[str]:
    """The buffers of a loaded model that hold something else than those of a fresh build."""
    unsaved = {
        name: tensor
        for name, tensor, kind in _tensors(model)
        if kind == _UNSAVED and not tensor.is_meta
    }
    if not unsaved:
        return []
    build = _built(checkpoint, model, next(iter(unsaved)), seed=0)
    made = {name: tensor for name, tensor, _ in _tensors(build)}
    there = {name for name, _ in build.named_modules()}  # prepare() adds modules (VisionZip)
    compared = {name: t for name, t in unsaved.items() if name.rpartition(".")[0] in there}
    return [
        name
        for name, tensor in compared.items()
        if name not in made
        or made[name].shape != tensor.shape
        or not _same(made[name].to(tensor.dtype), tensor.cpu())
    ]


def _built(checkpoint: Checkpoint, model: nn.Module, needed_for: str, seed: int) -> nn.Module:
    """The model with real buffers and without memory for parameters.

    ``_init_weights`` of its class runs: some classes fill their buffers there.
    """
    config = copy.deepcopy(checkpoint.config)  # from_config writes the dtype into it
    floats = (weight.dtype for weight in model.parameters() if weight.is_floating_point())
    try:
        with (
            foreign_code(checkpoint.trust_remote_code, checkpoint.bridges),
            patch.object(PreTrainedModel, "from_pretrained", classmethod(_without_weights)),
            torch.random.fork_rng(devices=[]),
            init_empty_weights(include_buffers=False),
        ):
            torch.manual_seed(seed)
            made: nn.Module = auto_class(checkpoint.kind, checkpoint.config).from_config(
                config,
                trust_remote_code=checkpoint.trust_remote_code,
                dtype=next(floats, torch.get_default_dtype()),
                **checkpoint.keywords_of_class,
            )
    except Exception as error:  # whatever foreign code does while it is built
        raise _unknown(checkpoint, needed_for, first_line(error)) from error
    return made


def _without_weights(model_class: Any, path: Any, *_: Any, **options: Any) -> Any:
    """In place of ``from_pretrained``, which some classes call for parts while they are built.

    Such a load inside of another one leaves buffers that no file holds undefined.
    """
    config = options.get("config")
    if not isinstance(config, PretrainedConfig):
        config = model_class.config_class.from_pretrained(config or path)
    kept = {name: options[name] for name in ("attn_implementation", "dtype") if name in options}
    return model_class._from_config(config, **kept)


def _unsaved_tensors(model: nn.Module) -> dict[str, Tensor]:
    """By name, what the loader did not read. It marks all that it reads, of transformers 5 on."""
    marks = any(hasattr(weight, _READ) for weight in model.parameters())
    quantised = getattr(model, "hf_quantizer", None) is not None  # carries no marks

    def is_unsaved(tensor: Tensor, kind: str) -> bool:
        if kind == _SAVED:
            return marks and not quantised and not tensor.is_meta and not hasattr(tensor, _READ)
        left_out = tensor.is_meta and is_line_5()  # transformers 4 makes all buffers
        return kind == _ATTRIBUTE or not left_out

    return {name: tensor for name, tensor, kind in _tensors(model) if is_unsaved(tensor, kind)}


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor, str]]:
    """Name and value of buffers and of tensors that are plain attributes, and which it is."""
    for prefix, module in model.named_modules():
        before = f"{prefix}." if prefix else ""
        for name, buffer in module._buffers.items():
            if buffer is not None:
                unsaved = name in module._non_persistent_buffers_set
                yield before + name, buffer, _UNSAVED if unsaved else _SAVED
        for name, value in vars(module).items():
            normed = f"{name}_g" in module._parameters  # made anew in each forward (BEATs, in Ola)
            if type(value) is Tensor and not normed:
                yield before + name, value, _ATTRIBUTE


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.nan_to_num(), other.nan_to_num())


def _put(model: nn.Module, name: str, value: Tensor, old: Tensor) -> None:
    if not old.is_meta:
        with torch.no_grad():
            old.copy_(value)
        return
    prefix, _, own = name.rpartition(".")
    module = model.get_submodule(prefix)
    near = (weight.device for weight in [*module.parameters(), *model.parameters()])
    device = next((device for device in near if device.type != "meta"), value.device)
    setattr(module, own, value.to(device))


def _unknown(checkpoint: Checkpoint, name: str, why: str) -> NormprobeError:
    return NormprobeError(
        f"{checkpoint.name} holds no value of the buffer {name}, and it cannot be made again: "
        f"{why}",
        "no number of this model can be trusted; open an issue with the model's name",
    )
