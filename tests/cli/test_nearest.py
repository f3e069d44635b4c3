"""``normprobe nearest`` from the command line."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import Result


@pytest.mark.slow
def test_words_are_told_layer_by_layer(run: Callable[..., Result], tmp_path: Path) -> None:
    result = run("nearest", "-n", "4", "-o", "out")
    assert result.exit_code == 0, result.output
    assert all(len(line.rstrip()) <= 80 for line in result.stdout.splitlines())
    assert "Visual tokens and their nearest words (4 samples)" in result.stdout
    assert "Layer 0: " in result.stdout
    table = pd.read_csv(tmp_path / "out/nearest.csv")
    ratios = table[table["quantity"] == "to_chance"]
    assert ratios["layer"].tolist() == [0, 1, 2, 3, 4, 5, 6]
    words = pd.read_csv(tmp_path / "out/nearest_words.csv")
    assert words.groupby("layer")["share"].sum().max() <= 1
    before = (tmp_path / "out/nearest.csv").read_bytes()
    assert run("nearest", "-n", 4, "-o", "out", "--resume").exit_code == 0
    assert (tmp_path / "out/nearest.csv").read_bytes() == before
    assert run("report", "out", "-o", "page.html").exit_code == 0
    assert "The nearest words" in (tmp_path / "page.html").read_text("utf-8")
