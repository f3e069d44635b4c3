"""Buffers that no checkpoint holds, such as rotary tables: as the model's ``__init__`` makes them.

transformers 5 builds a model on the meta device and gives such buffers memory without values. Only
``_init_weights`` of the model's class fills it, and code that is older than transformers 5 has none
for its tables: what they hold then is garbage that differs from run to run.
"""

import copy
from collections.abc import Iterator

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn

from normprobe.bridges import foreign_code
from normprobe.errors import NormprobeError, first_line
from normprobe.model.checkpoint import Checkpoint, auto_class
from normprobe.versions import is_line_5

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
    return [
        name
        for name, tensor in unsaved.items()
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
            torch.random.fork_rng(devices=[]),
            init_empty_weights(include_buffers=False),
        ):
            torch.manual_seed(seed)
            made: nn.Module = auto_class(checkpoint).from_config(
                config,
                trust_remote_code=checkpoint.trust_remote_code,
                dtype=next(floats, torch.get_default_dtype()),
            )
    except Exception as error:  # whatever foreign code does while it is built
        raise _unknown(checkpoint, needed_for, first_line(error)) from error
    return made


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
            if type(value) is Tensor:
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
