"""The command line, with a tiny decoder; and that the committed tables are whole."""

import shutil
from copy import deepcopy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import experiments
from experiments.smollm import __main__ as command
from experiments.smollm import train as training
from experiments.smollm.grow import COLD, GAINS, QUIET, USUAL, Base
from experiments.smollm.measure import by_layer
from experiments.smollm.report import report
from normprobe import Probe

pytestmark = pytest.mark.slow  # no behaviour of the package

FOLDER = Path(experiments.__file__).parent


@pytest.fixture
def short(
    base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[str], pytest.MonkeyPatch]:
    decoder = tmp_path / "tiny.gguf"
    decoder.write_bytes(b"tiny")
    monkeypatch.setattr(
        command, "released", lambda file: deepcopy(base[1:])
    )  # each start reads the file
    options = ["--short", "--output", str(tmp_path / "runs"), "--decoder", str(decoder)]
    return options, monkeypatch


def test_a_short_run_is_shared_out_by_name_and_not_repeated(
    short: tuple[list[str], pytest.MonkeyPatch], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options, monkeypatch = short
    for name in ("norm-0.0005-0", "usual-0.0005-0"):
        assert not (tmp_path / "runs" / name).exists()
        capsys.readouterr()
        command.main([*options, "--run", name])
    told = capsys.readouterr().out
    assert "| right answers |" in told and "| freeze: nats |" in told
    monkeypatch.setattr(training, "step_loss", None)
    command.main(options)
    assert capsys.readouterr().out == told
    runs = pd.read_csv(tmp_path / "runs/runs.csv")
    assert [*runs["variant"]] == ["usual", "norm"]
    assert {"device", "seed", "torch", "transformers", "peft", "decoder_xxh3"} < {*runs}
    assert runs["cpu_seconds"].gt(0).all()


@pytest.mark.gpu
def test_a_run_on_a_gpu_is_measured_as_one_on_the_cpu(
    short: tuple[list[str], pytest.MonkeyPatch], tmp_path: Path
) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    options, _ = short
    for device in ("cpu", "cuda"):
        folder = str(tmp_path / device)
        command.main([*options, "--output", folder, "--device", device])
    here, there = (pd.read_csv(tmp_path / name / "results.csv") for name in ("cpu", "cuda"))
    keys = ["variant", "quantity", "stage", "step", "layer"]
    pd.testing.assert_frame_equal(here[keys], there[keys])
    begun = here["stage"].eq(1) & here["step"].eq(0)
    np.testing.assert_allclose(here["value"][begun], there["value"][begun], rtol=0.02)
    assert {*pd.read_csv(tmp_path / "cuda/runs.csv")["device"]} == {"cuda"}


def test_runs_of_tables_are_not_repeated(
    short: tuple[list[str], pytest.MonkeyPatch], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options, _ = short
    command.main(options)
    told, folder = capsys.readouterr().out, tmp_path / "runs"
    before = {name: (folder / f"{name}.csv").read_bytes() for name in command.TABLES}
    shutil.rmtree(folder / "usual-0.0005-0")  # made elsewhere: its rows are all there is of it
    command.main(options)
    assert capsys.readouterr().out == told
    assert {name: (folder / f"{name}.csv").read_bytes() for name in command.TABLES} == before
    shutil.rmtree(folder / "norm-0.0005-0")
    (folder / "runs.csv").write_bytes(b"\n".join(before["runs"].split(b"\n")[:2]))
    command.main(options)
    assert {*pd.read_csv(folder / "runs.csv")["variant"]} == {"usual", "norm"}
    assert (folder / "norm-0.0005-0").exists() and not (folder / "usual-0.0005-0").exists()


def test_the_model_of_a_run_is_a_checkpoint(
    short: tuple[list[str], pytest.MonkeyPatch], tmp_path: Path
) -> None:
    """Measured from the checkpoint, the numbers of the table."""
    options, _ = short
    command.main(options)
    command.main([*options, "--checkpoint", "usual-0.0005-0"])
    folder = tmp_path / "runs/usual-0.0005-0"
    probe = Probe(str(folder / "checkpoint"))
    found = {
        row["layer"]: row["value"] for row in by_layer(probe) if row["quantity"] == "final_ratio"
    }
    table = pd.read_csv(folder / "results.csv").query("quantity == 'final_ratio'")
    assert found == pytest.approx(dict(zip(table["layer"], table["value"], strict=True)), rel=1e-4)
    with pytest.raises(SystemExit, match="a norm that transformers would not load"):
        command.main([*options, "--checkpoint", "norm-0.0005-0"])
    with pytest.raises(SystemExit, match="holds no weights of a run cold"):
        command.main([*options, "--checkpoint", "cold-0.0005-0"])


def test_runs_of_the_full_form() -> None:
    planned = list(command.plans(3, (20, 80), short=False))
    first = [(plan.variant, plan.seed) for plan in planned if plan.variant in (USUAL, *GAINS)]
    assert len({plan.name for plan in planned}) == len(planned) == 24
    for seed in range(3):
        assert {variant for variant, at in first if at == seed} == {USUAL, *GAINS}
        for variant, rates in ((USUAL, 2), ("norm", 2), ("norm_half", 1), (QUIET, 1), (COLD, 1)):
            same = [plan for plan in planned if (plan.variant, plan.seed) == (variant, seed)]
            assert len(same) == rates


TABLES = {name: pd.read_csv(FOLDER / f"smollm/{name}.csv") for name in command.TABLES}


def test_the_readme_quotes_the_results() -> None:
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    quoted = card.split("<!-- smollm: begin -->\n")[1].split("<!-- smollm: end -->")[0]
    assert quoted == report(TABLES)


def test_every_run_is_whole() -> None:
    """Each has all answers, readings and layers; which runs there are, the tables say."""
    runs = TABLES["runs"].groupby(["variant", "learning_rate", "seed"]).size()
    assert runs.eq(1).all()
    answers = TABLES["answers"].groupby(["variant", "learning_rate", "seed"]).size()
    assert answers.eq(200).all() and answers.index.equals(runs.index)
    results = TABLES["results"]
    assert not results.duplicated([*results.columns[:7]]).any()
    for quantity, rows in (("final_ratio", 31), ("attention_first", 30)):
        found = results[results["quantity"] == quantity]
        sizes = found.groupby(["variant", "learning_rate", "seed"]).size()
        assert sizes.eq(rows).all() and sizes.index.equals(runs.index)
