"""Beside a training, and never in its way: hooks that copies lose, failures that end nothing."""

import sys
import weakref
from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, cast

import torch
from torch.optim import Optimizer

from normprobe.errors import NormprobeError

if TYPE_CHECKING:
    from normprobe.extensions.training.watch import Watch

_P = ParamSpec("_P")


class Stopped(NormprobeError):
    """An alarm ends the training, as was asked for."""


def never_fatal(method: Callable[_P, None]) -> Callable[_P, None]:
    """What fails in it ends the measuring, and not the training; with nothing left to do there."""

    @wraps(method)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> None:
        watch = cast("Watch", args[0])
        if watch.gave_up and not watch.with_others:
            return
        try:
            method(*args, **kwargs)
        except Stopped:
            raise
        except Exception as error:  # a full disk, a model's code, a fault of ours
            watch.give_up(error)

    return called


class Hook:
    """A hook of one model: a copy or a saved file of the model has one that does nothing.

    It is not compiled: torch.compile ends a graph where a hook is called.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        disable: Callable[[Any], Any] = torch.compiler.disable
        self._function = disable(function)

    def __call__(self, *args: Any) -> Any:
        """As the function."""
        return self._function(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        # Of the standard library, as a saved model is loaded where we are not.
        return partial, (sys.audit, "normprobe.hook_of_a_copy")


def before_step(
    read: "weakref.WeakMethod[Callable[..., None]]", optimizer: Optimizer, args: Any, kwargs: Any
) -> Any:
    """Read the gradients; where a closure makes them inside of the step, behind its first call."""
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    if closure is None:
        call(read, optimizer)
        return None
    called = list[bool]()

    def then_read() -> Any:
        loss = closure()
        if not called:
            called.append(True)
            call(read, optimizer)
        return loss

    if "closure" in kwargs:
        return args, {**kwargs, "closure": then_read}
    return (optimizer, then_read, *args[2:]), kwargs


def call(method: "weakref.WeakMethod[Callable[..., None]]", *args: Any, **kwargs: Any) -> None:
    """Call a method of what is still there."""
    if (alive := method()) is not None:
        alive(*args, **kwargs)
