"""``layers --massive``: the same bytes however the run goes."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from cli.conftest import assert_same_bytes, assert_two_lines
from typer.testing import Result

from normprobe.measurements.layers import measure

Run = Callable[..., Result]
LAYERS = ("layers", "--dtype", "float32", "-n", "4")
MASSIVE = (*LAYERS, "--also", "massive")


def interrupted(run: Run, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    """A run that ends in its third forward."""
    real, calls = measure.observe, iter(range(10))

    def observe(*given: object) -> measure.SeenLayers:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(measure, "observe", observe)
        assert run(*arguments).exit_code == 130


@pytest.mark.slow
def test_resumed_runs_and_batches_give_the_same(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(*MASSIVE, "-o", "whole")
    assert whole.exit_code == 0, whole.output
    assert "No token is massive: no magnitude is above 13." in " ".join(whole.output.split())
    interrupted(run, monkeypatch, *MASSIVE, "-o", "cut")
    assert run(*MASSIVE, "-o", "cut", "--resume").exit_code == 0
    assert_same_bytes(tmp_path / "cut", tmp_path / "whole")
    for name in ("massive.csv", "dimensions.csv"):
        found = (tmp_path / f"cut/{name}").read_bytes()
        assert found == (tmp_path / f"whole/{name}").read_bytes()
    assert (tmp_path / "whole/plots/massive.pdf").is_file()
    # The samples of a batch change each other's last digits, with this option or without.
    assert run(*MASSIVE, "-b", "4", "-o", "batch").exit_code == 0
    for name in ("massive.csv", "dimensions.csv"):
        alone, together = (pd.read_csv(tmp_path / folder / name) for folder in ("whole", "batch"))
        pd.testing.assert_frame_equal(together, alone, rtol=1e-3, atol=1e-4)


def test_a_run_with_the_option_does_not_go_on_without_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(run, monkeypatch, *MASSIVE, "-o", "out")
    assert_two_lines(run(*LAYERS, "-o", "out", "--resume"), "massive")
