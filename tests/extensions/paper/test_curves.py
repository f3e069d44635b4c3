"""The lines of the paper's figures are the numbers of the runs."""

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support import made_tables
from support.flat import tidied
from support.made_runs import run_folder

from normprobe.errors import NormprobeError
from normprobe.extensions.paper.figures import curves_of_run, figure_layouts
from normprobe.runs.run_folder import RunFolder, RunStore


def with_intervals() -> pd.DataFrame:
    layers = made_tables.layers()
    for metric in ("norm", "cosine"):
        layers[f"{metric}_mean_ci_low"] = layers[f"{metric}_mean"] * 0.9
        layers[f"{metric}_mean_ci_high"] = layers[f"{metric}_mean"] * 1.01
    return layers


def store(layers: pd.DataFrame) -> RunStore:
    run = RunStore({"command": "layers"})
    run.write_table("layers", tidied("layers", layers))
    return run


def test_lines_are_the_means_of_layers_csv(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", "layers", layers=tidied("layers", with_intervals()))
    curves = curves_of_run(
        figure_layouts()["figure4"], "ALIGNED", RunFolder.open(folder), "a model", None
    )
    with (folder / "layers.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["mean"]]
    assert list(curves["panel"].unique()) == [p.title for p in figure_layouts()["figure4"].panels]
    for (metric, group), drawn in curves.groupby(["metric", "group"]):
        known = [row for row in rows if (row["group"], row["quantity"]) == (group, metric)]
        assert drawn["layer"].tolist() == [int(row["layer"]) for row in known]
        for column in ("mean", "low", "high"):
            expected = np.array([float(row[column]) for row in known])
            np.testing.assert_array_equal(drawn[column].to_numpy(np.float64), expected)
    assert set(curves["group"]) == {"visual", "text"}
    assert curves["run"].unique() == [str(folder)]
    assert curves["published"].isna().all()


def test_a_run_has_lines_in_its_panel_alone() -> None:
    layout = figure_layouts()["figure3"]
    name = "zai-org/GLM-4.1V-9B-Thinking"
    curves = curves_of_run(layout, name, store(with_intervals()), "a model", None)
    assert curves["panel"].unique() == ["(c) GLM4.1-V"]


def test_the_published_norm_is_that_at_the_decoder_input() -> None:
    published = pd.DataFrame(
        {
            "quantity": ["after the projector", "after the projector", "text embedding"],
            "statistic": ["std", "mean", "mean"],
            "published": [45.58, 39.96, 1.08],
        }
    )
    layout = figure_layouts()["figure1b"]
    curves = curves_of_run(layout, "", store(with_intervals()), "a model", published)
    known = curves.dropna(subset="published")
    assert known[["layer", "group", "published"]].to_numpy().tolist() == [[0, "visual", 39.96]]


@pytest.mark.parametrize(
    "layers",
    [
        with_intervals().query("group != 'visual'"),
        with_intervals().drop(columns="cosine_mean"),
        with_intervals().drop(columns="group"),
        with_intervals()[:0],
    ],
)
def test_a_run_without_the_numbers_is_refused(layers: pd.DataFrame) -> None:
    with pytest.raises(NormprobeError, match="no cosine of both visual and text") as refused:
        curves_of_run(
            figure_layouts()["figure2"], "AIDC-AI/Ovis2.5-9B", store(layers), "its name", None
        )
    assert "its name" in str(refused.value)
