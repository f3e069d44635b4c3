"""An end for code of a stranger that may have none, such as a template."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from normprobe.errors import NormprobeError


@contextmanager
def stopped_after(seconds: float, failure: NormprobeError) -> Iterator[None]:
    """Stop the block when it takes too long. Only in the main thread of a system with signals.

    Args:
        seconds: that it may take.
        failure: what is raised then.

    Raises:
        NormprobeError: ``failure``.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(*_: object) -> None:
        raise failure

    handler = signal.signal(signal.SIGALRM, stop)
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, left)
