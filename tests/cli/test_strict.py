"""States that are no vectors to measure: said everywhere, and an exit code with ``--strict``."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from safetensors.torch import load_file, save_file
from typer.testing import Result

from normprobe.schema import UNMOVED
from normprobe.specimen import SPECIMEN_DIR

Run = Callable[..., Result]

PROJECTOR = "multi_modal_projector"
ZERO = UNMOVED
OVERFLOWS = 1e38
NOT_FINITE = "visual tokens: none has finite numbers"


def specimen_with(folder: Path, value: float) -> Path:
    """The specimen, all weights of its projector of one value."""
    shutil.copytree(SPECIMEN_DIR, folder)
    weights = load_file(folder / "model.safetensors")
    names = [name for name in weights if PROJECTOR in name]
    assert names
    weights |= {name: weights[name] * 0 + value for name in names}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("command", ["layers", "interface"])
@pytest.mark.parametrize(("value", "word"), [(0.0, ZERO), (OVERFLOWS, NOT_FINITE)])
def test_broken_visual_tokens_are_loud(
    command: str, value: float, word: str, run: Run, tmp_path: Path
) -> None:
    model = specimen_with(tmp_path / "broken", value)
    result = run(command, str(model), "-n", "2", "-o", "out", "--strict")
    assert result.exit_code == 1
    assert f"warning: {word}" in result.stderr
    assert f"error: the numbers are in doubt: {word}" in result.stderr
    said = " ".join(result.stdout.split())
    assert word.capitalize() in said
    record = json.loads(Path("out/run.json").read_text())
    assert record["status"] == "complete"
    assert any(text.startswith(word) for text in record["warnings"])
    assert any(text.startswith(word) for text in record["doubts"])
    assert run(command, str(model), "-n", "2", "-o", "again").exit_code == 0


def test_assumptions_are_open_where_no_visual_token_is_finite(run: Run, tmp_path: Path) -> None:
    model = specimen_with(tmp_path / "broken", OVERFLOWS)
    assert run("layers", str(model), "-n", "2", "-o", "out").exit_code == 0
    assumptions = pd.read_csv("out/assumptions.csv")
    assert set(assumptions["verdict"]) == {"open"}


@pytest.mark.parametrize("command", ["layers", "interface"])
def test_a_sound_model_passes(command: str, run: Run) -> None:
    result = run(command, "-n", "2", "-o", "out", "--strict")
    assert result.exit_code == 0, result.output
    assert "doubts" not in json.loads(Path("out/run.json").read_text())


# --- longer than the model was made for ---------------------------------------------------------


def specimen_of_positions(folder: Path, positions: int) -> Path:
    shutil.copytree(SPECIMEN_DIR, folder)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = positions
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("batch_size", ["1", "4"])
def test_a_prompt_longer_than_the_positions_is_said_once(
    batch_size: str, run: Run, tmp_path: Path
) -> None:
    model = specimen_of_positions(tmp_path / "short", 40)
    command = ["layers", str(model), "-n", "4", "-b", batch_size, "-o", "out"]
    refused = run(*command)
    assert refused.exit_code == 1
    assert "tokens, more than the 40 positions of the model" in refused.stderr
    assert "--allow-long-prompts" in refused.stderr
    result = run(*command, "--allow-long-prompts")
    assert result.exit_code == 0, result.output
    (line,) = [line for line in result.stderr.splitlines() if "positions" in line]
    record = json.loads(Path("out/run.json").read_text())
    rows = pd.read_parquet("out/samples")
    rows = rows[
        (rows["layer"] == 0) & rows["group"].isin(["visual", "text", "special", "structural"])
    ]
    lengths = rows.groupby("sample_id")["tokens"].sum()
    (named,) = [sample for sample in lengths.index if f"prompt of {sample} has" in line]
    assert f"has {int(lengths[named])} tokens, more than the 40 positions" in line
    assert line.removeprefix("warning: ") in record["warnings"]


def test_a_prompt_that_fits_is_not_mentioned(run: Run) -> None:
    assert "positions" not in run("layers", "-n", "1", "-o", "out").stderr


def test_json_says_with_the_table_why_it_failed(run: Run, tmp_path: Path) -> None:
    model = specimen_with(tmp_path / "broken", 0.0)
    result = run("interface", str(model), "-n", "2", "--format", "json", "--strict")
    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert found["error"]["problem"].startswith("the numbers are in doubt")
    assert found["table"]
