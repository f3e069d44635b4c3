"""A model that is run by a function of the user's, in place of its own forward.

Some code has no forward that takes a prompt and a picture: its ``generate`` looks rows up, and
calls the language model with them. Whatever makes the layers run will do.
"""

from collections.abc import Callable, Mapping
from inspect import Parameter, getclosurevars, signature
from types import CellType, FunctionType
from typing import Any

from torch import nn

from normprobe.errors import NormprobeError
from normprobe.inputs.on_device import AS_GIVEN
from normprobe.model.tracing.recording import tensors
from normprobe.tensors import like


def run_by(model: nn.Module, forward: Callable[..., Any]) -> nn.Module:
    """The same model, same weights and modules, whose forward is a function.

    Args:
        model: stays as it is.
        forward: called as ``forward(model, **inputs)``; what it returns is not looked at, unless a
            trace has to find the parts.

    Raises:
        NormprobeError: it takes no model, or a hook on the whole model would run in its place.
    """
    model = getattr(type(model), "run_by_function", model)
    parameters = [*signature(forward).parameters.values()]
    positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    if not parameters or parameters[0].kind not in positional:
        raise NormprobeError(
            f"forward{signature(forward)} takes no model",
            "write it as forward(model, input_ids, pixel_values): the model, then its inputs",
        )
    hooked = {"_old_forward", "_hf_hook"} <= vars(model).keys()  # by accelerate: the layers stay so
    if "forward" in vars(model) and not hooked:
        raise NormprobeError(
            f"the forward of {type(model).__name__} is replaced already, such as by accelerate or "
            "torch.compile",
            "pass the model as it was, on one device, where it is run by a function",
        )
    takes_it = "use_cache" in signature(forward).parameters

    def run(_: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not takes_it:
            kwargs.pop("use_cache", None)
        modes = [(module, module.training) for module in model.modules()]
        try:
            return forward(model, *args, **kwargs)
        finally:  # some code runs a prompt in one pass while it trains alone
            for module, mode in modes:
                module.training = mode

    run.__signature__ = signature(forward)  # type: ignore[attr-defined]
    kind = type(model)
    # That of transformers says what its own forward does.
    room = __name__ if kind.__module__.startswith("transformers.") else kind.__module__
    own = {"forward": run, "__module__": room, "run_by_function": model}
    own[AS_GIVEN] = AS_GIVEN in vars(forward)
    same: nn.Module = object.__new__(type(kind.__name__, (kind,), own))
    same.__dict__ = model.__dict__
    if hooked:
        same.__dict__ = {name: value for name, value in vars(model).items() if name != "forward"}
    return same


def captured(function: Callable[..., Any]) -> tuple[dict[str, Any], Callable[..., Any]]:
    """The tensors that a function of a model holds, by their names, and itself with others.

    Args:
        function: such as ``lambda m: m.decode(m.see(pixels), ids)``, with ``pixels`` and ``ids`` of
            where it was written; none but these is looked for.

    Returns:
        ``{"pixels": ..., "ids": ...}``; and a forward, called as ``forward(model, **these)``.
    """
    if not isinstance(function, FunctionType):
        return {}, function
    found = getclosurevars(function)
    known = {**found.globals, **found.nonlocals}
    held = {name: value for name, value in known.items() if [*tensors(value)]}

    def forward(model: nn.Module, **inputs: Any) -> Any:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        given = {name: _as_held(held[name], value) for name, value in inputs.items()}
        own = tuple(CellType(given.get(name, cell.cell_contents)) for name, cell in cells)
        others = {name: given[name] for name in found.globals.keys() & given.keys()}
        again = FunctionType(
            function.__code__,
            {**function.__globals__, **others},
            function.__name__,
            function.__defaults__,
            own,
        )
        return again(model)

    return held, forward


def _as_held(held: Any, given: Any) -> Any:
    """A mapping in the kind that a function holds: a tokenizer's has attributes, too."""
    return like(held, given) if isinstance(held, Mapping) else given
