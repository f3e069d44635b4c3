"""A model class the project has never seen: found by a trace, or named by hand."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli.conftest import assert_two_lines
from safetensors.torch import load_file
from support.flat import flat
from typer.testing import Result

from normprobe.schema import DECODER_INPUT, PROJECTOR_OUTPUT, VISUAL
from normprobe.tidy import select

Run = Callable[..., Result]
Repository = Callable[[str], Path]

TRUST = "--trust-remote-code"
NAMES = {
    "vision_encoder": "eye",
    "projector": "bridge",
    "text_embedding": "lexicon",
    "decoder_layers": "tower",
}
BY_HAND = [f"--part={role}={name}" for role, name in NAMES.items()]


def table_and_record(out: Path, command: str) -> tuple[pd.DataFrame, dict]:
    return pd.read_csv(out / f"{command}.csv"), json.loads((out / "run.json").read_text())


@pytest.mark.parametrize("command", ["layers", "interface"])
def test_a_trace_finds_its_parts(
    command: str, run: Run, repository: Repository, tmp_path: Path
) -> None:
    result = run(command, repository("unseen"), TRUST, "-n", "2", "-o", "out")
    assert result.exit_code == 0, result.output
    table, record = table_and_record(tmp_path / "out", command)
    assert record["parts"] == NAMES
    assert record["parts_found_by"] == "trace"
    visual = select(table, "norm", group=VISUAL)
    if command == "layers":
        assert visual["tokens"].tolist() == [8] * 4
    else:
        norms = visual.set_index("stage")["mean"]
        assert norms[DECODER_INPUT] == pytest.approx(norms[PROJECTOR_OUTPUT])


def test_parts_named_by_hand_give_the_same_table(
    run: Run, repository: Repository, tmp_path: Path
) -> None:
    folder = repository("unseen")
    mark = json.loads((folder / "config.json").read_text())["picture_mark"]
    run("layers", folder, TRUST, "-n", "2", "-o", "traced")
    by_hand = [*BY_HAND, f"--part=image_token_ids={mark}"]
    result = run("layers", folder, TRUST, "-n", "2", "-o", "named", *by_hand, "--verify")
    assert result.exit_code == 0, result.output
    assert result.stderr.count("agrees") == 4
    traced, _ = table_and_record(tmp_path / "traced", "layers")
    named, record = table_and_record(tmp_path / "named", "layers")
    assert record["parts_found_by"] == "by hand"
    assert [row["agree"] for row in record["verified"]] == [True] * 4
    pd.testing.assert_frame_equal(traced, named)


def test_a_wrong_name_is_told(run: Run, repository: Repository) -> None:
    result = run(
        "layers", repository("unseen"), TRUST, "--part", "decoder_layers=towr", "-o", "out"
    )
    assert_two_lines(result, "towr", "tower")


def test_embeddings_of_a_table_named_by_hand(
    run: Run, repository: Repository, tmp_path: Path
) -> None:
    folder = repository("unseen")
    assert_two_lines(run("embeddings", folder, TRUST), "--part text_embedding=lexicon")
    result = run("embeddings", folder, TRUST, "--part", "text_embedding=lexicon", "-o", "out")
    assert result.exit_code == 0, result.output
    table, record = table_and_record(tmp_path / "out", "embeddings")
    weight = load_file(folder / "model.safetensors")["lexicon.weight"]
    norms = np.linalg.norm(weight.double().numpy(), axis=-1)
    assert flat(table).loc[0, "norm_mean"] == pytest.approx(norms.mean(), rel=1e-6)
    assert record["weights"]["bytes"] == weight.nbytes
    assert record["parts"] == {"text_embedding": "lexicon"}


def test_inspect_prints_the_command(run: Run, repository: Repository) -> None:
    result = run("inspect", repository("unseen"), TRUST)
    assert_two_lines(result, "--part text_embedding=lexicon")


def test_inspect_takes_a_name_typed_before_that_of_the_inputs_file(
    run: Run, repository: Repository, tmp_path: Path
) -> None:
    (tmp_path / "inputs.py").write_text(f"parts = {NAMES | {'projector': 'mouth'}}")
    words = ("inspect", repository("unseen"), TRUST, "--inputs", "inputs.py", "--format", "json")
    for typed, found in (((), "mouth"), (("--part", "projector=bridge"), "bridge")):
        result = run(*words, *typed)
        assert result.exit_code == 0, result.output
        parts = {row["part"]: row["name"] for row in json.loads(result.stdout)["parts"]}
        assert parts["projector"] == found
