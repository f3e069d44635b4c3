"""Two writers at many timings, and processes that are killed at any moment: no number moves."""

import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.conftest import assert_same_bytes, assert_two_lines
from support.commands import Forked

Start = Callable[..., Forked]
StartTwo = Callable[..., list[Forked]]
Measured = Callable[..., Path]

LAYERS = ("layers", "--dtype", "float32", "--device", "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("timing", range(0, 20, 4))
def test_of_two_processes_on_one_folder_one_wins(
    timing: int, start: Start, measured: Measured, tmp_path: Path
) -> None:
    """From the same moment to one at which the first has about ended."""
    layers = (*LAYERS, "-n", "6")
    first = start(*layers, "-o", "out")
    time.sleep(timing * 0.05)
    both = first, start(*layers, "-o", "out")
    refused, won = sorted((fork.wait(timeout=60) for fork in both), key=lambda end: -end.returncode)
    assert won.returncode == 0, won.stderr
    assert_two_lines(refused, "out", "--output")
    assert_same_bytes(tmp_path / "out", measured(*layers))
    assert json.loads((tmp_path / "out/run.json").read_text())["status"] == "complete"


@pytest.mark.slow
@pytest.mark.parametrize(("size", "processes"), [(1, 2), (4, 1), (8, 2)])
def test_a_run_that_is_killed_five_times_has_the_same_bytes(
    size: int,
    processes: int,
    start: Start,
    start_two: StartTwo,
    measured: Measured,
    tmp_path: Path,
) -> None:
    layers = (*LAYERS, "-n", "24", "-b", str(size))
    moments = random.Random(10 * size + processes)

    def started() -> list[Forked]:
        again = (*layers, "-o", "out", "--resume")
        return start_two(*again) if processes == 2 else [start(*again)]

    for _ in range(5):
        forks = started()
        time.sleep(moments.uniform(0.1, 1.2))
        for fork in moments.sample(forks, k=processes):
            fork.kill()
        for fork in forks:
            fork.wait(timeout=60)
    for fork in started():
        ended = fork.wait(timeout=60)
        assert ended.returncode == 0, ended.stderr
    assert_same_bytes(tmp_path / "out", measured(*layers))
    assert json.loads((tmp_path / "out/run.json").read_text())["status"] == "complete"
