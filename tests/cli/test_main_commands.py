"""The three main commands on the specimen: files, columns, what goes to which stream."""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli.conftest import assert_same_tables, assert_two_lines
from support.flat import flat
from support.read_latex import read_latex
from support.tiny_models import ALL_TYPES
from typer.testing import Result

from normprobe.schema import (
    DECODER_INPUT,
    MERGED_INPUT,
    STAGES,
    TEXT,
    TOKEN_METRICS,
    VISUAL,
    VISUAL_EMBEDDING_TABLE,
)

Run = Callable[..., Result]
Measured = Callable[..., Path]

FILES = {
    "interface": [
        "interface.csv",
        "loudest.csv",
        "plots/interface.pdf",
        "plots/interface.png",
        "run.json",
    ],
    "layers": [
        "layers.csv",
        "loudest.csv",
        "plots/layers.pdf",
        "plots/layers.png",
        "run.json",
        "theory.csv",
    ],
    "embeddings": ["embeddings.csv", "histogram.csv", "plots/embeddings.png", "tokens.csv"],
}


@pytest.mark.usefixtures("rendered")
@pytest.mark.parametrize("command", FILES)
def test_a_run_writes_its_folder(command: str, run: Run, tmp_path: Path) -> None:
    limit = [] if command == "embeddings" else ["--limit", "3"]
    result = run(command, "--output", "out", *limit)
    assert result.exit_code == 0, result.output
    written = {str(path.relative_to(tmp_path / "out")) for path in tmp_path.glob("out/**/*.*")}
    assert set(FILES[command]) <= written
    record = json.loads((tmp_path / "out/run.json").read_text())
    assert record["status"] == "complete"
    assert record["model"] == "specimen"
    assert record["parts"]["projector"] == "model.multi_modal_projector"
    assert "run folder: out" in result.stderr
    assert all(len(line) <= 80 for line in result.stdout.splitlines())


def test_layers_tells_every_layer_and_group(measured: Measured) -> None:
    out = measured("layers", "-n", "4", "-b", "4")
    table = flat(pd.read_csv(out / "layers.csv"))
    assert sorted(set(table["layer"])) == list(range(7))
    for metric in TOKEN_METRICS:
        for kind in ("mean", "std", "sample_mean", "sample_std"):
            assert table.loc[table["layer"] > 0, f"{metric}_{kind}"].notna().all()
    rows = table.set_index(["layer", "group"])
    assert rows.loc[(0, VISUAL), "tokens"] == 4 * 64
    assert rows.loc[(0, VISUAL), "norm_mean"] > 10 * rows.loc[(0, TEXT), "norm_mean"]
    samples = pd.read_parquet(out / "samples")
    assert samples["sample_id"].nunique() == 4
    record = json.loads((out / "run.json").read_text())
    assert len(record["image_hashes"]) == 4
    assert record["sample_ids"] == list(record["image_hashes"])


def test_interface_tells_every_stage(measured: Measured) -> None:
    table = flat(pd.read_csv(measured("interface", "-n", "2") / "interface.csv"))
    absent = {VISUAL_EMBEDDING_TABLE, MERGED_INPUT}  # no such table, nothing is merged
    absent |= {stage for stage in STAGES if stage.startswith("audio")}
    stages = [stage for stage in STAGES if stage not in absent]
    assert list(dict.fromkeys(table["stage"])) == stages
    prompt = table[(table["stage"] == DECODER_INPUT) & (table["group"] == TEXT)]
    assert prompt["ratio_to_prompt"].item() == 1.0


def test_the_batch_size_does_not_change_the_table(measured: Measured) -> None:
    one, five = (  # of fewer pictures bands reach so far that last bits show
        measured("layers", "--dtype", "float32", "-n", "10", "-b", size) for size in ("1", "5")
    )
    assert_same_tables(five, one)


@pytest.mark.parametrize(
    "words",
    [
        "embeddings",
        "layers -n 1",  # says elsewhere that one image is few
        "interface -n 1 --verify",
        "align",
        pytest.param("demo", marks=pytest.mark.slow),
        pytest.param("survey specimen", marks=pytest.mark.slow),
    ],
)
def test_quiet_prints_the_folder_alone(words: str, run: Run) -> None:
    result = run(*words.split(), "-q", "-o", "out")
    assert result.stdout == "out\n"
    assert result.stderr == ""


def test_json_holds_the_table_what_it_says_and_the_folder(run: Run, tmp_path: Path) -> None:
    result = run("layers", "-n", "1", "--format", "json", "-o", "out")
    found = json.loads(result.stdout)
    assert list(found) == ["command", "folder", "headline", "findings", "table"]
    assert found["command"] == "layers"
    assert found["folder"] == "out"
    assert " x the norm of text" in found["headline"]
    entry = next(each for each in found["findings"] if each["name"] == "norm_at_input")
    assert [*entry] == ["name", "words", "numbers"]
    assert set(entry["numbers"][0]) == {"of", "value", "low", "high"}
    assert f"{entry['numbers'][0]['value']:.0f} x" in entry["words"]
    assert len(found["table"]) == len(pd.read_csv(tmp_path / "out/layers.csv"))
    assert found["table"][0]["layer"] == 0


def test_a_finished_run_is_shown_again(run: Run, tmp_path: Path) -> None:
    """The same words, the theory where it is asked for; ``layers --theory`` prints both at once."""
    first = run("layers", "-n", "2", "-o", "out")
    assert "normprobe show out --theory" in first.stderr
    assert len(first.stdout.splitlines()) < 40
    assert run("show", "out").stdout == first.stdout
    with_theory = run("show", "out", "--theory").stdout
    assert with_theory.startswith(first.stdout.rstrip("\n"))
    assert "Does the paper's theory hold here?" in with_theory
    again = run("layers", "-n", "2", "-o", "again", "--theory")
    assert again.stdout == with_theory
    assert "--theory" not in again.stderr
    for name in ("theory", "assumptions"):
        assert (tmp_path / f"out/{name}.csv").is_file()
    found = json.loads(run("show", "out", "--format", "json", "--table", "theory").stdout)
    assert (found["folder"], len(found["table"])) == ("out", len(pd.read_csv("out/theory.csv")))
    assert "predicted" in run("show", "out", "--table", "theory").stdout


def test_only_layers_say_something_of_the_theory(run: Run, measured: Measured) -> None:
    other = measured("interface", "-n", "2")
    assert_two_lines(
        run("show", other, "--theory"), "a run of interface says nothing of the theory"
    )


def test_json_of_inspect_holds_what_it_prints(run: Run) -> None:
    printed = run("inspect", "specimen", "--weights").stdout
    found = json.loads(run("inspect", "specimen", "--weights", "--format", "json").stdout)
    facts = {name: fact for name, fact in found.items() if name not in ("parts", "weights")}
    assert facts.pop("inputs_file") is None  # said where there is one
    for name, fact in facts.items():
        assert re.search(rf"^{name.replace('_', ' ')}: +{re.escape(str(fact))} *$", printed, re.M)
    for row in found["parts"]:
        assert f"{row['parameters']:,}" in printed
        assert row["name"] in printed
    assert {row["kind"] for row in found["weights"]} >= {"part", "command"}
    assert "weights" not in json.loads(run("inspect", "specimen", "--format", "json").stdout)


FORMATS = [
    ("layers", "-n", "1"),
    ("interface", "-n", "1"),
    ("grounding", "-n", "1"),
    ("embeddings",),
    ("align",),
]


@pytest.mark.parametrize("command", FORMATS, ids=lambda words: words[0])
def test_a_table_alone_in_every_format(command: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    printed = {
        form: run(*command, "--format", form, "-o", "out", "--overwrite").stdout
        for form in ("csv", "json", "md", "tex")
    }
    table = pd.read_csv(tmp_path / f"out/{command[0]}.csv")
    rows = json.loads(printed["json"])["table"]
    assert (len(rows), list(rows[0])) == (len(table), list(table))
    shown = pd.read_csv(io.StringIO(printed["csv"]))
    if "quantity" in table:
        assert_numbers_side_by_side(shown, table)
    else:
        assert printed["csv"] == (tmp_path / f"out/{command[0]}.csv").read_text()
    lines = [line for line in printed["md"].splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(shown)
    headers = [header.strip() for header in lines[0].replace("\\", "").strip("|").split(" | ")]
    words = [[name.replace("_", " ") for name in names] for names in (headers, shown)]
    assert words[0] == words[1]
    read = read_latex(printed["tex"])
    assert len(read.rows) == len(shown) + (2 if command[0] == "layers" else 1)
    for form in ("csv", "md", "tex"):
        assert run("show", "out", "--format", form).stdout.endswith(printed[form])


def assert_numbers_side_by_side(shown: pd.DataFrame, tidy: pd.DataFrame) -> None:
    """A column a quantity, and a token group where rows are layers: each number as it is."""
    across = ["group"] if {"layer", "group"} <= {*tidy} else []
    keys = list(tidy.columns[: tidy.columns.get_loc("quantity")])
    down = [key for key in keys if key not in across]
    numbers = tidy.assign(header=tidy[["quantity", *across]].agg(" ".join, axis=1))
    expected = numbers.pivot(index=down, columns="header", values="mean")
    found = shown.set_index(down)
    assert 0 < len(found.columns) <= 12
    assert set(found.columns) <= set(expected.columns)
    np.testing.assert_array_equal(found, expected.loc[found.index, found.columns])
    assert len(found) == len(expected)


@pytest.mark.parametrize("model", [[], ["specimen"]])
def test_commands_without_a_run_have_formats(model: list[str], run: Run) -> None:
    words = ["inspect", *model, "--format"]
    table = pd.read_csv(io.StringIO(run(*words, "csv").stdout), keep_default_na=False)
    assert len(read_latex(run(*words, "tex").stdout).rows) == 1 + len(table)


def test_inspect_without_a_model_prints_every_type_in_80_columns(run: Run) -> None:
    printed = run("inspect").stdout
    assert all(f"\n{model_type} " in printed for model_type in ALL_TYPES)
    assert all(len(line) <= 80 for line in printed.splitlines())


def test_runs_have_a_folder_of_their_own_by_default(run: Run, tmp_path: Path) -> None:
    result = run("layers", "-n", "1", "-q")
    assert result.stdout.startswith("runs/specimen/layers-sample-")
    assert (tmp_path / result.stdout.strip() / "layers.csv").is_file()


def test_inspect_reads_no_weights(run: Run, tmp_path: Path) -> None:
    from normprobe.specimen import SPECIMEN_DIR

    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_bytes((SPECIMEN_DIR / "config.json").read_bytes())
    result = run("inspect", "model")
    assert result.exit_code == 0, result.output
    for word in ("model.vision_tower", "model.multi_modal_projector", "6 layers", "433 x 128"):
        assert word in result.stdout
    assert all(len(line) <= 80 for line in result.stdout.splitlines())


def test_the_demo_ends_with_five_lines(run: Run, tmp_path: Path) -> None:
    result = run("demo", "-o", "demo")
    assert result.exit_code == 0, result.output
    told, aligned, caused, page, own = result.stdout.splitlines()
    layers = flat(pd.read_csv(tmp_path / "demo/layers/layers.csv")).set_index(["layer", "group"])
    mean = "norm_geometric_mean"
    ratio = layers.loc[(0, VISUAL), mean] / layers.loc[(0, TEXT), mean]
    assert told.startswith(f"Visual tokens enter the decoder with {ratio:.0f} x the norm of text ")
    assert "more slowly" in told
    assert aligned.startswith("Aligned to the norm of text: Visual tokens enter ")
    assert caused.startswith("By intervention: Matching norms removes ")
    assert Path(page.rpartition(": ")[2]).is_file()
    assert own.endswith("normprobe layers org/model")
    for command, files in FILES.items():
        for file in files:
            assert (tmp_path / "demo" / command / file).is_file()
    page = tmp_path / "demo/report.html"
    assert page.stat().st_size <= 1_000_000
    assert run("report", "demo", "-o", "page.html").exit_code == 0
    for file in (page, tmp_path / "page.html"):
        assert file.read_text().count('<section id="run-') == 7


def test_a_projector_that_is_not_found_is_said(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from normprobe.model.find.overrides import OVERRIDES

    monkeypatch.setitem(OVERRIDES, "llava", {"projector": None})
    result = run("interface", "-n", "1", "-o", "out")
    assert result.exit_code == 0, result.output
    assert "no projector found" in result.stderr
    record = json.loads((tmp_path / "out/run.json").read_text())
    assert record["warnings"][:1] == [
        "no projector found: its stages are left out; --part projector=NAME names one"
    ]
    monkeypatch.setitem(OVERRIDES, "llava", {"projector": None, "fusion": "discrete"})
    assert "no projector found" not in run("interface", "-n", "1", "-o", "none").stderr


def test_several_images_a_sample(run: Run, tmp_path: Path) -> None:
    result = run("layers", "--data", "pairs", "-b", "2", "-o", "out")
    assert result.exit_code == 0, result.output
    assert "images.csv" in result.stdout
    images = flat(pd.read_csv(tmp_path / "out/images.csv"))
    assert set(images["sample_id"]) == {"prompts/animal", "prompts/person"}
    assert images.groupby(["sample_id", "image"]).size().tolist() == 4 * [7]
    layers = flat(pd.read_csv(tmp_path / "out/layers.csv"))
    assert "image" not in set(layers["group"])
    visual = layers[layers["group"] == "visual"].set_index("layer")
    for layer, rows in images.groupby("layer"):
        assert rows["tokens"].sum() == visual.loc[layer, "tokens"]
        mean = np.average(rows["norm_mean"], weights=rows["tokens"])
        assert mean == pytest.approx(visual.loc[layer, "norm_mean"])
