"""What bridges share: how one takes a function's place, and where is noted that it was needed."""

from collections.abc import Callable
from functools import wraps
from inspect import getsource, signature
from typing import Any

#: Marks a class that has its bridges, and holds the names of those it needed when it came.
BRIDGED = "_normprobe_bridged"

#: Where bridges are noted: the list of the innermost ``foreign_code``.
noting: list[list[str]] = []


def note_bridge(name: str) -> None:
    """Say once, to the innermost ``foreign_code``, that a bridge was needed."""
    if noting and name not in noting[-1]:
        noting[-1].append(name)


def takes_keywords(function: Any) -> bool:
    """Whether a function takes keywords of any name."""
    return any(p.kind is p.VAR_KEYWORD for p in signature(function).parameters.values())


def source_of(written: Any) -> str:
    """The text of a class, a function or a module; empty where no file has it."""
    try:
        return getsource(written)
    except (OSError, TypeError):
        return ""


def in_place_of(holder: Any, name: str) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: the function takes the place of one that a holder has by this name, once."""
    before = getattr(holder, name)

    def put(function: Callable[..., Any]) -> Any:
        if before.__module__ == __name__:  # a bridge of before
            return before
        bridged = wraps(before)(function)
        bridged.__module__ = __name__
        setattr(holder, name, bridged)
        return bridged

    return put
