"""Run folders of strangers: whatever they hold, reports and comparisons answer, soon."""

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import made_tables
from support.damage import Canary, mutated, mutated_json, outcomes
from support.figure_cases import write_images
from support.made_runs import run_folder

from normprobe.run import compare, load_run, page_of

TABLES: dict[str, Callable[[], Any]] = {
    "layers": made_tables.layers,
    "interface": made_tables.interface,
}


def read_all(folder: Path, other: Path) -> None:
    run = load_run(folder)
    page_of([run])
    compare([run, other])


def check(name: str, root: Path, cases: int) -> Counter[str]:
    """Damage ``run.json``, or a table of that name."""
    canary = Canary(root)
    command = name if name in TABLES else "layers"
    record = {"model": "org/a", "data": "sample", "argv": ["normprobe", command], "options": {}}
    folder = run_folder(root / "one", command, record=record, **{command: TABLES[command]()})
    other = Path(shutil.copytree(folder, root / "other"))
    file = folder / ("run.json" if name == "run" else f"{name}.csv")

    def read() -> None:
        read_all(folder, other)

    read()
    found = outcomes(file, read, cases, mutated_json if name == "run" else mutated)
    canary.assert_untouched()
    return found


@pytest.mark.parametrize("name", ["run", *TABLES])
def test_damaged_run_folders(name: str, tmp_path: Path) -> None:
    assert check(name, tmp_path, 10)["refused"] >= 1


def check_maps(root: Path, cases: int) -> Counter[str]:
    """Damage the table that the figures of maps are drawn from."""
    canary = Canary(root)
    small = made_tables.norm_map("stage", ["vision_encoder"], pictures=1, rows=2)
    folder = run_folder(root / "one", "interface", interface=made_tables.interface(), map=small)
    write_images(folder)

    def read() -> None:
        load_run(folder).figures()

    read()
    found = outcomes(folder / "map.csv", read, cases, mutated)
    canary.assert_untouched()
    return found


@pytest.mark.slow
def test_many_damaged_maps(tmp_path: Path) -> None:
    assert check_maps(tmp_path, 60)["refused"] >= 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run", *TABLES])
def test_many_damaged_run_folders(name: str, tmp_path: Path) -> None:
    assert check(name, tmp_path, 40)["refused"] >= 8
