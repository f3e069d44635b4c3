"""The first module of two models in memory that makes something else of the same input."""

from collections.abc import Mapping
from contextvars import Context
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normprobe.errors import first_line
from normprobe.hooks import after_call, attached, before_call, observing, run_until
from normprobe.inputs.on_device import dtype_of, moved_to
from normprobe.model.tracing.recording import tensors
from normprobe.tensors import with_tensors


class _Found(BaseException):
    """A difference was found. A BaseException: no model code may swallow it."""


def first_difference(
    model: nn.Module, other: nn.Module, inputs: Mapping[str, Any], allowed: float
) -> str:
    """Which module of ``other`` returns something else on the same input; empty: none does.

    Before each module of a model runs, the other's of that name does. Modules inside a module come
    before it: where one differs and none inside it does, it is its own code. ``allowed`` is how far
    outputs may be apart, in parts of their length.
    """
    theirs = dict(other.named_modules())
    made: dict[str, list[Any]] = {}

    def run_other(name: str, _: nn.Module, args: Any, kwargs: Any) -> None:
        given = with_tensors((args, kwargs), partial(_as_taken, other))
        try:
            # In a context of its own: transformers keeps there which states a forward returns.
            output = Context().run(theirs[name], *given[0], **given[1])
        except Exception as error:
            output = error
        made.setdefault(name, []).append(output)

    def compare(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        far = _far(output, made[name].pop())
        if isinstance(far, str) or not far <= allowed:
            raise _Found(_told(name, module, theirs[name], far))

    handles = []
    for name, module in model.named_modules():
        if name in theirs:
            handles.append(before_call(module, partial(run_other, name)))
            handles.append(after_call(module, partial(compare, name), first=True))
    try:
        with observing(model), observing(other), attached(*handles):
            run_until(model, moved_to(model, inputs))
    except _Found as found:
        return str(found)
    return ""


def _as_taken(other: nn.Module, tensor: Tensor) -> Tensor:
    """A copy where the other model is, in its type."""
    weight = next(other.parameters())
    dtype = dtype_of(other) if tensor.is_floating_point() else None
    return tensor.to(weight.device, dtype, copy=True)


def _far(output: Any, theirs: Any) -> float | str:
    """How far two outputs are apart, in parts of their length, or in words."""
    if isinstance(theirs, Exception):
        return f"fails: {first_line(theirs)}"
    pairs = list(zip(tensors(output), tensors(theirs), strict=False))
    if any(a.shape != b.shape for a, b in pairs):
        return "returns another shape"
    apart, length = 0.0, 0.0
    for a, b in pairs:
        a, b = a.double(), b.to(a.device).double()
        apart += float(torch.where(a == b, 0.0, a - b).square().sum())
        length += float(a[a.isfinite()].square().sum())
    return float((apart / length) ** 0.5) if length else apart


def _told(name: str, module: nn.Module, other: nn.Module, far: float | str) -> str:
    how = far if isinstance(far, str) else f"returns something else, by {far:.2g} of its length"
    classes = " and ".join(dict.fromkeys(type(each).__name__ for each in (module, other)))
    held = dict(module.named_parameters())
    changed = [
        f"its {key} differs"
        for key, weight in other.named_parameters()
        if key not in held or not torch.equal(held[key].to(weight), weight)
    ]
    why = (*changed, "no weight of it differs, so its code or settings do")[0]
    which = f"{name or 'the model'} ({classes})"
    return f"Given the same input, {which} is the first that {how}: {why}."
