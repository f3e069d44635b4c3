"""What strangers wrote reaches a terminal as text, and a page only from the run folder."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from cli.conftest import assert_two_lines
from support import made_tables
from support.commands import spawned
from support.flat import flat, tidied
from support.made_runs import run_folder
from typer.testing import Result

from normprobe import sandbox
from normprobe.specimen import SPECIMEN_DIR

Run = Callable[..., Result]
ATTACK = "\x1b]0;owned\x07\x9b2J\u202e"


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    return run_folder(tmp_path / "one", "layers", layers=made_tables.layers())


def note(folder: Path, **facts: object) -> None:
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**record, **facts}))


def test_names_of_a_record_do_not_command_a_terminal(
    run: Run, layers: Path, tmp_path: Path
) -> None:
    shutil.copytree(layers, tmp_path / "two")
    note(tmp_path / "two", model=f"org/{ATTACK}", warnings=[ATTACK])
    result = run("compare", layers, tmp_path / "two", "-o", "out")
    assert result.exit_code == 0, result.output
    assert not set(result.output) & set("\x1b\x07\x9b\u202e")
    assert r"\x1b]0;owned" in result.output


def test_a_model_type_does_not_command_a_terminal(run: Run, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps({"model_type": ATTACK}))
    result = run("inspect", "./model")
    assert_two_lines(result, r"\x1b]0;owned")
    assert not set(result.output) & set("\x1b\x07\x9b\u202e")


def test_a_report_holds_files_of_the_run_folder_alone(run: Run, layers: Path) -> None:
    secret = layers.parent / "secret"
    secret.write_text("c2VjcmV0 is the word")
    (layers / "plots").mkdir()
    (layers / "stolen.csv").symlink_to(secret)
    (layers / "plots/stolen.png").symlink_to(secret)
    os.mkfifo(layers / "pipe.csv")
    os.mkfifo(layers / "plots/pipe.png")
    result = run("report", layers, "-o", "page.html")
    assert result.exit_code == 0, result.output
    page = Path("page.html").read_text()
    assert "layers.csv" in page
    assert "stolen" not in page
    assert "pipe" not in page


@pytest.mark.parametrize(
    ("facts", "word"),
    [({"files": None}, "files"), ({"versions": []}, "versions"), ({"argv": 3}, "argv")],
)
def test_a_record_of_other_types_is_refused(
    facts: dict[str, Any], word: str, run: Run, layers: Path
) -> None:
    note(layers, **facts)
    assert_two_lines(run("report", layers, "-o", "page.html"), "is not a run folder", word)


def test_a_record_with_a_command_line_of_numbers_is_shown(run: Run, layers: Path) -> None:
    note(layers, argv=[1, 2])
    assert run("report", layers, "-o", "page.html").exit_code == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.drop(columns="group"),
        lambda table: table.drop(columns="quantity"),
        flat,
        lambda table: pd.concat([table, table]),
        lambda table: table.assign(layer="first"),
    ],
    ids=[
        "a key is missing",
        "quantities are missing",
        "it is flat",
        "rows are there twice",
        "layers are text",
    ],
)
@pytest.mark.parametrize("command", ["report", "compare"])
def test_tables_of_another_shape_are_named(
    command: str, change: Callable[[pd.DataFrame], pd.DataFrame], run: Run, layers: Path
) -> None:
    other = shutil.copytree(layers, layers.parent / "other")
    change(tidied("layers", made_tables.layers())).to_csv(layers / "layers.csv", index=False)
    arguments = [layers, other] if command == "compare" else [layers]
    result = run(command, *arguments, "-o", "out")
    assert_two_lines(result, str(layers))
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"model_type": ["llava"]}, "config"),
        ({"text_config": "llama"}, "config"),
        ({"vision_config": {"patch_size": 0, "model_type": "clip_vision_model"}}, "model"),
        ({"text_config": {"model_type": "llama", "num_attention_heads": 0}}, "model"),
        ({"text_config": {"model_type": "llama", "num_hidden_layers": 0}}, "model"),
        ({"text_config": {"model_type": "llama", "num_hidden_layers": 10**9}}, "takes more than"),
        ({"attn_implementation": "org/kernel"}, "--trust-remote-code"),
        ({"text_config": {"_attn_implementation": "org/kernel"}}, "--trust-remote-code"),
        ({"transformers_weights": "../canary.safetensors"}, "outside the checkpoint"),
    ],
)
@pytest.mark.parametrize("command", ["inspect", "embeddings"])
def test_configs_that_no_model_has(
    command: str,
    change: dict[str, Any],
    word: str,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sandbox, "PATIENCE", 1)
    checkpoint = Path(shutil.copytree(SPECIMEN_DIR, tmp_path / "model"))
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, **change}))
    assert_two_lines(run(command, "./model"), word)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_json_without_a_bottom(name: str, run: Run, tmp_path: Path) -> None:
    checkpoint = Path(shutil.copytree(SPECIMEN_DIR, tmp_path / "model"))
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / name).write_text('{"a":' * 100_000)
    assert_two_lines(run("embeddings", "./model"), name.split(".")[0])


@pytest.mark.parametrize(
    ("closed", "output"),
    [
        (">&-", ""),
        (">/dev/full", ""),
        (">/dev/full", "--format json"),
        ("2>/dev/full", ""),
        ("<&-", ""),
    ],
)
def test_streams_that_take_nothing(closed: str, output: str) -> None:
    command = f"{sys.executable} -m normprobe inspect {output} {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    if closed == ">/dev/full":
        assert done.returncode == 1
        assert done.stderr.startswith("error: cannot write to standard output: No space left")
        assert len(done.stderr.splitlines()) == 2
    else:
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert ("llava" in done.stdout) == (closed != ">&-")


def test_nothing_is_imported_from_the_working_folder(tmp_path: Path) -> None:
    """Data lie there, and may lie beside an ``av.py``; ``python -m`` looks there first."""
    for name in ("av", "typer", "signal", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('was imported')")
    ended = spawned(tmp_path, ["--version"], {})
    assert ended.stderr == ""
    assert ended.stdout.startswith("normprobe ")
