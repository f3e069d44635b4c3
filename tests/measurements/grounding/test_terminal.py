"""What a terminal shows of ``grounding``."""

import io

import numpy as np
import pandas as pd
import pytest
from normprobe.measurements.grounding.terminal import show
from support import made_tables

from normprobe.report.terminal import terminal_console
from normprobe.runs.run_folder import RunStore


def shown(table: pd.DataFrame, **tables: pd.DataFrame) -> list[str]:
    run = RunStore({})
    for name, more in {"grounding": table, **tables}.items():
        run.write_table(name, more)
    file = io.StringIO()
    show(run, terminal_console(file, 80))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_gaps_and_intervals_stand_in_eighty_columns() -> None:
    lines = shown(made_tables.grounding())
    assert max(map(len, lines)) <= 80
    assert "\u2026" not in "".join(lines)
    row = next(line.split() for line in lines if line.split()[:1] == ["2"])
    assert row == ["2", "0.320", "0.0200", "[0.010,", "0.030]", "0.700", "0.400", "[0.20,", "0.60]"]
    assert any("14 samples" in line for line in lines)


@pytest.mark.parametrize("layers", [33, 80])
def test_a_deep_model_fits_a_screen(layers: int) -> None:
    lines = shown(made_tables.grounding(layers))
    assert len(lines) < 60
    assert any("grounding.csv has all" in line for line in lines)


def test_what_is_missing_is_said() -> None:
    left_out = pd.DataFrame({"sample_id": ["a", "b"], "reason": ["x", "y"]})
    lines = shown(made_tables.grounding().assign(score_gap=np.nan), left_out=left_out)
    assert "2 samples left out: left_out.csv says why." in lines
    assert any(line.startswith("No scores") for line in lines)
