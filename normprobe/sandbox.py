"""One bound on what a stranger's files ask for: memory, time and network.

A config, a tokenizer, a chat template may ask for more memory or time than anybody has, crash the
code that reads them, or name files of other repositories. No check of their fields tells all of
that. So what reads them runs in a helper first, a process that may come to any end: only what ended
well there is done here. The helper is a fork of this process where that has no other thread, else a
new Python: a fork beside threads has the locks that they hold, and not the threads.
"""

import atexit
import ctypes
import faulthandler
import gc
import logging
import os
import pickle
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from multiprocessing.spawn import get_executable
from queue import SimpleQueue
from subprocess import DEVNULL, PIPE, Popen
from threading import Lock, Thread, active_count
from typing import IO, Any, NoReturn, cast

import psutil

from normprobe.console_state import sigint_blocked
from normprobe.errors import NormprobeError, first_line

#: Seconds of computing that reading one stranger's file may take; it takes a few at most.
PATIENCE = 20
#: Bytes of memory that it may take; a large tokenizer takes half of it.
ROOM = 2**30
#: More of them for each pixel of the pictures that are read with it.
ROOM_A_PIXEL = 128

_LONGEST = 60  # seconds by the clock: a file may be a pipe, which takes no computing
_LOOK_AGAIN = 0.002  # seconds
_CONNECTS = 3  # an exit code
_DONE = b"\n"  # what the helper answers; any other line says why it could not begin

_AVOID = "do not use it: files of a sound checkpoint ask for a small part of that"
_BUSY = "try again while the machine is less busy; if it takes as long then, do not use it"
_ALONE = "do not use it, or put what it connects for into its own folder"
_BROKEN = "do not use it: no file of a sound checkpoint does that"
_APART = "put its class into a module that another process can import, not into a script"

#: What reads configs and makes inputs: it takes long to import.
READERS = (
    "normprobe.inputs.builder",
    "normprobe.model.checkpoint",
    "normprobe.versions",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.processing_auto",
)
_SERVE = "import sys; sys.path[:] = sys.argv[1:]; from normprobe.sandbox import serve; serve()"

_HELPER = "the process that tries a stranger's files first"
_RESTART = "try again; it is a Python of its own, started from sys.executable, and takes 0.5 GB"

_lock = Lock()  # one thread at a time tries something
_helper: "Popen[bytes] | _Fork | None" = None  # kept until it ends
_kept: Any = None  # what it was sent for ``kept``; in the helper, the same


def begin() -> None:
    """Start the helper, if none runs. A new Python imports what it needs meanwhile."""

    def get_ready() -> None:
        with _lock, suppress(NormprobeError):  # said again by what needs it
            _ready(READERS)

    if _can_fork():
        get_ready()
    else:
        Thread(target=get_ready, daemon=True).start()


def try_in_sandbox(
    act: Callable[[], object],
    what: str,
    *,
    keep: Any = None,
    modules: Sequence[str] = READERS,
    times: int = 1,
    pixels: int = 0,
) -> None:
    """Do something in the helper first, and refuse it where that ends badly.

    An exception is no bad end: this process will raise it, too.

    Args:
        act: what can be pickled.
        what: the same in words.
        keep: what ``kept`` is to return to it; sent once, for it may be large.
        modules: imported there before, without a bound.
        times: how many samples it reads.
        pixels: of all their pictures.
    """
    global _kept
    seconds, room = PATIENCE * times, ROOM * times + ROOM_A_PIXEL * pixels
    with _lock:
        helper = _ready(modules)
        if keep is not None and keep is not _kept:
            _kept = None
            _watched(helper, partial(_keep, keep), what, seconds, room)
            _kept = keep
        _watched(helper, act, what, seconds, room)


def kept_in_sandbox() -> Any:
    """What ``try_in_sandbox`` was given to keep; for what it calls."""
    return _kept


@contextmanager
def limited(*, times: int = 1, pixels: int = 0) -> Iterator[None]:
    """Bound a block of a process that may be killed for it, such as a worker.

    What takes too much memory raises whatever the code does then, such as ``MemoryError``; the
    process is killed where it takes too much time.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    room = ROOM * times + ROOM_A_PIXEL * pixels
    known = (soft, hard, psutil.Process().memory_info().vms + room)
    most = min(limit for limit in known if limit != resource.RLIM_INFINITY)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # of the kernel, whatever the process is doing
    signal.setitimer(signal.ITIMER_PROF, PATIENCE * times)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.setitimer(signal.ITIMER_PROF, 0)


def end_with_the_parent(*_: object) -> None:
    """Let the kernel kill this process when the thread that started it ends."""
    if sys.platform == "linux":
        set_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


# --- the process that asks ----------------------------------------------------------------------


def _can_fork() -> bool:
    """Whether no other thread of Python runs: those of BLAS hold no lock between two calls."""
    return sys.platform == "linux" and hasattr(os, "fork") and active_count() == 1


class _Fork:
    """A fork of this process that serves: what ``Popen`` has of a new one."""

    def __init__(self) -> None:
        (tasks, asked), (answered, answers) = os.pipe(), os.pipe()
        self.returncode: int | None = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads that are not Python's
            self.pid = os.fork()
        if self.pid == 0:
            try:
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who asks
                os.close(asked)  # so that its end is noticed
                os.dup2(tasks, 0)
                os.dup2(answers, 1)
                serve()
            finally:
                os._exit(1)
        os.close(tasks)
        os.close(answers)
        self.stdin, self.stdout = os.fdopen(asked, "wb", 0), os.fdopen(answered, "rb", 0)

    def poll(self) -> int | None:
        """The exit code, that of a signal negative; None: it runs."""
        return self._waited(os.WNOHANG)

    def wait(self) -> int:
        """The same, when it has ended."""
        return cast(int, self._waited(0))

    def kill(self) -> None:
        """End it at once."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _waited(self, how: int) -> int | None:
        if self.returncode is None:
            ended, status = self.pid, 0
            with suppress(ChildProcessError):  # who waits for any child has it
                ended, status = os.waitpid(self.pid, how)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode


def _ready(modules: Sequence[str]) -> "Popen[bytes] | _Fork":
    """The helper, where modules can be imported as they can here."""
    global _helper, _kept
    if _helper is None or _helper.poll() is not None:
        _helper, _kept = _Fork() if _can_fork() else _new_python(), None
    offline = getattr(sys.modules.get("huggingface_hub.constants"), "HF_HUB_OFFLINE", False)
    _watched(_helper, partial(_import, sys.path, modules, offline), _HELPER, None, 0)
    return _helper


def _new_python() -> Popen[bytes]:
    """A helper beside threads, which a fork would not survive."""
    started: Future[Popen[bytes]] = Future()
    Thread(target=_hold, args=(started,), daemon=True, name="normprobe helper").start()
    try:
        return started.result()
    except OSError as error:
        what = f"{_HELPER} cannot start: {first_line(error)}"
        raise NormprobeError(what, _RESTART) from error


def _hold(started: Future[Popen[bytes]]) -> None:
    """Start the helper, in a thread that lasts as long: it would end with any other."""
    command = [get_executable(), "-P", "-c", _SERVE, *map(str, sys.path)]
    try:
        with sigint_blocked():
            helper = Popen(command, bufsize=0, stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
    except BaseException as error:
        started.set_exception(error)
        return
    started.set_result(helper)
    helper.wait()


def _end() -> None:
    """End the helper."""
    global _helper
    if _helper is not None:
        _helper.kill()
        _helper.wait()
        _helper = None


def _forget() -> None:
    """In a fork of this process: the helper is not its own, and must see this process end."""
    global _helper, _lock
    if _helper is not None:
        for pipe in (_helper.stdin, _helper.stdout):
            if pipe is not None:
                pipe.close()
        _helper.returncode = 0  # it is not waited for
    _helper, _lock = None, Lock()


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _watched(
    helper: "Popen[bytes] | _Fork",
    act: Callable[[], object],
    what: str,
    seconds: float | None,
    room: int,
) -> None:
    """Let the helper do something; refuse it where it passes a bound. No seconds: no bound."""
    try:
        content = pickle.dumps((act, seconds and _LONGEST + seconds))
    except Exception as error:
        raise _not_apart(what, first_line(error)) from error
    size, computed, began = _memory(helper.pid), _computed(helper.pid), time.monotonic()
    passed = remedy = ""
    answer: Future[bytes] = Future()
    try:
        Thread(target=_ask, args=(helper, content, answer), daemon=True).start()
        while not passed and not wait([answer], _LOOK_AGAIN).done:
            if seconds is None:
                continue
            if _memory(helper.pid) - size > room:
                passed, remedy = f"{room / 2**30:.1f} GB of memory", _AVOID
            elif _computed(helper.pid) - computed > seconds:
                passed, remedy = f"{seconds:g} seconds of computing", _AVOID
            elif time.monotonic() - began > _LONGEST + seconds:
                passed, remedy = f"{_LONGEST + seconds:g} seconds by the clock", _BUSY
    finally:
        if not answer.done():  # it is too much, or this process is interrupted
            helper.kill()
            helper.wait()  # so that nothing more is asked of it
    if passed:
        raise NormprobeError(f"{what} takes more than {passed}", remedy)
    if answer.result() == _DONE:
        return
    if answer.result():
        raise _not_apart(what, answer.result().decode().strip())
    code = helper.wait()
    if code == _CONNECTS:
        fault = "connects to the network, where it needs files of its own checkpoint alone"
        raise NormprobeError(f"{what} {fault}", _ALONE)
    end = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    raise NormprobeError(f"{what} crashes ({end})", _BROKEN if seconds else _RESTART)


def _ask(helper: "Popen[bytes] | _Fork", content: bytes, answer: Future[bytes]) -> None:
    """Send what is to be done, and wait for the line that answers; empty: the helper ended."""
    line = b""
    with suppress(OSError):
        for part in (b"%d\n" % len(content), content):
            left = memoryview(part)
            while left:
                left = left[cast(IO[bytes], helper.stdin).write(left) :]
        line = cast(IO[bytes], helper.stdout).readline()
    answer.set_result(line)


def _not_apart(what: str, why: str) -> NormprobeError:
    return NormprobeError(f"{what} cannot be tried in another process first: {why}", _APART)


def _memory(process: int) -> int:
    """Bytes that a process holds, on Linux without mapped files; 0 where it has ended."""
    with suppress(psutil.Error):
        held = psutil.Process(process).memory_info()
        return int(held.rss - getattr(held, "shared", 0))
    return 0


def _computed(process: int) -> float:
    """Seconds that it has computed, likewise."""
    with suppress(psutil.Error):
        times = psutil.Process(process).cpu_times()
        return float(times.user + times.system)
    return 0.0


# --- the helper ---------------------------------------------------------------------------------


def serve() -> NoReturn:
    """Do what is asked, silently, until the process that asks has ended."""
    end_with_the_parent()
    tasks, answers = os.fdopen(os.dup(0), "rb"), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    sys.stdout = sys.stderr = open(nowhere, "w", closefd=False)  # noqa: SIM115
    waiting: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=_receive, args=(tasks, waiting), daemon=True).start()
    if sys.platform != "win32":
        import resource

        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # it ends what takes too long
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    logging.disable()
    faulthandler.disable()  # a crash is told by who asks
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # seconds of computing are those of one core
    sys.addaudithook(_refuse_network)
    while True:
        os.write(answers, _done(waiting.get()))
        gc.collect()  # what was done may have left much behind


def _receive(tasks: IO[bytes], waiting: "SimpleQueue[bytes]") -> None:
    """Read what is asked; end the helper when nobody is left to ask, whatever it is doing."""
    while size := tasks.readline():
        waiting.put(tasks.read(int(size)))
    os._exit(0)


def _done(content: bytes) -> bytes:
    """Do it; what to answer."""
    try:
        act, longest = pickle.loads(content)
    except BaseException as error:
        return f"{first_line(error)}\n".encode(errors="replace")
    if hasattr(signal, "setitimer"):  # who asks looks at the time, too, unless it is stopped
        signal.setitimer(signal.ITIMER_REAL, 2 * (longest or 0))
    with suppress(BaseException):
        act()
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)
    return _DONE


def _import(path: list[str], modules: Sequence[str], offline: bool) -> None:
    """Import modules, and leave them out of what ``gc.collect`` looks at from now on."""
    from huggingface_hub import constants

    sys.path[:] = path
    constants.HF_HUB_OFFLINE = offline
    hub: Any = sys.modules.get("transformers.utils.hub")
    if hasattr(hub, "_is_offline_mode"):  # of transformers 4.57
        hub._is_offline_mode = offline
    for module in modules:
        with suppress(Exception):  # said better by what needs it
            import_module(module)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    gc.freeze()


def _keep(what: Any) -> None:
    global _kept
    _kept = what


def _refuse_network(event: str, _: Any) -> None:
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        os._exit(_CONNECTS)
