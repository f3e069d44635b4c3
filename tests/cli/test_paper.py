"""``normprobe paper``: what it lists can be run, and is run on miniatures of the paper's models."""

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import typer
from cli.conftest import assert_no_model_library, assert_two_lines
from support import made_tables
from support.made_runs import run_folder
from support.paper_models import FAMILIES, TYPES, stand_in
from support.read_latex import read_latex
from support.read_page import Reader
from support.works_here import work_here
from typer.testing import Result

from normprobe.cli.app import COMMANDS, app
from normprobe.paper.numbers import names_of
from normprobe.run import write_published
from normprobe.runs.run_folder import RunFolder

IMAGES = Path(__file__).parents[2] / "benchmarks_data/images"

pytestmark = pytest.mark.usefixtures("here")

Run = Callable[..., Result]
Repository = Callable[[str], Path]

ARTEFACTS = [f"table{n}" for n in (1, 2, 3, 5, 6, 7, 8)]
ARTEFACTS += ["figure1b", "figure2", "figure3", "figure4", "figure5", "appendix-g"]

#: How many of the paper's numbers each run has, by the name of its folder.
PUBLISHED = {
    "table1": {
        "clip-vit-large-patch14": 3,
        "siglip-so400m-patch14-384": 3,
        "siglip2-so400m-patch14-384": 3,
        "MoonViT-SO-400M": 3,
        "Qwen2.5-7B-Instruct": 2 + 2 + 10,  # Tables 1, 6 and 8
        "Qwen3-8B": 2,
        "Llama-3.2-3B-Instruct": 2,
    },
    "table2": {
        "llava-1.5-7b-hf": 5,
        "Qwen2.5-VL-7B-Instruct": 5 + 2,
        "Kimi-VL-A3B-Instruct": 5 + 2,  # before the projector as patches, and merged
        "GLM-4.1V-9B-Thinking": 5,
    },
    "table3": {"Ovis2.5-9B": 4},
    "table7": {"Qwen2-VL-7B-Instruct": 2 * (2 + 10)},  # Tables 6 and 7, of it and of its base
    "figure2": {"Ovis2.5-9B": 0},
    "figure3": {
        "llava-1.5-7b-hf": 2,
        "Qwen2.5-VL-7B-Instruct": 2,
        "Kimi-VL-A3B-Instruct": 2,
        "GLM-4.1V-9B-Thinking": 2,
    },
}


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that are run do not each begin a process."""
    work_here(monkeypatch)


def listed(run: Run) -> dict[str, list[list[str]]]:
    """The command lines of each artefact, as a shell reads them."""
    result = run("paper")
    assert result.exit_code == 0, result.output
    lines: dict[str, list[list[str]]] = {}
    for line in result.stdout.replace("\\\n", "").splitlines():
        if line.startswith("# ") and ":" in line and line[2:].split(":")[0] in ARTEFACTS:
            lines[line[2:].split(":")[0]] = commands = []
        elif line and not line.startswith("#"):
            commands.append(shlex.split(line))
    return lines


def test_every_table_and_figure_is_listed(run: Run) -> None:
    assert list(listed(run)) == ARTEFACTS
    assert all(len(line) <= 80 or line[0] == "#" for line in run("paper").stdout.splitlines())


@pytest.mark.parametrize("name", ARTEFACTS)
def test_every_listed_command_is_one(name: str, run: Run) -> None:
    """Commands and options exist: the parser takes each line."""
    group = typer.main.get_command(app)
    for program, command, *words in listed(run)[name]:
        assert program == "normprobe"
        group.commands[command].make_context(command, words)


def test_artefacts_share_runs_of_one_command_alone(run: Run) -> None:
    """The same folder, the same command: a run that serves several artefacts is made once."""
    folders: dict[str, tuple[str, ...]] = {}
    lines = [line for lines in listed(run).values() for line in lines if "-o" in line]
    for line in lines:
        assert folders.setdefault(line[-1], tuple(line)) == tuple(line)
    assert len(folders) < len(lines)


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_it_runs_on_miniatures(
    name: str,
    run: Run,
    repository: Repository,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    words = {word for line in listed(run)[name] for word in line}
    models = [model for model in (*TYPES, *FAMILIES) if model in words]
    root = tmp_path_factory.getbasetemp() / "paper-models"
    substitutes = [f"--model={m}={stand_in(m, root, repository)}" for m in models]
    trust = ["--trust-remote-code"] if set(models) & set(FAMILIES) else []
    result = run(
        "paper", "--run", name, *substitutes, *trust, "--data=sample", "-n", "1", "-o", "out"
    )
    assert result.exit_code == 0, result.output
    for folder, numbers in PUBLISHED[name].items():
        path = next((tmp_path / "out").glob(f"*/{folder}"))
        record = json.loads((path / "run.json").read_text())
        assert record["status"] == "complete"
        assert (path / "published.csv").is_file() == (numbers > 0)
        if numbers:
            table = pd.read_csv(path / "published.csv")
            assert len(table) == numbers
            assert "published.csv" in record["files"]
            number = table["published"].notna() & table["measured"].notna()
            assert number.any()
            difference = table["measured"] - table["published"]
            pd.testing.assert_series_equal(table["difference"], difference, check_names=False)
    assert result.stdout.count("Beside the paper") == sum(map(bool, PUBLISHED[name].values()))
    if name.startswith("table"):
        table = pd.read_csv(tmp_path / f"out/{name}/{name}.csv")
        own = [c for c in table if f"{c}_published" in table]
        published = table[[f"{column}_published" for column in own]].set_axis(own, axis=1)
        measured = table[own].notna()
        assert measured[published.notna()].any().all()
        if name not in ("table1", "table7"):  # whose deviations and tokens need not be there
            assert (measured | published.isna()).all().all()
        assert "Below each number, in parentheses: as published" in result.stdout
    else:
        drawn = pd.read_csv(tmp_path / f"out/{name}/{name}.csv")
        assert drawn["run"].nunique() == drawn["panel"].nunique() == len(PUBLISHED[name])
    if "compare" in [line[1] for line in listed(run)[name]]:
        assert (tmp_path / "out/compare" / name / "run.json").is_file()


def test_remote_code_is_not_run_unasked(run: Run, repository: Repository, tmp_path: Path) -> None:
    ovis = f"--model=AIDC-AI/Ovis2.5-9B={repository('ovis2_5')}"
    result = run("paper", "--run", "table3", ovis, "-o", "out")
    assert result.exit_code == 1
    assert "pass --trust-remote-code" in result.stderr
    assert not (tmp_path / "out").exists()


def test_what_the_paper_did_not_publish_is_asked_for(run: Run) -> None:
    assert_two_lines(run("paper", "--run", "figure4"), ": BASELINE, ALIGNED", "--model BASELINE=")
    result = run("paper", "--run", "figure4", "--model", "BASELINE=x")
    assert_two_lines(result, "ALIGNED", "--model ALIGNED=")


OWN = {
    "table5": (("DEFAULT", "ADAPTER"), ("ALIGNED", "ADAPTER")),
    "figure4": (("BASELINE", "specimen"), ("ALIGNED", "ADAPTER")),
    "figure5": tuple(
        (f"{model}-{place}", checkpoint)
        for model, checkpoint in (("BASELINE", "specimen"), ("ALIGNED", "ADAPTER"))
        for place in ("EARLY", "MIDDLE", "LATE")
    ),
    "appendix-g": (
        ("BASELINE", "specimen"),
        ("ALIGNED", "ADAPTER"),
        ("IMAGE", str(IMAGES / "coffee.jpg")),
        ("PROMPT", "Where is the cup?"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_what_the_paper_did_not_publish_is_taken_from_the_user(
    name: str, run: Run, measured: Callable[..., Path], tmp_path: Path
) -> None:
    shutil.copytree(measured("align"), "ADAPTER")
    given = [f"--model={word}={value}" for word, value in OWN[name]]
    result = run("paper", "--run", name, *given, "--data=sample", "-n", "1", "-o", "out")
    assert result.exit_code == 0, result.output
    if name == "table5":
        assert "Default Init" in result.stdout
        table = pd.read_csv(tmp_path / "out/table5/table5.csv")
        assert table["default_init"].tolist() == table["aligned_init"].tolist()
        assert table["default_init"][3:].tolist() == [0.0, 0.0]  # an untrained bias
        assert table["default_init_published"][0] == 53.25
        assert " 53.2500" in result.stdout.replace("(", " ")
        return
    models = [word for word, _ in OWN[name] if word not in ("IMAGE", "PROMPT")]
    command = "attention" if name == "appendix-g" else "layers"
    folders = [f"{command}/{model}" for model in models]
    folders += [] if name == "appendix-g" else [f"compare/{name}"]
    for folder in folders:
        record = json.loads((tmp_path / "out" / folder / "run.json").read_text())
        assert record["status"] == "complete"
    assert f"figure: {Path('out') / name / name}.png, .pdf and .csv" in result.stderr
    assert "no run" not in result.stderr
    assert {file.name for file in (tmp_path / "out" / name).glob("*.*")} == {
        f"{name}.{suffix}" for suffix in ("png", "pdf", "csv")
    }


@pytest.mark.slow
def test_all_that_can_be_made_is_on_one_page_and_the_rest_is_named(
    run: Run, tmp_path: Path
) -> None:
    words = ("paper", "--run", "all", "--model", "*=specimen", "--data=sample", "-n", "1")
    missing = f"--model={KIMI}=./nothing"
    result = run(*words, missing, "-o", "out")
    assert result.exit_code == 1
    made = {folder.name for folder in (tmp_path / "out").glob("*") if folder.name in ARTEFACTS}
    assert made == set(ARTEFACTS) - {"table5", "figure4", "figure5", "appendix-g"}
    folders = [file.parent for file in (tmp_path / "out").glob("*/*/run.json")]
    assert len(folders) == 7 + 3 + 1 + 2 + 4 + 2  # Tables 1, 2, 3, 6; layers; compared
    said = [line for line in result.stderr.splitlines() if "./nothing" in line]
    assert [line.split(":")[0] for line in said] == ["table2", "figure3"]
    page = Reader((tmp_path / "out/paper.html").read_text())
    for text in ("Table 1: ", "Table 8: ", "Not made", "figure4: BASELINE, ALIGNED: not published"):
        assert text in page.text
    assert sum((value or "").startswith("data:image/png") for _, value in page.attributes) == 3
    again = run(*words, missing, "-o", "out")
    assert "17 commands of the paper are finished already" in again.stderr


def test_commands_that_are_the_same_are_run_once(run: Run, tmp_path: Path) -> None:
    words = ("paper", "--run", "table6", "--model", "*=specimen", "-o", "out")
    result = run(*words)
    assert result.exit_code == 0, result.output
    assert "1 of 1: normprobe embeddings specimen" in result.stderr
    assert "1 command as above, of other names: copied" in result.stderr
    folders = [tmp_path / f"out/embeddings/Qwen{n}-VL-7B-Instruct" for n in ("2", "2.5")]
    tables = [(folder / "embeddings.csv").read_bytes() for folder in folders]
    assert tables[0] == tables[1]
    models = [set(pd.read_csv(folder / "published.csv")["model"]) for folder in folders]
    assert models[0] == {"Qwen2-7B vl", "Qwen2-7B base"}
    assert {"Qwen2.5-7B vl", "Qwen2.5-7B base"} <= models[1]
    assert not models[0] & models[1]
    (folders[1] / "run.json").unlink()  # as if interrupted before the copy
    shutil.rmtree(folders[1])
    again = run(*words)
    assert "copied" in again.stderr
    assert set(pd.read_csv(folders[1] / "published.csv")["model"]) == models[1]
    assert "Base: specimen" in (tmp_path / "out/table6/table6.tex").read_text()
    assert "2 commands of table6 are finished already" in run(*words).stderr


LLAVA, KIMI = "llava-hf/llava-1.5-7b-hf", "moonshotai/Kimi-VL-A3B-Instruct"


def interface_run(folder: Path, model: str) -> Path:
    """A made run of ``interface`` with the numbers of ``made_tables``."""
    run_folder(folder, "interface", record={"model": model}, interface=made_tables.interface())
    write_published(RunFolder.open(folder), model)
    return folder


def test_a_table_of_runs_that_exist(run: Run, tmp_path: Path) -> None:
    hub = interface_run(tmp_path / "hub=id", LLAVA)
    copy = interface_run(tmp_path / "copy", "./kimi")
    words = ("paper", "table2", "--from", hub, "--from", f"{KIMI}={copy}", "-o", "out")
    result = run(*words)
    assert result.exit_code == 0, result.output
    table = pd.read_csv(tmp_path / "out/table2/table2.csv")
    assert table["model"].tolist() == ["LLaVA-v1.5", "Qwen-2.5-VL", "KimiVL", "GLM-4.1V"]
    means = table["after_projector_mean"]
    assert means.dropna().to_dict() == {0: 16.53, 2: 16.53}  # models without a run stay empty
    assert table["after_projector_mean_published"].tolist() == [39.96, 56.88, 4.78, 4.58]
    lines = result.stdout.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("Qwen-2.5-VL"))
    assert lines[place].split() == ["Qwen-2.5-VL", "-", "-", "-"]
    assert "(3484.24 \u00b1 3882.82)" in lines[place + 1]
    assert not (copy / "published.csv").exists()  # a run is read, never changed
    assert (tmp_path / "out/table2/table2.md").read_text().count("\n|") == 1 + 1 + 2 * 4
    assert read_latex((tmp_path / "out/table2/table2.tex").read_text()).columns == "lrrr"
    again = run(*words)
    assert again.exit_code == 0  # the table is made anew


def test_measured_numbers_alone(run: Run, tmp_path: Path) -> None:
    hub = interface_run(tmp_path / "hub", LLAVA)
    copy = interface_run(tmp_path / "copy", "./kimi")
    given = ("--from", hub, "--from", f"{KIMI}={copy}", "-o", "out", "--without-published")
    result = run("paper", "table2", *given)
    assert result.exit_code == 0, result.output
    table = pd.read_csv(tmp_path / "out/table2/table2.csv")
    assert not [column for column in table if "published" in column]
    read = read_latex((tmp_path / "out/table2/table2.tex").read_text())
    assert [row[0] for row in read.rows] == ["Model", "LLaVA-v1.5", "kimi"]
    assert (read.caption[:8], read.label) == ("L2 norms", "table2")
    assert read.notes == [f"LLaVA-v1.5: {LLAVA}.", "KimiVL: ./kimi."]
    assert "ublished" not in result.stdout
    layers = run_folder(
        tmp_path / "l", "layers", record={"model": LLAVA}, layers=made_tables.layers()
    )
    write_published(RunFolder.open(layers), LLAVA)
    for words, some in (((), True), (("--without-published",), False)):
        result = run("paper", "figure1b", "--from", layers, "-o", "out", *words)
        assert result.exit_code == 0, result.output
        drawn = pd.read_csv(tmp_path / "out/figure1b/figure1b.csv")
        assert drawn["published"].notna().any() == some


def test_the_first_run_of_a_model_counts(run: Run, tmp_path: Path) -> None:
    first = interface_run(tmp_path / "first", LLAVA)
    scaled = made_tables.interface()
    scaled["norm_mean"] *= 2
    second = run_folder(tmp_path / "second", "interface", interface=scaled)
    for order in ((first, second), (second, first)):
        given = [f"--from={LLAVA}={folder}" for folder in order]
        assert run("paper", "table2", *given, "-o", "out").exit_code == 0
        mean = pd.read_csv(tmp_path / "out/table2/table2.csv")["after_projector_mean"][0]
        assert mean == (16.53 if order[0] == first else 33.06)


def test_table_5_of_one_norm_leaves_the_other_empty(
    run: Run, measured: Callable[..., Path], tmp_path: Path
) -> None:
    result = run("paper", "table5", f"--from=ALIGNED={measured('align')}", "-o", "out")
    assert result.exit_code == 0, result.output
    table = pd.read_csv(tmp_path / "out/table5/table5.csv")
    assert table["default_init"].isna().all()
    norm = pd.read_csv(measured("align") / "align.csv").iloc[0]
    expected = norm["gain"] * norm["hidden_size"] ** 0.5
    assert table["aligned_init"][0] == pytest.approx(expected, rel=2**-8)  # stored in bfloat16


def test_a_run_that_measured_nothing_of_a_table_is_named(run: Run, tmp_path: Path) -> None:
    llava = interface_run(tmp_path / "llava", LLAVA)
    unknown = interface_run(tmp_path / "unknown", "org/unknown")
    result = run("paper", "table2", "--from", llava, "--from", unknown)
    assert result.exit_code == 0
    assert "unknown: measured no number of Table 2" in result.stderr
    result = run("paper", "table2", "--from", unknown)
    assert result.exit_code == 1
    assert "error: no run has measured a number of Table 2" in result.stderr
    assert f"NAME=RUN says of which model: {LLAVA}" in result.stderr


def test_a_table_of_runs_loads_no_model_library(tmp_path: Path) -> None:
    folder = interface_run(tmp_path / "run", LLAVA)
    assert_no_model_library("paper", "table2", "--from", folder, "-o", tmp_path / "out")
    assert (tmp_path / "out/table2/table2.csv").is_file()


def test_a_table_that_cannot_be_made_is_an_error(run: Run) -> None:
    assert_two_lines(run("paper", "table9", "--from", "x"), "table9", "table2")
    assert_two_lines(run("paper", "table2", "--from", "nowhere"), "nowhere", "folder")


def test_the_commands_of_one_artefact(run: Run) -> None:
    result = run("paper", "table7")
    assert result.exit_code == 0, result.output
    shown = result.stdout.splitlines()
    assert shown[0].startswith("# table7: ")
    assert not any(line.startswith("# ") for line in shown[1:])
    assert_two_lines(run("paper", "table9"), "table9: expected one of table1", "normprobe paper")


@pytest.mark.parametrize("words", [["table4"], ["--run", "table4"], ["table4", "--from", "x"]])
def test_what_the_paper_has_and_no_command_makes_says_why(words: list[str], run: Run) -> None:
    result = run("paper", *words)
    assert_two_lines(result, "neither trains nor scores", "normprobe paper figure4")


def test_what_cannot_be_run_is_an_error(run: Run) -> None:
    assert_two_lines(run("paper", "--run", "table9"), "table9", "table2")
    for wrong in ("org/unknown=path", "llava-1.5-7b-hf=path", "llava-hf/llava-1.5-7b-hf"):
        result = run("paper", "--run", "table2", "--model", wrong)
        assert_two_lines(result, wrong, "llava-hf/llava-1.5-7b-hf")


def test_every_model_that_is_run_has_a_name_in_the_paper(run: Run) -> None:
    hub_ids = {line[2] for lines in listed(run).values() for line in lines if "/" in line[2]}
    assert all(names_of(model) for model in hub_ids if not model.startswith("runs/"))
    assert set(COMMANDS) >= {"paper"}
