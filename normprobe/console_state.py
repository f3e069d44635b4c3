"""How this process meets its user: whether in colour, and what Ctrl-C does."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


def has_colour() -> bool:
    """Not where ``NO_COLOR`` is set: then nothing is bold either (https://no-color.org)."""
    return not os.environ.get("NO_COLOR")


_Handler = Callable[[int, FrameType | None], Any] | int


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def interrupting() -> Iterator[None]:
    """Let Ctrl-C raise ``KeyboardInterrupt`` inside the block of a command that it just ended."""
    with _on_ctrl_c(_interrupt, instead_of=signal.SIG_DFL):
        yield


@contextmanager
def just_ending() -> Iterator[None]:
    """Let Ctrl-C end a command without a word inside the block.

    A library may drop a ``KeyboardInterrupt`` that it meets while it is imported, or turn it into
    an error of its own.
    """
    with _on_ctrl_c(signal.SIG_DFL, instead_of=_interrupt):
        yield


@contextmanager
def sigint_blocked() -> Iterator[None]:
    """Let processes that start inside the block never hear Ctrl-C: who started them ends them."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _on_ctrl_c(does: _Handler, *, instead_of: _Handler) -> Iterator[None]:
    """Change what Ctrl-C does where it is this package's: others keep what they chose."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not instead_of:
        yield
        return
    signal.signal(signal.SIGINT, does)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, instead_of)
