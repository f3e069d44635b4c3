"""Ctrl-C while a run folder holds what was measured."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from normprobe.runs.run_folder import RunFolder
from normprobe.runs.run_store import RunStore


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with the run folder that ``--resume`` goes on with."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self.folder = folder


@contextmanager
def naming_the_run(run: RunStore) -> Iterator[None]:
    """Let Ctrl-C inside the block tell which run folder it leaves behind, open to others."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if not isinstance(run, RunFolder) or not run.path.is_dir():
            raise
        run.unlock()  # the interpreter may live on and resume it
        raise Interrupted(run.path) from interrupt
