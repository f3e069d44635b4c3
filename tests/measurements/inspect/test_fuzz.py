"""Checkpoints of strangers: whatever config, index and headers hold, ``inspect`` answers, soon."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from support.damage import Canary, mutated, mutated_json, outcomes

from normprobe.measurements.inspect.measure import inspected
from normprobe.model.checkpoint import open_checkpoint
from normprobe.specimen import SPECIMEN_DIR


def config(folder: Path) -> Path:
    return folder / "config.json"


def index(folder: Path) -> Path:
    """Of weights in two files."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    keys = sorted(weights)
    files = {"a.safetensors": keys[::2], "b.safetensors": keys[1::2]}
    for name, inside in files.items():
        save_file({key: weights[key] for key in inside}, folder / name, metadata={"format": "pt"})
    weight_map = {key: name for name, inside in files.items() for key in inside}
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return path


def header(folder: Path) -> Path:
    return folder / "model.safetensors"


def adapter(folder: Path) -> Path:
    """Of a PEFT adapter, whose base is a folder."""
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({"base_model_name_or_path": str(SPECIMEN_DIR), "peft_type": "LORA"}))
    (folder / "config.json").unlink()
    return path


def check(make: Callable[[Path], Path], root: Path, cases: int) -> Counter[str]:
    canary = Canary(root)
    folder = Path(shutil.copytree(SPECIMEN_DIR, root / "model"))
    file = make(folder)
    size = int.from_bytes(file.read_bytes()[:8], "little") + 8  # of the header of safetensors

    def look() -> None:
        inspected(open_checkpoint(str(folder)), {}, weights=True)

    def damage_header(data: bytes, chance) -> bytes:
        return mutated(data[:size], chance) + data[size:]

    look()
    found = outcomes(file, look, cases, damage_header if make is header else mutated_json)
    canary.assert_untouched()
    return found


@pytest.mark.parametrize("make", [config, index, header, adapter])
def test_damaged_checkpoints(make: Callable[[Path], Path], tmp_path: Path) -> None:
    assert check(make, tmp_path, 25)["refused"] >= 8


@pytest.mark.slow
@pytest.mark.parametrize(("make", "cases"), [(config, 1200), (index, 500), (header, 500)])
def test_many_damaged_checkpoints(make: Callable[[Path], Path], cases: int, tmp_path: Path) -> None:
    check(make, tmp_path, cases)
