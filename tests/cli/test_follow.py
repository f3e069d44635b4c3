"""``normprobe follow`` from the command line."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import Result


@pytest.mark.slow
def test_tokens_are_followed_layer_by_layer(run: Callable[..., Result], tmp_path: Path) -> None:
    result = run("follow", "-n", "4", "-o", "out")
    assert result.exit_code == 0, result.output
    assert all(len(line.rstrip()) <= 80 for line in result.stdout.splitlines())
    assert "Visual tokens in the decoder (4 samples)" in result.stdout
    table = pd.read_csv(tmp_path / "out/follow.csv")
    ratios = table[(table["quantity"] == "attention_to_quiet") & (table["group"] == "loudest_5")]
    assert ratios["layer"].tolist() == [1, 2, 3, 4, 5, 6]
    assert ratios[["band_low", "band_high"]].notna().all(axis=None)
    before = (tmp_path / "out/follow.csv").read_bytes()
    assert run("follow", "-n", 4, "-o", "out", "--resume").exit_code == 0
    assert (tmp_path / "out/follow.csv").read_bytes() == before
