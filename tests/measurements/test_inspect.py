"""What ``inspect`` says of a checkpoint is what its weight files hold, or it refuses."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support.cases import model_of
from support.tiny_models import tiny_model

from normprobe import NormprobeError, find_parts
from normprobe.measurements.inspect import _before_layer_one, inspected, weights_table
from normprobe.model.checkpoint import open_checkpoint
from normprobe.model.load.gguf_weights import weight_files_of
from normprobe.model.load.partial_load import build_on_meta
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


@pytest.mark.parametrize("model_type", ["llava", "qwen2_vl", "gemma3", "llama", "clip"])
def test_bytes_and_files_are_those_of_the_headers(model_type: str, tmp_path: Path) -> None:
    saved = model_of(model_type)
    saved.save_pretrained(tmp_path, max_shard_size="60KB")
    checkpoint = open_checkpoint(str(tmp_path))
    structure = build_on_meta(checkpoint)
    parts = find_parts(structure)
    table = weights_table(checkpoint, structure, parts, weight_files_of(checkpoint)).set_index(
        "what"
    )
    stored = {
        key: (tensor.numel(), tensor.nbytes, file.name)
        for file in tmp_path.glob("*.safetensors")
        for handle in [safe_open(file, framework="pt")]
        for key in handle.keys()  # noqa: SIM118
        for tensor in [handle.get_tensor(key)]
    }
    assert table.loc["checkpoint", "parameters"] == sum(n for n, _, _ in stored.values())
    assert table.loc["checkpoint", "bytes"] == sum(size for _, size, _ in stored.values())
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert set(table.loc["checkpoint", "files"].split()) == set(index["weight_map"].values())
    for role, part in parts:
        expected = sum(weight.numel() for weight in part.module.parameters())
        assert table.loc[role, "parameters"] == expected, role
        assert table.loc[role, "bytes"] == 4 * expected
    commands = table[table["kind"] == "command"]
    assert (commands["bytes"] <= table.loc["checkpoint", "bytes"]).all()
    assert ("attention" in commands.index) == (model_type not in ("llama", "clip"))
    if parts.text_embedding is not None:
        assert commands.loc["embeddings", "bytes"] == table.loc["text_embedding", "bytes"]
    if parts.decoder_layers is not None:
        head = table.loc["checkpoint", "bytes"] - commands.loc["layers", "bytes"]
        assert head in (0, saved.get_output_embeddings().weight.nbytes)
        below = table.loc["decoder_layers", "bytes"]
        assert commands.loc["interface", "bytes"] == commands.loc["layers", "bytes"] - below
    else:
        assert commands.loc["interface", "bytes"] == table.loc["vision_encoder", "bytes"]


def test_a_norm_before_layer_1_is_told_of_the_models_of_transformers_alone() -> None:
    model = tiny_model("blip")
    told = {"text rows before layer 1": "LayerNorm: text_decoder.bert.embeddings.LayerNorm"}
    assert _before_layer_one("blip", model).items() >= told.items()
    held = {"__module__": "a_package", "forward": lambda self: None}
    model.__class__ = type("Another", (type(model),), held)
    assert _before_layer_one("blip", model) == {}
