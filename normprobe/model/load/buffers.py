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
from normprobe.model.load.versions import no_init_weights


def restore_buffers(checkpoint: Checkpoint, model: nn.Module) -> list[str]:
    """Give every tensor that no checkpoint holds the value that its module's ``__init__`` makes.

    These are non-persistent buffers, and tensors that are plain attributes of a module. The model
    is built a second time, its parameters without memory.

    Args:
        checkpoint: of the model.
        model: as transformers loaded it. Buffers on the meta device were left out, and stay there.

    Returns:
        The names of the tensors that held something else.

    Raises:
        NormprobeError: the second model has no such tensor, or of another shape: nobody can tell
            the right values.
    """
    unsaved = {
        name: tensor
        for name, tensor, is_buffer in _unsaved_tensors(model)
        if not (is_buffer and tensor.is_meta)
    }
    if not unsaved:
        return []
    second = _built(checkpoint, model, next(iter(unsaved)))
    made = {name: tensor for name, tensor, _ in _unsaved_tensors(second)}
    restored = []
    for name, tensor in unsaved.items():
        value = made.get(name)
        if value is None or value.is_meta or value.shape != tensor.shape:
            raise _unknown(checkpoint, name, "a second build of the model does not make it")
        value = value.to(tensor.dtype)
        if tensor.is_meta or not torch.equal(tensor.cpu(), value):
            _put(model, name, value, tensor)
            restored.append(name)
    return restored


def _built(checkpoint: Checkpoint, model: nn.Module, needed_for: str) -> nn.Module:
    """The model with real buffers and without memory for parameters."""
    config = copy.deepcopy(checkpoint.config)  # from_config writes the dtype into it
    floats = (weight.dtype for weight in model.parameters() if weight.is_floating_point())
    try:
        with (
            foreign_code(checkpoint.trust_remote_code, checkpoint.bridges),
            no_init_weights(),
            init_empty_weights(include_buffers=False),
        ):
            made: nn.Module = auto_class(checkpoint).from_config(
                config,
                trust_remote_code=checkpoint.trust_remote_code,
                dtype=next(floats, torch.get_default_dtype()),
            )
    except Exception as error:  # whatever foreign code does while it is built
        raise _unknown(checkpoint, needed_for, first_line(error)) from error
    return made


def _unsaved_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor, bool]]:
    """Name and value of non-persistent buffers and plain attributes, and whether it is a buffer."""
    for prefix, module in model.named_modules():
        before = f"{prefix}." if prefix else ""
        for name in sorted(module._non_persistent_buffers_set):
            if module._buffers.get(name) is not None:
                yield before + name, module._buffers[name], True
        for name, value in vars(module).items():
            if type(value) is Tensor:
                yield before + name, value, False


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
