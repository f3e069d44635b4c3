"""``atlas/measure.py``: from a list of names on a hub to entries of the atlas."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from extensions.survey.test_hub_survey import tiny
from support.running_hub import ONLINE, Hub

from normprobe.extensions.survey.models import listed_models

ATLAS = Path(__file__).resolve().parents[3] / "atlas"
NAMES = ("llava-hf/llava-1.5-7b-hf", "google/gemma-4-e2b-it")


def test_the_list_can_be_read() -> None:
    names = [listed.model for listed in listed_models([str(ATLAS / "models.txt")])]
    assert set(NAMES) <= set(names)
    assert all(name.count("/") == 1 for name in names)


@pytest.mark.slow
def test_tiny_twins_under_the_names_of_released_models_get_entries(tmp_path: Path) -> None:
    twins = {name: tiny(tmp_path / f"twin-{place}", place + 1) for place, name in enumerate(NAMES)}
    hub = Hub(tmp_path / "log.jsonl", *(f"{name}={folder}" for name, folder in twins.items()))
    home = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home"), **ONLINE}
    listed = tmp_path / "models.txt"

    def measure(*words: str, names: tuple[str, ...] = NAMES) -> str:
        listed.write_text("\n".join(names))
        command = [sys.executable, str(ATLAS / "measure.py"), str(listed), "--entries", "entries"]
        done = subprocess.run(
            [*command, *words],
            cwd=tmp_path,
            env={**os.environ, **home, "COLUMNS": "100"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        sizes = measure("--sizes", "--rate", "0.001", names=(*NAMES, "gated/model"))
        assert sizes.count("0.00504") == 2  # GB that `layers` reads of the specimen
        assert "gated" in sizes and "1.4" in sizes and "2.8" in sizes
        assert not hub.weights_sent().get("model.safetensors", 0) > 1_000_000
        assert not (tmp_path / "runs").exists()
        assert "1 entries in" in measure("-n", "2", names=NAMES[:1])
        assert "2 entries in" in measure("-n", "2")  # goes on
    finally:
        hub.close()
    entries = {json.loads(file.read_text())["model"] for file in tmp_path.glob("entries/*.json")}
    assert entries == set(NAMES)
    build = [sys.executable, "-m", "normprobe", "atlas", "build", "entries", "-o", "atlas.html"]
    subprocess.run(build, cwd=tmp_path, check=True)
    weights = hub.weights_sent()
    assert len(weights) == 1 and max(weights.values()) < 2.5 * 5_200_000  # each was fetched once
