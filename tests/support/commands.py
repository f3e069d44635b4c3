"""Commands of the application: in this process, in one that has the libraries, or in a new one.

To import the libraries takes longer than what most tests then do. They are imported once, by a
server that computes nothing and forks at every command. A fork of the tests' own process would
not do: torch keeps a pool of threads there, and makes another one in the fork, where the first
two threads that use it race for it.
"""

import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import reload
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner, Result

import normprobe
from normprobe.cli.app import app, main
from support.unrendered import save_placeholders


class Ended(NamedTuple):
    """What a command in a process of its own has left."""

    returncode: int | None
    stdout: str
    stderr: str


def invoke(*arguments: object) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


class Forked:
    """A command in a process that has the libraries in memory. Its figures are not rendered.

    Args:
        folder: its working folder.
        arguments: of the command line.
        environment: variables to set, also those that libraries read when they are imported.
    """

    def __init__(
        self, folder: Path, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self._streams = tempfile.NamedTemporaryFile(), tempfile.NamedTemporaryFile()  # noqa: SIM115
        self._process = _fork_server().Process(
            target=_command,
            args=(
                folder,
                arguments,
                {**os.environ, **environment},
                [stream.name for stream in self._streams],
            ),
        )
        self._process.start()

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """As ``kill`` of a shell."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """End it at once, if it has not ended."""
        self._process.kill()

    def wait(self, timeout: float) -> Ended:
        """Wait until it ends."""
        self._process.join(timeout)
        assert self._process.exitcode is not None, f"still runs after {timeout} s"
        texts = []
        for stream in self._streams:
            stream.seek(0)
            texts.append(stream.read().decode())
        return Ended(self._process.exitcode, *texts)

    def close(self) -> None:
        """End it, and forget what it wrote."""
        self._process.kill()
        self._process.join()
        for stream in self._streams:
            stream.close()


def spawned(
    folder: Path,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    unrendered: bool = False,
) -> Ended:
    """Run a command in a new process, as a user does; ``unrendered``: its figures stay empty."""
    tests = {"PYTHONPATH": str(Path(__file__).parents[1])} if unrendered else {}
    done = subprocess.run(
        [sys.executable, "-m", "support.unrendered" if unrendered else "normprobe", *arguments],
        cwd=folder,
        env={**os.environ, **tests, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def torchrun(folder: Path, *words: str) -> Ended:
    """Run a script or a module in two new processes; its store finds a free port of its own."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [sys.executable, *launcher, *words],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


@cache
def _fork_server() -> ForkServerContext:
    """Starts at the first command, and imports what a command may need."""
    context = get_context("forkserver")
    modules = [module.name for module in pkgutil.walk_packages(normprobe.__path__, "normprobe.")]
    modules.remove("normprobe.__main__")
    context.set_forkserver_preload([*modules, *_MODELS])
    return context


#: What transformers imports when it meets the specimen.
_MODELS = [
    f"transformers.models.{module}"
    for module in ("llava.modeling_llava", "clip.modeling_clip", "llama.modeling_llama")
]


def _command(
    folder: Path, arguments: Sequence[str], environment: Mapping[str, str], streams: Sequence[str]
) -> None:
    """What a process does."""
    import huggingface_hub
    from accelerate import PartialState

    os.chdir(folder)
    os.environ.clear()  # what the server began with
    os.environ.update(environment)
    if (coverage := sys.modules.get("coverage")) and (recorded := coverage.Coverage.current()):
        recorded.switch_context(os.environ["PYTEST_CURRENT_TEST"])  # not that of the server's start
    # Tests that a shell runs in the background ignore Ctrl-C; a user's command does not.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(streams, start=1):
        os.dup2(os.open(stream, os.O_WRONLY), number)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    save_placeholders(pytest.MonkeyPatch())
    sys.argv = ["normprobe", *arguments]
    PartialState._shared_state.clear()  # accelerate reads the environment once
    if any(name.startswith("HF_") for name in environment):
        reload(huggingface_hub.constants)
        huggingface_hub.hf_api.api.endpoint = huggingface_hub.constants.ENDPOINT
    main()
