"""What the weight files hold of each part, against the files themselves."""

import json
from pathlib import Path

import pytest
from safetensors import safe_open
from support.cases import model_of

from normprobe import find_parts
from normprobe.measurements.inspect.measure import weights_table
from normprobe.model.checkpoint import open_checkpoint
from normprobe.model.load.gguf_weights import weight_files_of
from normprobe.model.load.partial_load import build_on_meta


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
