"""``normprobe paper figure3 --from RUN``: the paper's figures of runs that exist."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.conftest import assert_no_model_library, assert_two_lines
from PIL import Image
from support import made_tables
from support.made_runs import run_folder
from typer.testing import Result

Run = Callable[..., Result]

LLAVA, KIMI = "llava-hf/llava-1.5-7b-hf", "moonshotai/Kimi-VL-A3B-Instruct"
QWEN = "Qwen/Qwen2.5-VL-7B-Instruct"
ALIGNED = {"alignment": {"after": "projector", "compensate": True}}


def layers_run(folder: Path, model: str, scale: float = 1.0, **record: object) -> Path:
    """A made run of ``layers`` with the norms of ``made_tables``, times a number."""
    layers = made_tables.layers()
    layers["norm_mean"] *= scale
    return run_folder(folder, "layers", record={"model": model, **record}, layers=layers)


def drawn(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_runs_of_different_samples_are_told(run: Run, tmp_path: Path) -> None:
    hub = layers_run(tmp_path / "hub", KIMI, sample_ids=["a", "b"])
    copy = layers_run(tmp_path / "copy", LLAVA, sample_ids=["a"])
    result = run("paper", "figure3", "--from", hub, "--from", copy, "-o", "out")
    assert result.exit_code == 0, result.output
    assert "the runs measured different samples" in result.stderr


def test_a_figure_of_runs_that_exist(run: Run, tmp_path: Path, rendered: None) -> None:
    hub = layers_run(tmp_path / "hub", KIMI)
    copy = layers_run(tmp_path / "copy", "./llava", scale=2.0)
    result = run("paper", "figure3", "--from", hub, "--from", f"{LLAVA}={copy}", "-o", "out")
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines() == [
        "no run: (b) Qwen-2.5-VL, (c) GLM4.1-V",
        "figure: out/figure3/figure3.png, .pdf and .csv",
    ]
    rows = drawn(tmp_path / "out/figure3/figure3.csv")
    places = dict.fromkeys((row["panel"], row["run"]) for row in rows)
    assert list(places) == [("(a) LLaVA-1.5", str(copy)), ("(d) Kimi-VL", str(hub))]
    measured = {
        (row["layer"], row["group"]): float(row["mean"])
        for row in drawn(hub / "layers.csv")
        if row["group"] in ("visual", "text") and row["quantity"] == "cosine" and row["mean"]
    }
    lines = {(row["layer"], row["group"]): float(row["mean"]) for row in rows[-len(measured) :]}
    assert lines == measured
    with Image.open(tmp_path / "out/figure3/figure3.png") as image:
        assert image.size[0] == 1400  # 7 inches at 200 dpi
    assert (tmp_path / "out/figure3/figure3.pdf").read_bytes().startswith(b"%PDF")
    assert not (copy / "published.csv").exists()  # a run is read, never changed


def test_before_and_after_are_told_by_the_runs_themselves(run: Run, tmp_path: Path) -> None:
    aligned = layers_run(tmp_path / "after", "a/model", 0.1, **ALIGNED)
    baseline = layers_run(tmp_path / "before", "a/model")
    result = run("paper", "figure4", "--from", aligned, "--from", baseline, "-o", "out")
    assert result.exit_code == 0, result.output
    rows = drawn(tmp_path / "out/figure4/figure4.csv")
    labels = dict.fromkeys((row["run"], row["label"]) for row in rows)
    assert list(labels) == [
        (str(baseline), "baseline: a/model, 56 samples"),
        (str(aligned), "norm applied: a/model, aligned, 56 samples"),
    ]
    twice = [f"--from={name}={aligned}" for name in ("BASELINE", "ALIGNED")]
    assert "after: left out, an earlier run" in run("paper", "figure4", *twice, "-o", "out").stderr
    alone = run("paper", "figure4", "--from", aligned, "-o", "out")
    assert alone.exit_code == 0
    assert "no run: baseline" in alone.stderr


def test_the_checkpoints_of_two_trainings(run: Run, tmp_path: Path) -> None:
    folders = [
        layers_run(tmp_path / f"{name}/step-{step}", "m", step=step, **record)
        for name, record in (("with", ALIGNED), ("without", {}))
        for step in (300, 100, 200)
    ]
    given = [f"--from={folder}" for folder in (*folders, folders[0])]
    result = run("paper", "figure5", *given, "-o", "out")
    assert result.exit_code == 0, result.output
    assert "step-300: left out, an earlier run has its place" in result.stderr
    rows = drawn(tmp_path / "out/figure5/figure5.csv")
    steps = {(row["panel"], Path(row["run"]).parent.name, row["step"]) for row in rows}
    assert steps == {
        (panel, folder, step)
        for panel, folder in (
            ("(a) without norm alignment", "without"),
            ("(b) with norm alignment", "with"),
        )
        for step in ("100", "200", "300")
    }


def test_checkpoints_without_a_step_keep_their_order(run: Run, tmp_path: Path) -> None:
    folders = [layers_run(tmp_path / name, "m") for name in ("first", "second")]
    given = [f"--from={folder}" for folder in folders]
    assert run("paper", "figure5", *given, "-o", "out").exit_code == 0
    rows = drawn(tmp_path / "out/figure5/figure5.csv")
    assert {(row["run"], row["step"]) for row in rows} == {
        (str(folders[0]), "1"),
        (str(folders[1]), "2"),
    }


def test_the_first_run_of_a_model_counts(run: Run, tmp_path: Path) -> None:
    folders = [layers_run(tmp_path / name, LLAVA) for name in ("first", "second")]
    for figure in ("figure1b", "figure3"):
        given = [f"--from={folder}" for folder in folders]
        result = run("paper", figure, *given, "-o", "out")
        assert result.exit_code == 0, result.output
        assert "second: left out, an earlier run has its place" in result.stderr
        rows = drawn(tmp_path / f"out/{figure}/{figure}.csv")
        assert {row["run"] for row in rows} == {str(folders[0])}


def test_the_published_norm_is_that_of_the_model(run: Run, tmp_path: Path) -> None:
    copy = layers_run(tmp_path / "copy", "./llava")
    for given, published in ((f"{LLAVA}={copy}", {"39.96"}), (str(copy), set())):
        assert run("paper", "figure1b", "--from", given, "-o", "out").exit_code == 0
        rows = drawn(tmp_path / "out/figure1b/figure1b.csv")
        assert {row["published"] for row in rows} - {""} == published


def test_the_maps_of_both_models(
    run: Run, measured: Callable[..., Path], tmp_path: Path, rendered: None
) -> None:
    picture = Path(__file__).parents[2] / "benchmarks_data/images/coffee.jpg"
    asked = ("--image", str(picture), "--prompt", "Where is the cup?")
    baseline = measured("attention", "specimen", *asked)
    aligned = measured("attention", str(measured("align")), *asked)
    result = run("paper", "appendix-g", "--from", aligned, "--from", baseline, "-o", "out")
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines() == ["figure: out/appendix-g/appendix-g.png, .pdf and .csv"]
    rows = drawn(tmp_path / "out/appendix-g/appendix-g.csv")
    for name, folder in (("baseline", baseline), ("norm applied", aligned)):
        found = [float(row["attention"]) for row in rows if row["run"] == name]
        assert found == [float(row["attention"]) for row in drawn(folder / "heatmaps.csv")]
    with Image.open(tmp_path / "out/appendix-g/appendix-g.png") as image:
        assert image.size[0] == 1400


def test_what_a_figure_cannot_show_is_refused(run: Run, tmp_path: Path) -> None:
    llava = layers_run(tmp_path / "llava", LLAVA)
    other = layers_run(tmp_path / "other", "org/other")
    interface = run_folder(tmp_path / "interface", "interface", interface=made_tables.interface())
    refused = run("paper", "figure2", "--from", llava)
    assert_two_lines(refused, f"{llava}: Figure 2 does not show {LLAVA}", "Ovis2.5-9B")
    assert_two_lines(
        run("paper", "figure3", "--from", interface), "is a run of interface", "one of layers"
    )
    assert_two_lines(run("paper", "appendix-g", "--from", llava), "expected one of attention")
    assert_two_lines(run("paper", "figure3", "--from", "nowhere"), "nowhere", "folder")
    partial = layers_run(tmp_path / "partial", QWEN)
    record = json.loads((partial / "run.json").read_text())
    (partial / "run.json").write_text(json.dumps({**record, "status": "partial"}))
    assert_two_lines(run("paper", "figure3", "--from", partial), "not complete", "--resume")
    lines = ("layer,group,quantity,mean", "1,visual,cosine,x", "1,text,cosine,y", "")
    (llava / "layers.csv").write_text("\n".join(lines))
    assert_two_lines(run("paper", "figure3", "--from", llava), str(llava), "measure again")
    mixed = run("paper", "figure3", "--from", other, "--from", f"{QWEN}={other}", "-o", "out")
    assert mixed.exit_code == 0
    assert f"{other}: Figure 3 does not show org/other" in mixed.stderr


def test_a_figure_of_runs_loads_no_model_library(tmp_path: Path) -> None:
    folder = layers_run(tmp_path / "run", LLAVA)
    assert_no_model_library("paper", "figure3", "--from", folder, "-o", tmp_path / "out")
    assert (tmp_path / "out/figure3/figure3.png").is_file()


@pytest.mark.parametrize("names", [("\x1b[31m$x_1$漢字", "$y$")])
def test_names_of_strangers_are_drawn(
    names: tuple[str, str], run: Run, tmp_path: Path, rendered: None
) -> None:
    baseline, aligned = names
    before = layers_run(tmp_path / "before", baseline)
    after = layers_run(tmp_path / "after", aligned, **ALIGNED)
    result = run("paper", "figure4", "--from", before, "--from", after, "-o", "out")
    assert result.exit_code == 0, result.output
