"""Runs side by side, as a user asks for it: files, order, refusals, and no model loaded."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from cli.conftest import assert_no_model_library, assert_two_lines
from support import made_tables
from support.flat import tidied
from support.read_latex import read_latex
from typer.testing import Result

from normprobe.runs.run_folder import RunFolder
from normprobe.schema import SCHEMA_VERSION
from normprobe.tidy import select

Run = Callable[..., Result]

TABLES = {
    "layers": made_tables.layers(),
    "interface": made_tables.interface(),
    "embeddings": made_tables.embeddings("text", "visual"),
}


def make_run(path: Path, command: str = "layers", scale: float = 1.0, **facts: object) -> Path:
    record = {"schema_version": SCHEMA_VERSION, "command": command, "model": path.name, **facts}
    run = RunFolder.create(path, overwrite=False, record=record)
    table = TABLES[command].copy()
    visual = table["group" if command != "embeddings" else "table"] == "visual"
    table.loc[visual, [name for name in table if name.startswith("norm_")]] *= scale
    run.write_table(command, tidied(command, table))
    run.finish()
    return path


@pytest.mark.parametrize("command", TABLES)
def test_models_side_by_side(command: str, run: Run, tmp_path: Path) -> None:
    folders = [make_run(tmp_path / name, command, scale) for name, scale in (("a", 1), ("b", 2))]
    result = run("compare", *folders, "-o", "out")
    assert result.exit_code == 0, result.output
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    table = pd.read_csv(tmp_path / "out/compare.csv")
    assert list(dict.fromkeys(table["run"])) == ["a", "b"]
    assert len(table) == 2 * len(tidied(command, TABLES[command]))
    own = table[table["run"] == "a"].drop(columns="run").reset_index(drop=True)
    pd.testing.assert_frame_equal(own, pd.read_csv(tmp_path / f"a/{command}.csv"))
    assert list((tmp_path / "out/plots").glob("*.png"))
    record = json.loads((tmp_path / "out/run.json").read_text())
    assert record["runs"] == {"a": str(folders[0]), "b": str(folders[1])}
    assert (record["status"], record["compared"]) == ("complete", command)


def test_checkpoints_come_in_order_with_the_labels_that_they_were_given(
    run: Run, tmp_path: Path
) -> None:
    folders = [
        make_run(tmp_path / f"step-{step}", scale=scale, step=step)
        for step, scale in ((300, 3), (100, 1), (200, 2))
    ]
    labels = [
        word for label in ("late-300", "early-100", "middle-200") for word in ("--label", label)
    ]
    result = run("compare", *folders, *labels, "-o", "out")
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "out/run.json").read_text())
    late, early, middle = map(str, folders)
    assert record["runs"] == {"early-100": early, "middle-200": middle, "late-300": late}
    table = pd.read_csv(tmp_path / "out/compare.csv")
    own = select(table, "norm", run="late-300", group="visual")["mean"]
    made = select(pd.read_csv(folders[0] / "layers.csv"), "norm", group="visual")["mean"]
    assert len(made) and own.tolist() == made.tolist()
    ranked = select(pd.read_csv(tmp_path / "out/ranking.csv"), "disparity_input")
    disparity = ranked.set_index("run")["mean"]
    for times, label in enumerate(("early-100", "middle-200", "late-300"), 1):
        assert disparity[label] == pytest.approx(times * 16.53 / 0.2911)


def test_the_ranking_is_by_disparity(run: Run, tmp_path: Path) -> None:
    folders = [make_run(tmp_path / name, scale=scale) for name, scale in (("a", 1), ("b", 2))]
    rows = json.loads(run("compare", *folders, "--format", "json", "-o", "out").stdout)["table"]
    read = read_latex(run("compare", *folders, "--format", "tex", "-o", "out2").stdout)
    place = read.rows[0].index("run")
    assert [row[place] for row in read.rows[1:]] == ["b", "a"]
    assert list(dict.fromkeys(row["run"] for row in rows)) == ["b", "a"]
    numbers = {(row["run"], row["quantity"]): row["mean"] for row in rows}
    assert numbers["b", "disparity_input"] == pytest.approx(2 * 16.53 / 0.2911)
    ranking = pd.read_csv(tmp_path / "out/ranking.csv")
    assert select(ranking, "rank")[["run", "mean"]].values.tolist() == [["b", 1], ["a", 2]]


def test_five_runs_have_a_rank_correlation_of_disparity_and_inertia(
    run: Run, tmp_path: Path
) -> None:
    folders = [make_run(tmp_path / f"m{scale}", scale=scale) for scale in range(1, 6)]
    few = run("compare", *folders[1:], "-o", "few")
    assert "rank correlation" not in few.stdout
    assert not (tmp_path / "few/correlation.csv").exists()
    enough = run("compare", *folders, "-o", "out")
    assert enough.exit_code == 0, enough.output
    assert pd.read_csv(tmp_path / "out/correlation.csv")["models"].tolist() == [5]
    # The made runs differ in their norms alone: their angles are the same.
    said = "All 5 runs have the same disparity or inertia: no rank correlation."
    assert said in " ".join(enough.stdout.split())


def test_checkpoints_of_a_training_are_put_in_order(run: Run, tmp_path: Path) -> None:
    steps = {"step-000900": 900, "step-000020": 20, "step-000100": 100}
    folders = [make_run(tmp_path / name, step=step, model="m") for name, step in steps.items()]
    folders = [tmp_path / name for name in steps]
    assert run("compare", *folders, "-o", "out").exit_code == 0
    table = pd.read_csv(tmp_path / "out/compare.csv")
    assert list(dict.fromkeys(table["step"])) == [20, 100, 900]
    assert (table["run"] == "step " + table["step"].astype(str)).all()
    assert (tmp_path / "out/plots/training.png").is_file()
    assert not (tmp_path / "out/plots/overlay.png").exists()


def test_labels_by_hand_name_and_order_the_runs(run: Run, tmp_path: Path) -> None:
    folders = [make_run(tmp_path / name) for name in ("a", "b")]
    labels = ("--label", "200", "--label", "100")
    assert run("compare", *folders, *labels, "-o", "steps").exit_code == 0
    assert pd.read_csv(tmp_path / "steps/compare.csv")["step"].iloc[0] == 100
    labels = ("--label", "with norm", "--label", "without")
    assert run("compare", *folders, *labels, "-o", "named").exit_code == 0
    table = pd.read_csv(tmp_path / "named/compare.csv")
    assert list(dict.fromkeys(table["run"])) == ["with norm", "without"]
    assert "step" not in table


def test_runs_of_one_model_are_told_apart_by_their_folders(run: Run, tmp_path: Path) -> None:
    folders = [make_run(tmp_path / name / "layers", model="m") for name in ("before", "after")]
    assert run("compare", *folders, "-o", "out").exit_code == 0
    table = pd.read_csv(tmp_path / "out/compare.csv")
    assert list(dict.fromkeys(table["run"])) == ["before/layers", "after/layers"]


def test_different_samples_are_said(run: Run, tmp_path: Path) -> None:
    folders = [make_run(tmp_path / name, sample_ids=[name]) for name in ("a", "b")]
    result = run("compare", *folders, "-o", "out")
    assert "warning: the runs measured different samples" in result.stderr
    quiet = run("compare", *folders, "-o", "out", "--overwrite", "-q")
    assert (quiet.stdout, quiet.stderr) == ("out\n", "")
    assert json.loads((tmp_path / "out/run.json").read_text())["warnings"]
    same = [make_run(tmp_path / name, sample_ids=["x"]) for name in ("c", "d")]
    assert "warning" not in run("compare", *same, "-o", "other").stderr
    fixed = [make_run(tmp_path / name, step=step) for name, step in (("e", 1), ("f", 2))]
    assert "warning" not in run("compare", *fixed, "-o", "training").stderr


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ([{}], "same weights; same prompts; same pictures before their processor; same pixels"),
        (
            [{"weight_digests": {"a": "1", "b": "3"}}],
            "other weights (1 of 2 tensors differ, first b);",
        ),
        (
            [{"weight_digests": {"a": "1", "b": "2", "c": "3"}}],
            "other weights (1 of 3 tensors differ, first c);",
        ),
        (
            [{"weight_digests": {"x": "1"}}],
            "other weights; same prompts; same pictures before their processor; same pixels",
        ),
        (
            [{"weight_digests": None}],
            "Measured: same prompts; same pictures before their processor; same pixels",
        ),
        (
            [{"dtype": "float32", "weight_digests": {}}],
            "Measured: same prompts; same pictures before their processor; same pixels",
        ),
        ([{"prompt_hashes": {"s": "1"}}], "other prompts (1 of 1 prompts differ, first s);"),
        (
            [{"prompt_hashes": {"z": "0"}}],
            "Measured: same weights; same pictures before their processor; same pixels",
        ),
        (
            [{"prompt_hashes": {"s": "0", "t": "1"}}],
            "same prompts of the 1 sample that all runs hold; same pictures before",
        ),
        ([{"image_hashes": {"s": "9"}}], "other pictures before their processor (1 of 1 pictures"),
        ([{"image_hashes": {"s": None}}], "Measured: same weights; same prompts."),
        (
            [{"pixel_hashes": {"s": "a"}}],
            "same pictures before their processor; other pixels behind their processors (1 of 1",
        ),
        ([{"pixel_hashes": {"s": None}}], "same pictures before their processor."),
        ([{"image_hashes": {"s": "9"}, "pixel_hashes": {"s": "a"}}], "pictures differ, first s)."),
        (
            [{}, {"weight_digests": {"a": "2", "b": "2"}}],
            "other weights than m0 in 1 of 2 runs (m2: 1 of 2 tensors differ, first a);",
        ),
    ],
)
def test_runs_say_whether_they_measured_the_same(
    others: list[dict[str, object]], said: str, run: Run, tmp_path: Path
) -> None:
    known = {
        "dtype": "bfloat16",
        "weight_digests": {"a": "1", "b": "2"},
        "prompt_hashes": {"s": "0"},
        "image_hashes": {"s": "p"},
        "pixel_hashes": {"s": "x"},
    }
    folders = [
        make_run(tmp_path / f"m{number}", **known | facts)
        for number, facts in enumerate([{}, *others])
    ]
    result = run("compare", *folders, "-o", "out")
    assert result.exit_code == 0, result.output
    assert said in " ".join(result.stdout.split())
    assert said in run("report", "out", "-o", "page.html").output + Path("page.html").read_text()


def test_older_runs_say_nothing_of_what_they_measured(run: Run, tmp_path: Path) -> None:
    folders = [make_run(tmp_path / name) for name in ("a", "b")]
    assert "Measured:" not in run("compare", *folders, "-o", "out").stdout


def test_what_cannot_stand_side_by_side(run: Run, tmp_path: Path) -> None:
    a, b = (make_run(tmp_path / name) for name in ("a", "b"))
    other = make_run(tmp_path / "other", "interface")
    newer = make_run(tmp_path / "newer", schema_version=SCHEMA_VERSION + 1)
    inspected = make_run(tmp_path / "inspected")
    RunFolder.open(inspected).note(command="compare")
    partial = Path(shutil.copytree(b, tmp_path / "partial"))
    RunFolder.open(partial).note(status="partial")
    (tmp_path / "empty").mkdir()
    for runs, words in (
        ([a], ["at least two"]),
        ([a, a], ["given twice"]),
        ([a, tmp_path / "empty"], ["not a run folder"]),
        ([a, tmp_path / "nowhere"], ["no such folder"]),
        ([a, other], ["different commands", "layers", "interface"]),
        ([a, newer], ["schema version", str(SCHEMA_VERSION + 1)]),
        ([a, partial], ["partial"]),
        ([inspected, a], ["'compare'", "expected one of interface, layers, embeddings"]),
        ([a, b, "--label", "x"], ["2 runs but 1 labels"]),
        ([a, b, "--label", "x", "--label", "x"], ["labels repeat"]),
    ):
        assert_two_lines(run("compare", *runs, "-o", "out"), *words)
        assert not (tmp_path / "out").exists()


def test_no_model_library_is_loaded(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / name) for name in ("a", "b")]
    assert_no_model_library("compare", *folders, "-q", "-o", tmp_path / "out")
