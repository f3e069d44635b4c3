"""The processes of one run, as ``torchrun`` and ``accelerate launch`` start them.

Each measures its share of the samples and adds parts to the same run folder. The main process
alone creates the folder, merges the parts, and writes and prints the tables.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from normprobe.errors import NormprobeError, first_line

if TYPE_CHECKING:
    from normprobe.runs.run_store import RunStore

# The others may wait for a process whose samples are longer, or that went down to batches of one.
_PATIENCE = timedelta(days=1)


@dataclass(frozen=True)
class Processes:
    """The processes of a run, seen from one of them."""

    state: Any  # accelerate's PartialState
    device: str  # what --device means for this one

    def shared(self, start: "Callable[[], RunStore]") -> "RunStore":
        """Let the main process start a run, and open it in the others."""
        from accelerate.utils import broadcast_object_list

        from normprobe.runs.run_folder import RunFolder

        if self.state.num_processes == 1:
            return start()
        failure, run = None, None
        if self.state.is_main_process:
            try:
                run = start()
            except NormprobeError as error:
                failure = error
            if run is not None and run.path is None:
                failure = NormprobeError(
                    f"{self.state.num_processes} processes need a folder to share their rows in",
                    "pass output=FOLDER",
                )
        with meeting():
            (path,) = broadcast_object_list([run and run.path and run.path.resolve()])
        if failure is not None:
            raise failure
        if path is None:
            raise SystemExit(1)
        return run or RunFolder.open(path, writer=self.state.process_index)


@contextmanager
def meeting() -> Iterator[None]:
    """Where the processes of a run wait for each other."""
    try:
        yield
    except RuntimeError as error:  # gloo has no class of its own; that of NCCL is a RuntimeError
        raise NormprobeError(
            f"the processes of this run have lost each other: {first_line(error)}",
            "see what the one that ended says; --resume goes on from what is measured",
        ) from error


def join_processes(device: str, device_map: str | None) -> Processes:
    """Meet the other processes of the run; on its own, a process is the main one."""
    from accelerate import PartialState

    from normprobe.model.load.device import pick_device

    # Left to itself, accelerate lets processes on a machine without a GPU know nothing of the rest.
    cpu = pick_device(device).type == "cpu"
    with meeting():
        state = PartialState(cpu=cpu, timeout=_PATIENCE)
    if state.num_processes == 1:
        return Processes(state, device)
    if device_map is not None or device not in ("auto", "cpu"):
        option = f"--device-map {device_map}" if device_map is not None else f"--device {device}"
        raise NormprobeError(
            f"{state.num_processes} processes cannot all use {option}",
            "start one process, or leave it out: each process takes a GPU of its own",
        )
    return Processes(state, str(state.device))
