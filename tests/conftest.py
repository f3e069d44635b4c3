"""Settings that must hold before transformers is imported, in every test."""

import gc
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from unittest.mock import patch
from zlib import crc32

import pytest

#: Written by `make fast-set`.
SLOW_TESTS = Path(__file__).parent / "slow_tests.txt"
FURTHER_CASES = Path(__file__).parent / "further_cases.txt"

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"


def pytest_configure(config: pytest.Config) -> None:
    """Prepare the libraries, but not where pytest-xdist only hands out tests: importing is slow."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return
    import torch
    import transformers
    from support.torchvision_operators import define

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    define()
    # Most of what tests make forms no cycle: to look for some takes a fourteenth of all.
    gc.set_threshold(100_000, 50, 100)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as slow what the choice of fast tests leaves out: functions, but for some cases.

    Of functions whose cases take long, a share runs where one machine runs all (`.ci/run`).
    """
    if config.pluginmanager.hasplugin("fast_set"):  # it chooses among all
        return
    lines = SLOW_TESTS.read_text(encoding="utf-8").splitlines()
    slow = {line for line in lines if not line.startswith("+ ")}
    kept = {line.removeprefix("+ ") for line in lines} - slow
    shares = dict(line.split()[::-1] for line in FURTHER_CASES.read_text("utf-8").splitlines())
    met = set()
    for item in items:
        function, _, case = item.nodeid.partition("[")
        if function in slow and item.nodeid not in kept:
            item.add_marker(pytest.mark.slow)
        if function in shares and item.get_closest_marker("slow"):
            # By its name: functions of the same cases run the same of them, and the first in any
            # case; 0: none runs.
            share = int(shares[function])
            if not share or (function in met and crc32(case.encode()) % share):
                item.add_marker(pytest.mark.further)
            met.add(function)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """The same random tensors in every run, whatever ran before in the same process."""
    import torch

    torch.manual_seed(0)


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are built, but not rendered: that would take most of a small run."""
    from support.unrendered import save_placeholders

    save_placeholders(monkeypatch)


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """``repository(family)``: code and weights, written once; its code is cached beside it."""
    from support.remote_code import PACKAGES, make_repository
    from transformers import dynamic_module_utils

    root = tmp_path_factory.mktemp("remote-code")
    # Tests before may have imported code from the cache that there was.
    for name in [*sys.modules]:
        if name.partition(".")[0] == "transformers_modules":
            del sys.modules[name]
    others = [place for place in sys.path if place != dynamic_module_utils.HF_MODULES_CACHE]
    with (
        patch.object(dynamic_module_utils, "HF_MODULES_CACHE", str(root / "modules")),
        patch.object(sys, "path", [*others, str(root / PACKAGES)]),
    ):
        yield cache(lambda family: make_repository(family, root / family))
