"""What ``inspect`` says of a checkpoint is what its weight files hold, or it refuses."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from normprobe import NormprobeError
from normprobe.measurements.inspect.measure import inspected
from normprobe.model.checkpoint import open_checkpoint
from normprobe.specimen import SPECIMEN_DIR


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SPECIMEN_DIR, tmp_path / "model"))


def weight_files(folder: Path) -> object:
    return inspected(open_checkpoint(str(folder)), {}).facts["weight files"]


def change(folder: Path, change: str) -> str:
    """Change a tensor of the file; returns its name there."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("embed_tokens.weight"))
    if change == "shape":
        tensors[name] = torch.zeros(433, 64)
    else:
        del tensors[name]
    save_file(tensors, file, {"format": "pt"})
    return name


def test_files_that_fit_are_said_to(folder: Path) -> None:
    assert weight_files(folder) == "names and shapes as the model expects"


def test_another_shape_is_refused(folder: Path) -> None:
    change(folder, "shape")
    with pytest.raises(
        NormprobeError, match=r"embed_tokens\.weight \(saved \[433, 64\], expected \[433, 128\]\)"
    ):
        weight_files(folder)


def test_a_tensor_that_is_not_there_is_refused(folder: Path) -> None:
    change(folder, "absence")
    with pytest.raises(NormprobeError, match=r"lacks weights.*embed_tokens\.weight"):
        weight_files(folder)


def test_no_headers_are_no_reason_to_refuse(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert "git-lfs pointer" in str(weight_files(folder))
    file.unlink()
    assert weight_files(folder) == "not compared, no headers here"
    torch.save({}, folder / "pytorch_model.bin")
    assert weight_files(folder) == "not compared, no headers here"
