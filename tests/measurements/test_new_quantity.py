"""A new number is one function in one file, and everything follows from it."""

from pathlib import Path

import numpy as np
import pytest
from support.printed import printed
from support.read_page import drawn

from normprobe import Probe, Run, compare, load_run
from normprobe.tidy import ESTIMATES, select

#: The throw-away number, whole.
FILES = {
    "my.py": """
from normprobe import per_token

@per_token(words="share of dimensions near zero", unit="share")
def sparsity(x, h):
    return (h.abs() < 0.01 * h.abs().amax(-1, keepdim=True)).float().mean(-1)
""",
}


def measured(folder: Path, batch_size: int) -> Run:
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    also = [f"{folder}/my.py:sparsity"]
    out = folder / f"run{batch_size}"
    return Probe("specimen", dtype="float32").layers(
        "sample", limit=3, batch_size=batch_size, also=also, output=out
    )


@pytest.mark.usefixtures("unrendered")
def test_it_has_columns_intervals_a_table_a_figure_a_chart_and_is_compared(tmp_path: Path) -> None:
    run, other = measured(tmp_path, 1), measured(tmp_path, 2)
    table = select(run.table, "sparsity").set_index(["layer", "group"])
    assert len(table) == len(select(run.table, "norm"))
    assert table["mean"].between(0, 1).all()
    assert (table["low"] <= table["mean"]).all() and (table["mean"] <= table["high"]).all()
    assert "hare of dimensions near zero" in " ".join(printed(run.show).split())
    assert "own" in run.figures()
    series = [
        line["y"]
        for kind in ("curves", "panels")
        for place in drawn(run.page(), kind)
        for chart in place
        if "share of dimensions near zero" in chart["label"]
        for line in chart["series"]
        if line["name"] == "visual"
    ]
    visual = table.xs("visual", level="group")["mean"]
    np.testing.assert_allclose(series[0], visual, rtol=1e-4)
    beside = select(other.table, "sparsity").set_index(["layer", "group"])
    numbers = [name for name in ESTIMATES if table[name].notna().any()]
    assert {"mean", "low", "high", "std", "sample_mean", "sample_std", "tokens"} <= {*numbers}
    assert beside.index.equals(table.index)
    np.testing.assert_allclose(
        beside[numbers].astype(float), table[numbers].astype(float), rtol=1e-5
    )
    assert run.path is not None
    both = compare([load_run(run.path), other], ["one", "two"])
    compared = select(both.tables["compare"], "sparsity")
    assert len(compared) == 2 * len(table)
