"""Language models in GGUF files: what is read equals what transformers reads, and no more is."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from support.commands import invoke

pytest.importorskip("gguf")
from support.gguf_file import tiny_llama, tiny_qwen2, write_gguf
from transformers import AutoModelForCausalLM, AutoTokenizer

from normprobe.errors import NormprobeError
from normprobe.inputs.processor import load_processor
from normprobe.model.checkpoint import open_checkpoint
from normprobe.model.load import gguf_weights
from normprobe.model.load.loading import load_model
from normprobe.run import load_run
from normprobe.schema import LANGUAGE_MODEL


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tiny_llama(), tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.mark.parametrize("kind", ["Q4_1", "Q4_0", "Q8_0", "F16", "BF16", "F32"])
@pytest.mark.parametrize("made", [tiny_llama, tiny_qwen2])
def test_weights_are_those_that_transformers_reads(
    made: Callable[..., torch.nn.Module], kind: str, tmp_path: Path
) -> None:
    file = write_gguf(made(), tmp_path / "tiny.gguf", kind)
    checkpoint = open_checkpoint(str(file))
    assert (checkpoint.name, checkpoint.kind) == ("tiny", LANGUAGE_MODEL)
    found = load_model(checkpoint, device="cpu").state_dict()
    whole = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32)
    for name, expected in whole.state_dict().items():
        assert torch.equal(found[name], expected), name


def test_where_nothing_is_rounded_the_weights_are_those_of_the_model(tmp_path: Path) -> None:
    model = tiny_llama()
    file = write_gguf(model, tmp_path / "tiny.gguf", "F32")
    found = load_model(open_checkpoint(str(file)), device="cpu").state_dict()
    for name, expected in model.state_dict().items():
        tolerance = 0.02 if "embed_tokens" in name or "lm_head" in name else 0.0  # Q8_0
        torch.testing.assert_close(found[name], expected, rtol=0, atol=tolerance * 0.1)


def test_blocks_of_four_bits_against_numpy(llama: Path) -> None:
    checkpoint = open_checkpoint(str(llama))
    held = gguf_weights.GgufWeights(checkpoint)
    blocks = held.tensors(["model.layers.1.mlp.up_proj.weight"])
    stored = blocks["model.layers.1.mlp.up_proj.weight"].stored
    raw = np.fromfile(llama, np.uint8)[stored.begins :][: stored.nbytes].reshape(-1, 20)
    scale, least = (raw[:, at : at + 2].copy().view(np.float16).astype(float) for at in (0, 2))
    nibbles = np.hstack([raw[:, 4:] & 15, raw[:, 4:] >> 4])
    expected = (scale * nibbles + least).reshape(stored.shape)
    found = blocks["model.layers.1.mlp.up_proj.weight"][:]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6, atol=1e-7)


def test_the_tokenizer_is_that_of_the_file(llama: Path) -> None:
    found = load_processor(open_checkpoint(str(llama)).source, auto_class="AutoTokenizer")
    expected = AutoTokenizer.from_pretrained(llama.parent, gguf_file=llama.name)
    text = "<|im_start|>the hen"
    assert found(text)["input_ids"] == expected(text)["input_ids"]
    assert found.chat_template == expected.chat_template


def test_embeddings_make_the_table_alone(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    read = gguf_weights._Blocks.__getitem__

    def counted(self: gguf_weights._Blocks, index: object) -> torch.Tensor:
        made.append(self.stored.name)
        return read(self, index)

    monkeypatch.setattr(gguf_weights._Blocks, "__getitem__", counted)
    invoke("embeddings", llama, "--output", llama.parent / "embeddings")
    assert set(made) == {"token_embd.weight"}


def test_commands_take_the_file(llama: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "the hen"}\n{"prompt": "he"}\n', encoding="utf-8")
    told = invoke("inspect", llama, "--weights")
    assert "Q4_1" in told.stdout and "tiny" in told.stdout
    layers = ("layers", llama, "--data", prompts, "--output", tmp_path / "run")
    assert "stored as F32 (7), Q4_1 (21)" in " ".join(invoke(*layers).output.split())
    run = load_run(tmp_path / "run")
    assert run.record["model"] == "tiny"
    assert run.record["weights"]["stored_as"] == {"F32": 7, "Q4_1": 21, "Q8_0": 1}
    json.dumps(run.record)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "another format": lambda _: b"PK\x03\x04" * 100,
    "the metadata cut": lambda content: content[:900],
    "a count of tensors": lambda content: content[:8] + b"\xff" * 8 + content[16:],
    "a count of metadata": lambda content: content[:16] + b"\xff" * 8 + content[24:],
    "an unknown architecture": lambda content: content.replace(b"llama", b"lhama"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_refused_in_one_line(damage: str, llama: Path, tmp_path: Path) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(DAMAGES[damage](llama.read_bytes()))
    with pytest.raises(NormprobeError, match=r"broken\.gguf"):
        open_checkpoint(str(file))


def test_tensors_cut_off_are_refused(llama: Path, tmp_path: Path) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(llama.read_bytes()[:-5000])
    with pytest.raises(NormprobeError, match="broken"):
        load_model(open_checkpoint(str(file)), device="cpu")


def test_the_package_that_is_missing_is_named(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = shutil.copy(llama, tmp_path / "other.gguf")
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(NormprobeError, match="gguf is not installed") as refused:
        open_checkpoint(str(file))
    assert refused.value.remedy == "pip install 'normprobe[gguf]'"


def test_a_file_that_is_written_anew_is_read_anew(tmp_path: Path) -> None:
    for make, kind in ((tiny_llama, "llama"), (tiny_qwen2, "qwen2")):
        file = write_gguf(make(), tmp_path / "tiny.gguf", "F32")
        assert open_checkpoint(str(file)).config.model_type == kind
