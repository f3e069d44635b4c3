"""One bound on what a stranger's files ask for: memory, time and network.

A config, a tokenizer, a chat template may ask for more memory or time than anybody has, crash the
code that reads them, or name files of other repositories. No check of their fields tells all of
that. So what reads them runs in a copy of this process first, which may come to any end: only what
ended well there is done here. On Linux alone, where a process can be forked.
"""

import faulthandler
import gc
import logging
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from normprobe.errors import NormprobeError

#: Seconds of computing that reading one stranger's file may take; it takes a few at most.
PATIENCE = 20
#: Bytes of memory that it may take; a large tokenizer takes half of it.
ROOM = 2**30
#: More of them for each pixel of the pictures that are read with it.
ROOM_A_PIXEL = 128

_LONGEST = 60  # seconds by the clock: a file may be a pipe, which takes no computing
_LOOK_AGAIN = 0.002  # seconds
_CONNECTS = 3  # an exit code
_REMEDY = "do not use it; if you trust all of its files, --trust-remote-code lifts the bounds"


def rehearse(act: Callable[[], object], what: str, *, times: int = 1, pixels: int = 0) -> None:
    """Do something in a forked process first, and refuse it where that ends badly.

    An exception is no bad end: this process will raise it, too.
    """
    if sys.platform != "linux":
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: they do not come along
        size = _memory("self")  # before the fork: the child may have taken its fill when we look
        child = os.fork()
    if child == 0:
        _perform(act, PATIENCE * times)
    try:
        room = ROOM * times + ROOM_A_PIXEL * pixels
        fault = _fault(child, PATIENCE * times, size, room)
    except BaseException:
        _kill(child)
        raise
    if fault:
        raise NormprobeError(f"{what} {fault}", _REMEDY)


@contextmanager
def limited(*, times: int = 1, pixels: int = 0) -> Iterator[None]:
    """Bound a block of a process that may be killed for it, such as a worker.

    What takes too much memory raises whatever the code does then, such as ``MemoryError``; the
    process is killed where it takes too much time.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    room = ROOM * times + ROOM_A_PIXEL * pixels
    known = (soft, hard, _pages("self")[0] + room)
    most = min(limit for limit in known if limit != resource.RLIM_INFINITY)
    _end_after(PATIENCE * times)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.setitimer(signal.ITIMER_PROF, 0)


def _perform(act: Callable[[], object], seconds: float) -> NoReturn:
    """Do it, silently, and end the process: nothing of the parent may be written or taken down."""
    try:
        import resource

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        sys.stdout = sys.stderr = os.fdopen(1, "w")
        logging.disable()
        faulthandler.disable()
        gc.freeze()  # a collection would copy every page that the processes share
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # threads do not survive a fork
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)
        sys.addaudithook(_refuse_network)
        _end_after(seconds)
        act()
    except BaseException:
        pass
    finally:
        os._exit(0)


def _refuse_network(event: str, _: Any) -> None:
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        os._exit(_CONNECTS)


def _end_after(seconds: float) -> None:
    """Let the kernel end this process when it has computed so long, whatever it is doing."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _fault(child: int, seconds: float, size: int, room: int) -> str:
    """Wait for the process of that size; what is wrong with its end, empty: nothing."""
    began = time.monotonic()
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if _memory(child) - size > room:
            _kill(child)
            return f"takes more than {room / 2**30:.1f} GB of memory"
        if time.monotonic() - began > _LONGEST + seconds:
            _kill(child)
            return f"takes more than {_LONGEST + seconds:g} seconds"
        time.sleep(_LOOK_AGAIN)
    code = os.waitstatus_to_exitcode(status)
    if code == _CONNECTS:
        return "connects to the network, where it needs files of its own checkpoint alone"
    if code == -signal.SIGPROF:
        return f"takes more than {seconds:g} seconds"
    return f"crashes ({signal.Signals(-code).name})" if code < 0 else ""


def _kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _memory(process: int | str) -> int:
    """Bytes that a process holds of its own, without mapped files."""
    _, resident, shared = _pages(process)
    return resident - shared


def _pages(process: int | str) -> tuple[int, int, int]:
    """Bytes of a process: of its addresses, in memory, of these shared; 0 where it has ended."""
    try:
        numbers = Path(f"/proc/{process}/statm").read_text().split()
    except OSError:
        return 0, 0, 0
    size = os.sysconf("SC_PAGE_SIZE")
    return int(numbers[0]) * size, int(numbers[1]) * size, int(numbers[2]) * size
