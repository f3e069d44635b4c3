"""Inputs files: what a user's file may hold, and what is said of one that cannot be used."""

import json
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from support.commands import invoke
from transformers import AutoModelForCausalLM

from normprobe import NormprobeError, Probe
from normprobe.inputs.inputs_file import NO_INPUTS_FILE, read_inputs_file

#: For the miniature `unseen`: its processor is not used at all, and half of the image is said to be
#: structural.
WHOLE = '''
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
    ids = torch.stack([torch.tensor([9, 8, *[model.config.picture_mark] * 4, 7]) for _ in samples])
    marked = ids == model.config.picture_mark
    newline = torch.zeros_like(marked)
    newline[:, 5] = True
    pixels = torch.stack([
        torch.tensor(list(sample.image.resize((4, 4)).tobytes()), dtype=torch.float32) / 255
        for sample in samples
    ])
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": pixels.reshape(len(samples), 4, 4, 3).permute(0, 3, 1, 2),
        "visual_mask": marked,
        "structural_mask": newline,
    }
'''


@pytest.fixture
def write(tmp_path):
    def write_file(text):
        path = tmp_path / "inputs.py"
        path.write_text(text)
        return path

    return write_file


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "No such file"),
        ("import nothing_of_this_name", "No module named 'nothing_of_this_name'"),
        ("def build(:", "invalid syntax"),
        ("raise SystemError('no')", "no"),
        ("processor = 1", "defines none of the names"),
    ],
)
def test_a_file_that_cannot_be_used(text, problem, tmp_path, write):
    path = tmp_path / "absent.py" if text is None else write(text)
    with pytest.raises(NormprobeError) as raised:
        read_inputs_file(path)
    assert problem in raised.value.problem
    assert "load_processor" in raised.value.remedy


def test_a_file_without_a_python_name(tmp_path):
    path = tmp_path / "inputs.txt"
    path.write_text("parts = {}")
    with pytest.raises(NormprobeError, match="Python file"):
        read_inputs_file(path)


def test_what_one_file_lacks_another_may_have(write):
    file = read_inputs_file(write("parts = {'projector': 'a'}\ndef prepare(model, processor): ..."))
    other = read_inputs_file(write("parts = {'projector': 'b'}\ndef setup(): ..."))
    both = file.over(other)
    assert (both.setup, both.prepare) == (other.setup, file.prepare)
    assert both.parts == {"projector": "a"}
    assert file.over(NO_INPUTS_FILE) == file
