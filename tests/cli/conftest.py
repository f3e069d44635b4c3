"""Running commands as a user does, in this process or in one of its own."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.commands import Ended, Forked, invoke
from support.flat import flat
from support.unrendered import save_placeholders
from torch.distributed import TCPStore
from typer.testing import Result

from normprobe.tidy import COUNTS, ESTIMATES, QUANTILES, QUANTITY


@pytest.fixture
def rendered() -> None:
    """For a test whose figures are rendered."""


@pytest.fixture(autouse=True)
def figures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are built, but not rendered unless a test asks for it: it takes most of a run."""
    if "rendered" not in request.fixturenames:
        save_placeholders(monkeypatch)


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``measured("layers", "-n", "4")``: a finished run, made once. Tests only read it."""
    root = tmp_path_factory.mktemp("measured")

    @cache
    def folder(*arguments: str) -> Path:
        out = root / str(folder.cache_info().currsize)
        with pytest.MonkeyPatch.context() as patch:
            save_placeholders(patch)
            result = invoke(*arguments, "-o", out)
        assert result.exit_code == 0, result.output
        return out

    return folder


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run a command in an empty working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NORMPROBE_DEBUG", raising=False)
    return invoke


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Forked]]:
    """Start a command as a process of its own, in an empty working folder."""
    started: list[Forked] = []

    def fork(*arguments: str, **environment: str) -> Forked:
        started.append(Forked(tmp_path, arguments, environment))
        return started[-1]

    yield fork
    for process in started:
        process.close()


@pytest.fixture
def start_two(start: Callable[..., Forked]) -> Callable[..., list[Forked]]:
    """Start two processes of one run, with the environment that ``torchrun`` gives them."""
    kept: list[TCPStore] = []

    def forks(*arguments: str) -> list[Forked]:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        kept.append(store)
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
        meeting["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # the store is open: no port can be lost
        sizes = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        ranks = ({"RANK": rank, "LOCAL_RANK": rank} for rank in "01")
        return [start(*arguments, **meeting, **sizes, **rank) for rank in ranks]

    return forks


def assert_two_lines(result: Result | Ended, *words: str) -> None:
    """A known failure: exit code 1, what is wrong, what to do, no traceback.

    What the command reads, and which bridges it crosses, may have been said before.
    """
    code = result.returncode if isinstance(result, Ended) else result.exit_code
    assert code == 1, result.stdout + result.stderr
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    lines = [line for line in lines if not line.startswith(("reads ", "fetches ", "note: "))]
    assert len(lines) == 2, result.stderr
    assert lines[0].startswith("error: ")
    for word in words:
        assert word in result.stderr, result.stderr


def assert_no_model_library(*arguments: object) -> None:
    """A command that ends well and imports neither torch nor transformers: in a new process."""
    code = (
        "import sys; from normprobe.cli.app import app\n"
        "try: app(sys.argv[1:])\n"
        "except SystemExit as end: assert end.code in (None, 0), end.code\n"
        "assert not {'torch', 'transformers'} & sys.modules.keys()"
    )
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr


def assert_same_bytes(found: Path, expected: Path, *names: str) -> None:
    """The same tables to the last byte."""
    for name in names or ("layers", "theory", "assumptions"):
        files = [(folder / f"{name}.csv").read_bytes() for folder in (found, expected)]
        assert files[0] == files[1], name


def assert_same_tables(found: Path, expected: Path, *names: str) -> None:
    """Equal tables, but for rounding: 1e-5, and 1e-6 of the column's scale.

    Quantiles may each be off by 1 %, those of a cosine by 0.001.
    """
    for name in names or ("layers", "theory"):
        a, b = (pd.read_csv(folder / f"{name}.csv") for folder in (found, expected))
        if QUANTITY in b:
            exact = [column for column in b if column not in ESTIMATES or column in COUNTS]
            pd.testing.assert_frame_equal(a[exact], b[exact])
            a, b = flat(a), flat(b)
        assert list(a.columns) == list(b.columns)
        assert len(a) == len(b)
        for column in a:
            if not pd.api.types.is_numeric_dtype(b[column]):
                assert a[column].tolist() == b[column].tolist(), column
                continue
            metric, _, kind = column.rpartition("_")
            rtol, atol = 1e-5, 1e-6 * np.nan_to_num(b[column].abs().max())
            if kind in QUANTILES:
                rtol, atol = (0.0, 0.002) if metric == "cosine" else (0.02, atol)
            np.testing.assert_allclose(
                a[column], b[column], rtol=rtol, atol=atol, err_msg=f"{name}.csv {column}"
            )
