"""The table that `normprobe models` prints is what the code finds."""

import csv
import importlib.util
from pathlib import Path

import pytest
from support.tiny_models import ALL_TYPES

ROOT = Path(__file__).parents[3]


def generator():
    spec = importlib.util.spec_from_file_location("supported", ROOT / ".ci/supported_models.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow  # every type is built and traced
def test_the_table_is_what_the_code_finds() -> None:
    made = generator()
    table = {row["model_type"]: row for row in csv.DictReader(made.TABLE.open(encoding="utf-8"))}
    assert set(table) == set(ALL_TYPES)
    for row in made.rows():
        assert table[row["model_type"]] == row, "run `make models`"
