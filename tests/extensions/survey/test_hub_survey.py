"""A survey of models on a hub: rows, reasons, bytes, what stays of the cache, and kills."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.running_hub import ONLINE, Hub
from transformers import AutoModelForImageTextToText

from normprobe import load_run
from normprobe.extensions.survey.measuring import survey
from normprobe.extensions.survey.models import ListedModel
from normprobe.options import Loading, Output, Sampling
from normprobe.specimen import SPECIMEN_DIR

HEADER = 100_001  # bytes that are asked for of a file's header
WEIGHTS = "model.safetensors"


def tiny(folder: Path, scale: float) -> Path:
    """The specimen with other visual norms."""
    shutil.copytree(SPECIMEN_DIR, folder)
    weights = load_file(folder / WEIGHTS)
    for key in weights:
        if "multi_modal_projector" in key and weights[key].dtype.is_floating_point:
            weights[key] = (weights[key].float() * scale).to(torch.bfloat16)
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    return folder


def broken(folder: Path) -> Path:
    tiny(folder, 1)
    (folder / "config.json").write_text("{}")
    return folder


def with_code(folder: Path) -> Path:
    tiny(folder, 1)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


class Surveyor:
    """Runs surveys in a folder, as a user does."""

    def __init__(self, folder: Path, hub: Hub, name: str = "cache") -> None:
        self.folder, self.home = folder, folder / name
        home = {"HF_ENDPOINT": hub.address, "HF_HOME": str(self.home), **ONLINE}
        self.environment = {**os.environ, **home}

    def start(self, *words: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "normprobe", "survey", *words]
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment, text=True, **streams
        )

    def run(self, *words: str) -> str:
        process = self.start(*words)
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
        return out

    def cached(self) -> set[str]:
        """Files of the hub cache."""
        return {str(f.relative_to(self.home)) for f in self.home.rglob("*") if not f.is_dir()}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    made = {
        "team/loud": tiny(tmp_path / "hub/loud", 2),
        "team/code": with_code(tmp_path / "hub/code"),
        "team/broken": broken(tmp_path / "hub/broken"),
    }
    hub = Hub(tmp_path / "log.jsonl", *(f"{name}={folder}" for name, folder in made.items()))
    yield hub
    hub.close()


@pytest.mark.slow
def test_every_model_has_a_row_and_nothing_that_was_fetched_stays(hub: Hub, tmp_path: Path) -> None:
    surveyor = Surveyor(tmp_path, hub)
    (tmp_path / "models.txt").write_text("# four\ngated/model\nteam/broken\n\nteam/loud\n")
    shown = surveyor.run("models.txt", "team/code", "-n", "2", "-o", "out")
    rows = pd.read_csv(tmp_path / "out/models.csv").set_index("model")
    assert rows.index.tolist() == ["gated/model", "team/broken", "team/loud", "team/code"]
    assert rows["status"].tolist() == ["failed", "failed", "complete", "failed"]
    for name, word in (("gated/model", "gated"), ("team/code", "code")):
        assert word in rows.loc[name, "reason"]
        assert rows.loc[name, "reason"].split()[0] in shown
    assert "cannot read the config of team/broken" in rows.loc["team/broken", "reason"]
    assert len(str(rows.loc["team/loud", "revision"])) == 40
    loud = pd.read_csv(tmp_path / "out/survey.csv").set_index(["model", "quantity"])
    assert set(loud.index.get_level_values("model")) == {"team/loud"}
    loud = loud.loc["team/loud"]
    run = load_run(tmp_path / "out/models/team--loud/interface")
    measured = run.table.query("stage == 'decoder_input' and group == 'visual'")
    measured = measured.set_index("quantity")
    for ours, name in (("disparity_input", "geometric_ratio_to_prompt"), ("ratio_to_table",) * 2):
        for column in ("mean", "low", "high"):
            assert loud.loc[ours, column] == measured.loc[name, column]
    assert loud.loc[["hidden_size", "decoder_layers"], "mean"].tolist() == [128, 6]
    assert loud.loc["parameters", "mean"] == sum(
        tensor.numel() for tensor in load_file(SPECIMEN_DIR / WEIGHTS).values()
    )
    cost = pd.read_csv(tmp_path / "out/cost.csv").set_index("model")
    sent = [r["sent"] for r in hub.requests() if r["path"] == WEIGHTS and r["method"] == "GET"]
    assert cost.loc["team/loud", "fetched_bytes"] == sum(sent) - HEADER
    assert cost.loc["team/loud", "fetched_bytes"] == run.record["weights"]["bytes"]
    assert not (tmp_path / "out/cache").exists()
    assert not any("models--" in name for name in surveyor.cached())


@pytest.mark.slow
def test_what_was_in_the_cache_before_stays_and_is_not_fetched_again(
    hub: Hub, tmp_path: Path
) -> None:
    surveyor = Surveyor(tmp_path, hub)
    words = ("team/loud", "--measure", "layers", "-n", "1")
    surveyor.run(*words, "--keep", "all", "-o", "first")
    before = surveyor.cached()
    assert any(name.endswith(WEIGHTS) for name in before)
    assert not list((tmp_path / "first").glob("cache/**/config.json"))
    hub.log.write_text("")
    shutil.copytree(surveyor.home, tmp_path / "copy", symlinks=True)
    surveyor.run(*words, "--keep", "config", "-o", "again")
    assert surveyor.cached() == before
    for file in (tmp_path / "copy").rglob("*"):
        now = surveyor.home / file.relative_to(tmp_path / "copy")
        assert file.is_dir() or file.read_bytes() == now.read_bytes()
    assert hub.weights_sent() == {}
    same = [(tmp_path / name / "survey.csv").read_bytes() for name in ("first", "again")]
    assert same[0] == same[1]
    # In an empty cache, what stays is what was asked for.
    shutil.rmtree(surveyor.home)
    surveyor.run(*words, "--keep", "config", "-o", "empty")
    assert sum(hub.weights_sent().values()) >= (tmp_path / "hub/loud" / WEIGHTS).stat().st_size
    own = {file.name for file in (tmp_path / "empty").glob("cache/hub/models--*/snapshots/*/*")}
    assert WEIGHTS not in own and "config.json" in own
    assert WEIGHTS not in {Path(name).name for name in surveyor.cached()}
    size = sum(f.stat().st_size for f in (tmp_path / "empty").glob("cache/hub/**/blobs/*"))
    assert size < 1_000_000


@pytest.mark.slow
def test_a_survey_that_is_killed_twice_ends_with_the_same_table(tmp_path: Path) -> None:
    """Four models, one of them failing; a kill is of the survey, and its model goes with it."""
    names = [f"team/m{number}" for number in range(4)]
    names[1] = "gated/model"
    folders = {name: tmp_path / f"hub/{place}" for place, name in enumerate(names)}
    for place, folder in enumerate(folders.values()):
        tiny(folder, 0.2 * 1.5**place)
    hub = Hub(tmp_path / "log.jsonl", *(f"{name}={folder}" for name, folder in folders.items()))
    try:
        surveyor = Surveyor(tmp_path, hub)
        words = (*names, "--measure", "layers", "-n", "2", "--device", "cpu")
        surveyor.run(*words, "-o", "whole")
        sent = sum(hub.weights_sent().values())
        moments = random.Random(3)
        done = 0
        for kill in range(2):
            process = surveyor.start(*words, "-o", "out", "--resume")
            while done < 2 * kill + 1:  # the one that failed is tried again
                time.sleep(0.05)
                done = len(list((tmp_path / "out").glob("models/*/outcome.json")))
                assert process.poll() is None, process.communicate()
            time.sleep(moments.uniform(0, 1.5))
            process.send_signal(signal.SIGKILL)
            process.communicate()
        finished = {f: f.stat().st_mtime_ns for f in (tmp_path / "out").glob("models/*/out*.json")}
        assert 2 <= len(finished) < 4
        surveyor.run(*words, "-o", "out", "--resume")
        done = [f for f in finished if not json.loads(f.read_text())["failures"]]
        assert done
        assert all(file.stat().st_mtime_ns == finished[file] for file in done)
    finally:
        hub.close()
    for name in ("survey", "models", "table1", "table2", "table6"):
        files = [(tmp_path / folder / f"{name}.csv").read_bytes() for folder in ("out", "whole")]
        assert files[0] == files[1]
    rows = pd.read_csv(tmp_path / "out/models.csv")
    assert rows["model"].tolist() == names
    failed = rows[rows["status"] != "complete"].set_index("model")["reason"]
    assert failed.index.tolist() == ["gated/model"]
    assert "gated" in failed["gated/model"]
    assert set(pd.read_csv(tmp_path / "out/survey.csv")["model"]) == set(names) - set(failed.index)
    # Each process fetched what it planned, whole files, and nothing went out beside that.
    fetched = pd.read_csv(tmp_path / "whole/cost.csv").set_index("model")["fetched_bytes"]
    for name in names:
        log = (tmp_path / "whole/models" / name.replace("/", "--") / "log.txt").read_text()
        planned = (folders[name] / WEIGHTS).stat().st_size if name not in failed.index else 0
        assert fetched[name] == planned
        assert ("fetches 1 of 1 weight file" in log) == (planned > 0)
    assert fetched.sum() == sent - HEADER * (len(names) - len(failed))


@pytest.mark.slow
def test_a_model_needs_no_memory_of_the_one_before_it(tmp_path: Path) -> None:
    """The peak of a process never falls: a second model in it would have that of the first."""
    rows = 600_000
    model = AutoModelForImageTextToText.from_pretrained(SPECIMEN_DIR)
    model.resize_token_embeddings(rows, mean_resizing=False)
    torch.manual_seed(0)
    model.get_input_embeddings().weight.data.normal_()
    for name in ("large", "small"):
        tiny(tmp_path / name, 1)
    model.save_pretrained(tmp_path / "large")
    survey(
        [ListedModel(str(tmp_path / name)) for name in ("large", "small")],
        Sampling(limit=1),
        Loading(device="cpu"),
        Output(tmp_path / "out"),
    )
    large, small = pd.read_csv(tmp_path / "out/cost.csv")["peak_memory"]
    table = rows * 128 * 2  # bytes, in bfloat16
    assert small < large - table / 2
