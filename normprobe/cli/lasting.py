"""Imports that live as long as the command."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from normprobe.console_state import just_ending


@contextmanager
def lasting_imports() -> Iterator[None]:
    """Import torch and what needs it, inside the block, out of the garbage collector's sight.

    They make 700,000 objects, and none goes before the command ends. Python would walk them all
    many times over: while it imports, while the command works and once more at the end. That is a
    fifth of the time of a short command.
    """
    if "torch" in sys.modules:
        yield
        return
    gc.disable()
    try:
        with just_ending():
            yield
        gc.freeze()
    finally:
        gc.enable()
