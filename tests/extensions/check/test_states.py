"""Prompts for another engine, and what the script that runs it keeps."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from cli.conftest import assert_two_lines
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support.commands import invoke
from support.processors.tokenizer import character_tokenizer
from support.tiny_models import BOS, EOS, PAD, tiny_model
from torch import Tensor, nn

from normprobe import Probe
from normprobe.data.data_set import open_data
from normprobe.extensions.check import engine_states
from normprobe.extensions.check.engine_states import (
    Unexpected,
    described,
    observe,
    of_transformers,
    save_states,
    taken,
)
from normprobe.extensions.check.states import file_of
from normprobe.specimen import SPECIMEN_DIR


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prompts of two samples, and the states of transformers on them."""
    folder = tmp_path_factory.mktemp("once") / "out"
    asked = ("states", "specimen", "-n", "2", "--dtype", "float32", "-o", folder)
    done = invoke(*asked, "--engine", "transformers")
    assert done.exit_code == 0, done.output
    told = f"normprobe check specimen --states {folder} --dtype float32 --data sample -n 2\n"
    assert done.stdout == told
    return folder


@pytest.fixture
def folder(once: Path, tmp_path: Path) -> Path:
    return shutil.copytree(once, tmp_path / "out")


def check(folder: Path) -> Any:
    asked = ("check", "specimen", "--dtype", "float32", "-n", "2", "--data", "sample")
    return invoke(*asked, "--states", folder)


def told_of(done: Any) -> str:
    return " ".join(done.stdout.split())


def test_states_of_transformers_are_those_of_the_model(folder: Path) -> None:
    """From pixels on: the engine's processor reads the pictures that were written."""
    done = check(folder)
    assert done.exit_code == 0, done.output
    assert "All 14 states of 2 samples are the same within 0.0001" in told_of(done)
    assert told_of(done).endswith("the largest difference is 0.")


@pytest.mark.slow  # the engine is the same, whatever the prompts
@pytest.mark.parametrize("model_type", ["specimen", "llama"])
def test_states_of_prompts_without_pictures(model_type: str, tmp_path: Path) -> None:
    """Of a model that could read some, and of a language model."""
    model: Path | str = model_type
    if model != "specimen":
        model = tmp_path / "model"
        tiny_model(model_type).save_pretrained(model)
        character_tokenizer({PAD: "<pad>", BOS: "<s>", EOS: "</s>"}, {}, {}).save_pretrained(model)
    asked = ("--dtype", "float32", "-n", "2", "--data", "text")
    made = invoke("states", model, *asked, "-o", tmp_path / "out", "--engine", "transformers")
    assert made.exit_code == 0, made.output
    done = invoke("check", model, *asked, "--states", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "the largest difference is 0." in told_of(done)


def changed(folder: Path, change: Any) -> Path:
    for file in folder.rglob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            told = opened.metadata()
        tensors, told = change(load_file(file), told)
        save_file({name: each.contiguous() for name, each in tensors.items()}, file, told)
    return folder


def one_layer_late(tensors: dict[str, Tensor], told: dict[str, str]) -> Any:
    moved = {f"layer_{n}": tensors[f"layer_{n - 1}"].clone() for n in range(1, 7)}
    return moved | {"input_ids": tensors["input_ids"]}, told


def other_pixels(tensors: dict[str, Tensor], told: dict[str, str]) -> Any:
    pixels = json.loads(told["pixels"]) | {"digest": "0" * 16, "mean": 0.5}
    return tensors, told | {"pixels": json.dumps(pixels)}


def louder(tensors: dict[str, Tensor], told: dict[str, str]) -> Any:
    return tensors | {"layer_3": 1.01 * tensors["layer_3"]}, told


def test_inputs_are_exported_to_the_last_bit(tmp_path: Path) -> None:
    done = invoke("states", "specimen", "-n", "2", "-o", tmp_path / "out", "--export-inputs")
    assert done.exit_code == 0, done.output
    asked = json.loads((tmp_path / "out/prompts.json").read_text())["samples"]
    builder = Probe("specimen").source.builder
    samples = {sample.id: sample for sample in open_data("sample")}
    for each in asked:
        found = load_file(tmp_path / "out/inputs" / each["file"])
        expected = builder.build([samples[each["id"]]])
        assert set(found) == set(expected) >= {"input_ids", "attention_mask", "pixel_values"}
        for name, tensor in expected.items():
            assert torch.equal(found[name], tensor)
        assert found["input_ids"].flatten().tolist() == each["input_ids"]


def test_states_that_are_one_layer_late_are_named(folder: Path) -> None:
    done = check(changed(folder, one_layer_late))
    assert done.exit_code == 1, done.output
    assert "Each layer is one off: under its number stands what enters it." in told_of(done)


def test_other_pixels_are_no_evidence_of_another_engine(folder: Path) -> None:
    same = check(changed(folder, other_pixels))
    assert same.exit_code == 0, same.output
    assert "Besides, the engine read other pixels of mmstar/14 (0.50000 ± " in told_of(same)
    done = check(changed(folder, louder))
    assert done.exit_code == 3, done.output
    assert "Not enough evidence: the engine read other pixels of mmstar/14" in told_of(done)


@pytest.mark.parametrize(
    "pixels",
    [
        "{",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ("", "[]", '{"digest": 1}', "[" * 10**5)
        ),
    ],
)
def test_what_a_file_says_of_pixels_is_read_only_where_it_fits(pixels: str, folder: Path) -> None:
    done = check(changed(folder, lambda tensors, told: (tensors, told | {"pixels": pixels})))
    assert done.exit_code == 0, done.output
    assert "pixels" not in done.stdout


@pytest.mark.slow  # a process
def test_the_script_runs_where_normprobe_is_not_installed(folder: Path) -> None:
    for file in folder.rglob("*.safetensors"):
        file.rename(file.with_suffix(".before"))
    guard = "import sys; sys.modules['normprobe'] = None; import runpy; sys.argv = sys.argv[1:]; "
    guard += "runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", guard, folder / "states.py", folder]
    subprocess.run([*command, "--engine", "transformers"], check=True, capture_output=True)
    for file in folder.rglob("*.safetensors"):
        before, now = load_file(file.with_suffix(".before")), load_file(file)
        assert before.keys() == now.keys()
        assert all(torch.equal(before[name], now[name]) for name in now)


def test_without_an_engine_it_says_how_to_run_one(tmp_path: Path) -> None:
    done = invoke("states", "specimen", "-n", "1", "-o", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert done.stdout == f"python {tmp_path}/out/states.py {tmp_path}/out --engine vllm\n"
    asked = json.loads((tmp_path / "out/prompts.json").read_text())
    assert asked["model"] == str(SPECIMEN_DIR)
    (sample,) = asked["samples"]
    assert "<image>" in sample["prompt"] and len(sample["input_ids"]) > 30
    assert (tmp_path / "out" / sample["images"][0]).is_file()
    script = invoke("states", "--script")
    assert script.stdout.strip() == (tmp_path / "out/states.py").read_text().strip()


def test_what_cannot_be_asked_of_an_engine_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = invoke("states", "specimen", "-n", "1", "-o", tmp_path)
    assert_two_lines(done, "holds files, and no prompts.json")
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
    monkeypatch.setattr("normprobe.extensions.check.states.find_spec", lambda name: None)
    asked = ("states", "specimen", "-n", "1", "-o", tmp_path / "new", "--engine", "vllm")
    assert_two_lines(invoke(*asked), "vllm is not installed beside normprobe")
    assert "expected --output DIR, --script or --snippet NAME" in invoke("states").output


@pytest.mark.parametrize(
    ("sample_id", "file"),
    [
        ("pope/24", "pope/24"),
        ("a b", "a%20b"),
        ("../up", "..%2Fup"),
        ("a//b", "a%2F%2Fb"),
        ("/root", "%2Froot"),
        ("a/.", "a%2F."),
    ],
)
def test_names_of_files_stay_readable_and_inside(sample_id: str, file: str) -> None:
    assert file_of(sample_id) == file


# --- what is kept of a forward ------------------------------------------------------------------


class TwoAddends(nn.Module):
    """A decoder layer as vLLM writes it: what is added comes apart from the stream."""

    def forward(self, positions: Tensor, hidden_states: Tensor, residual: Tensor | None) -> Any:
        residual = hidden_states if residual is None else hidden_states + residual
        return 0.5 * residual, residual


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([TwoAddends(), TwoAddends()])

    def forward(self, state: Tensor) -> Tensor:
        residual = None
        for layer in self.layers:
            state, residual = layer(torch.arange(len(state)), state, residual)
        assert residual is not None
        return state + residual


def test_the_two_addends_of_a_residual_stream_are_summed() -> None:
    model, given = Stack(), torch.rand(3, 4)
    observe(model)
    model(given)
    first, second = taken(model), taken(model)
    for (state,), factor in zip(first["states"], (1, 1.5, 2.25), strict=True):
        torch.testing.assert_close(state, factor * given)
    assert second["states"] == [[], [], []]


def test_more_than_one_forward_or_another_prompt_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = engine_states.taken

    def twice(model: nn.Module) -> Any:
        seen = real(model)
        return seen | {"states": [runs * 2 for runs in seen["states"]]}

    monkeypatch.setattr(engine_states, "taken", twice)
    with pytest.raises(
        Unexpected, match="expected one forward of 116 tokens, the engine ran layer"
    ):
        save_states(folder, "transformers")
    asked = json.loads((folder / "prompts.json").read_text())
    asked["samples"][0]["input_ids"][40] += 1
    (folder / "prompts.json").write_text(json.dumps(asked))
    with pytest.raises(Unexpected, match=r"another prompt: .* the first other one is number 40"):
        save_states(folder, "transformers")


def test_pixels_are_told_apart_whatever_their_shape() -> None:
    pixels = torch.rand(2, 3, 4)
    assert described({"a": pixels}) == described({"a": pixels.reshape(6, 4)})
    assert described({"a": pixels})["digest"] != described({"a": pixels + 1e-7})["digest"]
    assert described({"ids": torch.ones(2, 2, dtype=torch.long)}) == {}


@pytest.mark.parametrize("workers", [2, 3])
def test_transformers_has_no_workers(workers: int, tmp_path: Path) -> None:
    with pytest.raises(Unexpected, match="--workers: transformers runs in one process"):
        next(iter(of_transformers(tmp_path, {}, "specimen", "float32", workers)))
