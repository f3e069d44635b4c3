"""Inputs files: what a user's file may hold, and what is said of one that cannot be used."""

import importlib
import json
import sys
from dataclasses import replace
from hashlib import sha256

import pytest
import torch
from support.commands import invoke

from normprobe import NormprobeError, Probe, load_run
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.inputs_file import (
    NO_INPUTS_FILE,
    InputsFile,
    read_inputs_file,
    stand_in,
)
from normprobe.tidy import select

#: For the miniature `unseen`: its processor is not used at all, and half of the image is said to be
#: structural.
WHOLE = """
import torch
from pathlib import Path

def setup():
    Path(__file__).with_name("setup").touch()

def load_processor(path):
    from transformers import AutoTokenizer
    return AutoTokenizer.from_pretrained(path, trust_remote_code=True)

def prepare(model, processor):
    model.prepared_with = type(processor).__name__

def build(model, processor, samples, system):
    assert model.prepared_with == type(processor).__name__
    ids = torch.tensor([[65, 66, *[model.config.picture_mark] * 4, 67, 68, 69]] * len(samples))
    marked = ids == model.config.picture_mark
    newline = torch.zeros_like(marked)
    newline[:, 5] = True
    pixels = torch.stack([
        torch.tensor(list(sample.image.resize((16, 16)).tobytes()), dtype=torch.float32)
        .reshape(2, 8, 2, 8, 3).permute(0, 2, 4, 1, 3).reshape(4, 3, 8, 8) / 255
        for sample in samples
    ])
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": pixels,
        "visual_mask": marked,
        "structural_mask": newline,
    }
"""


@pytest.fixture
def write(tmp_path):
    def write_file(text):
        path = tmp_path / "inputs.py"
        path.write_text(text)
        return path

    return write_file


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("absent.py", None, "No such file"),
        ("inputs.txt", "parts = {}", "expected the name of a Python file"),
        ("inputs.py", "import nothing_of_this_name", "No module named 'nothing_of_this_name'"),
        ("inputs.py", "def build(:", "invalid syntax"),
        ("inputs.py", "raise SystemError('no')", "no"),
        ("inputs.py", "processor = 1", "defines none of the names"),
    ],
)
def test_a_file_that_cannot_be_used(name, text, problem, tmp_path):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(NormprobeError) as raised:
        read_inputs_file(path)
    assert problem in raised.value.problem
    assert "load_processor" in raised.value.remedy


def test_what_one_file_lacks_another_may_have(write):
    prepare = "def prepare(model, processor): ...\n"
    file = read_inputs_file(write(prepare + "parts = {'projector': 'a'}"))
    other = read_inputs_file(write(prepare + "parts = {'projector': 'b'}\ndef setup(): ..."))
    assert file.prepare != other.prepare
    both = file.over(other)
    assert both.setup == other.setup
    assert file.over(replace(other, prepare=None)).prepare == file.prepare
    assert both.parts == {"projector": "a"}
    assert file.over(NO_INPUTS_FILE) == file
    assert (
        file.over(InputsFile(record={"family": "known"})).names
        == f"known and {file.record['path']}"
    )
    assert NO_INPUTS_FILE.names == "its family"


def test_both_files_prepare_the_model():
    """What the build of a family needs is there before a user's own."""
    family = InputsFile(prepare=lambda model, _: model.append("family") or ["its token"])
    user = InputsFile(prepare=lambda model, _: model.append("user"))
    model = []
    assert user.over(family).prepare(model, None) == ["its token"]
    assert model == ["family", "user"]


def test_every_function_of_a_file_is_used(repository, write, tmp_path, monkeypatch):
    """The model of a processor that is not asked: two image positions of four are patches."""
    monkeypatch.chdir(tmp_path)
    path = write(WHOLE)
    model = str(repository("unseen"))
    options = ["--trust-remote-code", "--inputs", str(path), "-n", "3", "-o", "out", "-b", "2"]
    result = invoke("layers", model, *options)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "setup").exists()
    rows = select(load_run("out").table, "norm", layer=1).set_index("group")
    assert rows.loc[["visual", "structural"], "tokens"].tolist() == [3 * 3, 3 * 1]
    record = json.loads((tmp_path / "out/run.json").read_text())
    assert record["inputs_file"] == {
        "path": str(path),
        "sha256": sha256(path.read_bytes()).hexdigest(),
    }


def test_another_inputs_file_is_another_run(repository, write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--trust-remote-code", "--inputs", "inputs.py", "-n", "1", "-o", "out"]
    command = ["layers", str(repository("unseen")), *options]
    write(WHOLE)
    assert invoke(*command).exit_code == 0
    write(WHOLE + "# changed")
    result = invoke(*command, "--resume")
    assert result.exit_code == 1
    assert "another inputs file" in result.stderr


def test_parts_of_a_file_give_way_to_names_typed(repository, write):
    path = write("parts = {'projector': 'eye', 'decoder_layers': 'tower'}")
    options = {"trust_remote_code": True, "inputs": path}
    with pytest.raises(NormprobeError, match="no module 'nowhere'"):
        Probe(str(repository("unseen")), **options, named={"projector": "nowhere"}).load("layers")


def test_a_part_that_does_not_exist(repository, write):
    probe = Probe(
        str(repository("unseen")),
        trust_remote_code=True,
        inputs=write("parts = {'tower': 'tower'}"),
    )
    with pytest.raises(NormprobeError, match="no part 'tower'"):
        probe.load("layers")


def test_a_package_that_is_not_there_is_stood_in_for(monkeypatch):
    """As flash_attn where there is no GPU: code imports it, and nothing of it may run."""
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    stand_in("nobodys_kernels")
    inside = importlib.import_module("nobodys_kernels.inside.layers")
    outer = sys.modules["nobodys_kernels"]
    assert outer.__version__ == "0.0.0" and importlib.util.find_spec("nobodys_kernels")
    with pytest.raises(NormprobeError, match="the code of the model calls nobodys_kernels"):
        inside.rotary(1)

    class Derived(inside.Layer, torch.nn.Module):  # OpenVLA-OFT's settings, ModRWKV's model
        size: "int | None" = None

    assert issubclass(Derived, torch.nn.Module) and not isinstance(1, inside.Layer)
    with pytest.raises(NormprobeError, match="the code of the model calls nobodys_kernels"):
        Derived()
    stand_in("json")  # one that is there stays
    assert importlib.import_module("json").loads("1") == 1
    for name in [name for name in sys.modules if name.startswith("nobodys_kernels")]:
        del sys.modules[name]


def test_kernels_may_be_defined_and_not_run(monkeypatch):
    """As triton's, by decorators, where there is no GPU (ZAYA1-VL)."""
    if importlib.util.find_spec("triton") is not None:
        pytest.skip("triton is here")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    stand_in("triton")
    triton = importlib.import_module("triton")
    language = importlib.import_module("triton.language")

    @triton.autotune(configs=[triton.Config({"SIZE": 4}, num_warps=2)], key=["n"])
    @triton.jit
    def kernel(pointer, n: language.constexpr): ...

    for run in (lambda: kernel[(1,)](1), lambda: kernel(torch.ones(1))):
        with pytest.raises(NormprobeError, match="the code of the model calls triton"):
            run()
    if importlib.util.find_spec("numba") is None:  # MGM-Omni's
        stand_in("numba")
        cuda = importlib.import_module("numba").cuda
        assert cuda.jit(lambda: None) is not None
    for name in [name for name in sys.modules if name.partition(".")[0] in ("triton", "numba")]:
        del sys.modules[name]


BEGUN = """
def setup():
    import json  # a guess: a class is there
    pass  # a guess; what its code loads

TURN = "Ask: {prompt}"  # a guess
PADDED = False  # pictures, to squares first; a guess
TAKES = {
    "input_ids": "input_ids",
    # "extra": NAME,  # a guess that it does without
}
def build(model, processor, samples, system):
    made = TAKES
    return made
"""


@pytest.mark.parametrize("value", ["Linear(2, 2)", "Linear(2, 2).weight"])
def test_keywords_hold_no_module_and_no_tensor(value, tmp_path):
    """It would be part of each build, and one of them would leave it without its buffers."""
    file = tmp_path / "mine.py"
    file.write_text(f"from torch.nn import Linear\nkeywords = {{'language_model': {value}}}\n")
    with pytest.raises(NormprobeError, match=r"keywords of .* as language_model: all builds"):
        read_inputs_file(file)


def test_lines_that_are_guesses_still_are_told(tmp_path):
    """Of what makes inputs; what was imported is seen to be there."""
    path = tmp_path / "begun.py"
    path.write_text(BEGUN)
    file = read_inputs_file(path)
    assert list(file.guesses) == [6, 7]
    (told,) = InputBuilder(None, inputs_file=file).left_out
    assert told.startswith(f"lines 6, 7 of {path} are guesses still")
    assert told.endswith("take 'a guess' away")
    path.write_text(BEGUN.replace("  # a guess\n", "\n").replace("; a guess\n", "\n"))
    assert InputBuilder(None, inputs_file=read_inputs_file(path)).left_out == []
