"""``paper --run`` over a hub: what it says, asks, fetches and survives."""

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from rich.filesize import decimal
from support.running_hub import ONLINE, Hub

from normprobe import load_run
from normprobe.extensions.paper.artefacts import artefacts
from normprobe.specimen import SPECIMEN_DIR

WEIGHTS = "model.safetensors"
HEADER = "bytes=0-100000"  # what is asked for of a file to read its header
LLAVA, QWEN, KIMI, GLM = artefacts()["table2"].models
FEW = ("--data", "sample", "-n", "2", "-o", "out")
#: One model is on the hub, one is not let in, one is here.
TABLE2 = ("paper", "--run", "table2", *FEW, "--model", f"{KIMI}=gated/model", "--model",
          f"{GLM}=specimen")  # fmt: skip


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """All models of the paper by their ids; each is the specimen."""
    models = {model for artefact in artefacts().values() for model in artefact.names}
    served = [f"{model}={SPECIMEN_DIR}" for model in sorted(models) if "/" in model]
    hub = Hub(tmp_path / "log.jsonl", *served)
    yield hub
    hub.close()


class User:
    """Types commands in a folder."""

    def __init__(self, folder: Path, hub: Hub) -> None:
        self.folder = folder
        self.environment = {**os.environ, "HF_ENDPOINT": hub.address, **ONLINE}
        self.environment["HF_HOME"] = str(folder / "cache")

    def start(self, *words: str, stdin: int = subprocess.DEVNULL) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "normprobe", *words],
            cwd=self.folder,
            env=self.environment,
            text=True,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *words: str) -> tuple[int, str, str]:
        process = self.start(*words)
        out, err = process.communicate(timeout=900)
        return process.returncode, out, err


@pytest.fixture
def user(tmp_path: Path, hub: Hub) -> User:
    return User(tmp_path, hub)


def weights_sent(hub: Hub) -> int:
    """Bytes of weights, without those of headers."""
    return sum(
        request["sent"]
        for request in hub.requests()
        if request["path"] == WEIGHTS and request["method"] == "GET" and request["range"] != HEADER
    )


@pytest.mark.slow
def test_without_a_terminal_nothing_is_fetched(user: User, hub: Hub, tmp_path: Path) -> None:
    code, out, err = user.run(*TABLE2)
    assert (code, out) == (1, "")
    assert err.splitlines()[-2:] == [
        "error: paper --run table2 is about to fetch weights, and there is no terminal to ask",
        "       pass --yes to fetch them",
    ]
    assert weights_sent(hub) == 0
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_what_was_said_is_fetched_and_a_gated_model_stops_no_other(
    user: User, hub: Hub, tmp_path: Path
) -> None:
    code, out, err = user.run(*TABLE2, "--yes")
    assert code == 1, err
    assert f"fetches {decimal(weights_sent(hub))} of weights for 3 commands of table2" in err
    needed = load_run(tmp_path / "out/interface/llava-1.5-7b-hf").record["weights"]["bytes"]
    assert weights_sent(hub) == 2 * needed
    last = err.splitlines()[-1]
    assert last.startswith(f"table2: {KIMI}: gated/model is gated, and the hub does not let")
    assert "hf auth login" in last
    table = pd.read_csv(tmp_path / "out/table2/table2.csv").set_index("model")
    assert table["after_projector_mean"].isna().to_dict() == {
        "LLaVA-v1.5": False,
        "Qwen-2.5-VL": False,
        "KimiVL": True,
        "GLM-4.1V": False,
    }
    assert out.count("Beside the paper") == 3
    assert len(pd.read_csv(tmp_path / "out/compare/table2/ranking.csv")["run"].unique()) == 3
    hub.log.write_text("")
    runs = {f: f.stat().st_mtime_ns for f in (tmp_path / "out/interface").rglob("*.csv")}
    code, again, err = user.run(*TABLE2)
    assert code == 1
    assert "3 commands of table2 are finished already" in err
    assert again == out
    assert weights_sent(hub) == 0
    assert {f: f.stat().st_mtime_ns for f in runs} == runs


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "code", "fetches"), [("y", 0, True), ("n", 1, False)])
def test_at_a_terminal_it_asks(
    answer: str, code: int, fetches: bool, user: User, hub: Hub, tmp_path: Path
) -> None:
    keyboard, terminal = pty.openpty()
    process = user.start("paper", "--run", "table3", stdin=terminal)
    os.write(keyboard, f"{answer}\n".encode())
    _, err = process.communicate(timeout=300)
    os.close(keyboard)
    os.close(terminal)
    assert process.returncode == code, err
    assert "Go on? [y/N]:" in err
    assert (weights_sent(hub) > 0) == fetches
    assert (tmp_path / "runs/paper/table3/table3.csv").exists() == fetches


#: What a command says before it begins.
BEGUN = re.compile(r"\d+ of \d+: normprobe (.*)")


@pytest.mark.slow
def test_everything_that_was_killed_is_what_it_is_uninterrupted(
    user: User, hub: Hub, tmp_path: Path
) -> None:
    words = ("paper", "--run", "table2", *FEW, "--yes", "--model", f"{GLM}=gated/model")
    process = user.start(*words)
    while len(list((tmp_path / "out").glob("*/*/plots"))) < 2:
        time.sleep(0.05)
        assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGKILL)
    before = BEGUN.findall(process.communicate()[1])
    hub.log.write_text("")
    code, _, err = user.run(*words)
    assert code == 1
    said = re.search(r"fetches ([\d.]+ \w+) of weights for (\d+) commands of table2", err)
    assert said is not None
    assert said[1] == decimal(weights_sent(hub))
    assert len(set(BEGUN.findall(err))) == int(said[2])
    for command in before[-2:]:  # the last of them was killed
        assert user.run(*command.replace("out/", "whole/").split())[0] == 0
    tables = [file.relative_to(tmp_path / "whole") for file in (tmp_path / "whole").rglob("*.csv")]
    assert len(tables) >= 2
    for table in tables:
        whole, resumed = [(tmp_path / folder / table).read_bytes() for folder in ("whole", "out")]
        assert whole == resumed, table
