"""Fingerprints of local files and digests of tensors: by content, to the last byte."""

import os
import random
from pathlib import Path

import pytest
import torch
from support.cases import model_of
from support.tiny_models import tiny_model
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from normprobe.model.checkpoint import open_checkpoint
from normprobe.model.load.loading import load_model
from normprobe.runs.fingerprints import fingerprints, one_digest, tensor_digests


def test_files_below_a_folder_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    for name in ("a.txt", "below/a.txt", ".cache/a.txt", "below/__pycache__/a.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    single = tmp_path / "below/a.txt"
    found = fingerprints(str(tmp_path), str(single), "org/model")
    assert sorted(found) == ["0:a.txt", "0:below/a.txt", "1:a.txt"]
    assert found["0:below/a.txt"] == found["1:a.txt"] != found["0:a.txt"]


def test_runs_below_a_folder_are_none_of_its_files(tmp_path: Path) -> None:
    """A folder of data may be a run itself: then its files count."""
    for name in ("run.json", "a.txt", "runs/first/run.json", "runs/first/layers.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert list(fingerprints(str(tmp_path))) == ["0:a.txt", "0:run.json"]


def test_a_copy_is_the_same_and_a_byte_makes_another(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"weights")
    (tmp_path / "b").write_bytes(b"weights")
    (tmp_path / "c").write_bytes(b"weightS")
    os.utime(tmp_path / "b", (1, 1))
    found = fingerprints(str(tmp_path))
    assert found["0:a"] == found["0:b"] != found["0:c"]


def test_a_large_file_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "table.parquet"
    length = 16 << 20
    file.touch()
    os.truncate(file, length)
    seen = {fingerprints(str(file))["0:table.parquet"]}
    chance = random.Random(0)
    for at in (0, length - 1, *(chance.randrange(length) for _ in range(4))):
        with file.open("r+b") as content:
            content.seek(at)
            content.write(b"x")
        seen.add(fingerprints(str(file))["0:table.parquet"])
    assert len(seen) == 7


def test_weights_and_pictures_are_told_where_they_are_read(tmp_path: Path) -> None:
    for name in ("model.safetensors", "pytorch_model.bin", "a.JPG", "config.json"):
        (tmp_path / name).write_text(name)
    assert list(fingerprints(str(tmp_path))) == ["0:config.json"]


def names_of(model: nn.Module) -> set[str]:
    return {name for name, _ in [*model.named_parameters(), *model.named_buffers()]}


def test_one_bit_of_a_tensor_tells_its_name_and_no_other() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 2**10))
    before = tensor_digests(model, names_of(model))
    assert before.keys() == model.state_dict().keys()
    assert all(len(digest) == 16 for digest in before.values())
    assert tensor_digests(model, names_of(model)) == before
    chance = random.Random(0)
    for name, tensor in model.state_dict().items():
        bits = tensor.flatten().view(torch.uint8)
        bits[chance.randrange(len(bits))] ^= 1 << chance.randrange(8)
        after = tensor_digests(model, names_of(model))
        assert [key for key in before if before[key] != after[key]] == [name]
        before = after


def test_type_and_shape_belong_to_a_tensor() -> None:
    zeros = [torch.zeros(4, 2), torch.zeros(2, 4), torch.zeros(4, 2, dtype=torch.int32)]
    models = [nn.Module() for _ in zeros]
    for model, tensor in zip(models, zeros, strict=True):
        model.register_buffer("zeros", tensor)
    assert len({tensor_digests(model, {"zeros"})["zeros"] for model in models}) == 3


@pytest.mark.parametrize("changed", ["values", "scales"])
def test_each_tensor_inside_a_quantised_one_has_a_say(changed: str) -> None:
    parts = {"values": torch.ones(4, 2), "scales": torch.zeros(4, 2)}
    other = parts | {changed: torch.full((4, 2), 3.0)}
    models = [nn.Module() for _ in range(3)]
    for model, held in zip(models, (parts, dict(parts), other), strict=True):
        model.register_parameter("both", nn.Parameter(TwoTensor(*held.values())))
    told = [tensor_digests(model, {"both"})["both"] for model in models]
    assert told[0] == told[1] != told[2]


def test_a_tied_tensor_is_told_once() -> None:
    model = model_of("paligemma")
    first, again = "model.language_model.embed_tokens.weight", "lm_head.weight"
    assert model.get_parameter(first) is model.get_parameter(again)
    both, alone = tensor_digests(model, {first, again}), tensor_digests(model, {again})
    assert list(both) == [first]
    assert alone == {again: both[first]}


def test_the_layout_in_memory_is_no_part_of_a_tensor() -> None:
    rows = torch.arange(6.0).reshape(2, 3)
    told = []
    for tensor in (rows.T, rows.T.contiguous()):
        model = nn.Module()
        model.register_buffer("values", tensor)
        told.append(tensor_digests(model, {"values"}))
    assert not rows.T.is_contiguous()
    assert told[0] == told[1]


def test_only_what_a_checkpoint_holds_and_a_measurement_reads_is_told() -> None:
    model = nn.ModuleDict({"read": nn.Linear(2, 2), "left": nn.Linear(2, 2)})
    model["read"].register_buffer("computed", torch.zeros(2), persistent=False)
    assert set(tensor_digests(model, {"read.weight"})) == {"read.weight", "read.bias"}


@pytest.mark.parametrize("place", ["cpu", "disk"])
def test_offloaded_tensors_are_those_in_memory(place: str, tmp_path: Path) -> None:
    tiny_model("llava").save_pretrained(tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    plain = load_model(checkpoint, device="cpu")
    here = {name: "cpu" for name, _ in plain.named_children()}
    there = load_model(checkpoint, device_map=here | {"model": place})
    assert any(parameter.is_meta for parameter in there.parameters()) == (place == "disk")
    assert tensor_digests(there, names_of(plain)) == tensor_digests(plain, names_of(plain))


def test_one_digest_of_many_is_that_of_their_tensors_whatever_their_names() -> None:
    digests = {"model.a": "11", "model.b": "22", "none": None}
    assert one_digest(digests) == one_digest({"b": "22", "language_model.a": "11"})
    assert one_digest(digests) != one_digest({**digests, "c": "33"})
