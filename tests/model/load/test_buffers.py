"""A buffer that no checkpoint holds is as a fresh model has it, or the checkpoint is refused."""

import json
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.remote_code import HERE

from normprobe import NormprobeError
from normprobe.model.checkpoint import open_checkpoint
from normprobe.model.load.loading import load_model
from normprobe.model.load.partial_load import changed_buffers

Repository = Callable[[str], Path]

IDS = torch.tensor([[5, 9, 12, 30, 7]])


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The model as plain PyTorch makes it: nothing of transformers' loading takes part."""
    package = tmp_path_factory.mktemp("plain") / "plain_buffers"
    shutil.copytree(HERE / "buffers", package)
    shutil.copy(HERE / "shared/tiny_blocks.py", package)
    (package / "__init__.py").write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(package.parent)
        module: Any = import_module("plain_buffers.modeling_buffers")
    return module.BuffersForCausalLM(module.BuffersConfig(vocab_size=300)).eval()


@pytest.fixture
def folder(repository: Repository, tmp_path: Path) -> Path:
    """The repository, without the buffer that some checkpoints hold."""
    copy = shutil.copytree(repository("buffers"), tmp_path / "buffers")
    tensors = load_file(copy / "model.safetensors")
    del tensors["saved_or_not"]
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    return copy


def with_trait(folder: Path, trait: str) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"trait": trait}))
    tensors = load_file(folder / "model.safetensors")
    gains = {f"layers.{n}.tables.gain": torch.ones(16) for n in range(2)}
    save_file(tensors | gains, folder / "model.safetensors", {"format": "pt"})
    return folder


@torch.no_grad()
def test_every_buffer_is_that_of_a_fresh_model(folder: Path, fresh: Any) -> None:
    for _ in range(3):
        model = load_model(open_checkpoint(str(folder), trust_remote_code=True))
        for name, buffer in fresh.named_buffers():
            torch.testing.assert_close(model.get_buffer(name), buffer, rtol=0, atol=0, msg=name)
        own, other = model.layers[1].tables, fresh.layers[1].tables
        torch.testing.assert_close(own.attribute, other.attribute, rtol=0, atol=0)
        torch.testing.assert_close(own.listed[0], other.listed[0], rtol=0, atol=0)
        fresh.load_state_dict(model.state_dict())
        torch.testing.assert_close(model(IDS).logits, fresh(IDS).logits, rtol=0, atol=0)


def test_a_buffer_that_is_saved_is_read(repository: Repository, tmp_path: Path) -> None:
    folder = shutil.copytree(repository("buffers"), tmp_path / "buffers")
    saved = torch.tensor([4.0, 3.0, 2.0, 1.0])
    tensors = load_file(folder / "model.safetensors") | {"saved_or_not": saved}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    model = load_model(open_checkpoint(str(folder), trust_remote_code=True))
    torch.testing.assert_close(model.saved_or_not, saved, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("trait", "words"),
    [
        ("random", r"tables\.drawn.*random numbers"),
        ("of weights", r"tables\.norm.*does not make it"),
    ],
)
def test_a_buffer_that_nobody_can_make_again_is_refused(
    trait: str, words: str, folder: Path
) -> None:
    with pytest.raises(NormprobeError, match=words):
        load_model(open_checkpoint(str(with_trait(folder, trait)), trust_remote_code=True))


@torch.no_grad()
def test_buffers_of_garbage_are_named(folder: Path) -> None:
    checkpoint = open_checkpoint(str(folder), trust_remote_code=True)
    model = load_model(checkpoint)
    assert changed_buffers(checkpoint, model) == []
    unsaved = [
        (f"{prefix}.{name}", buffer)
        for prefix, module in model.named_modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name in module._non_persistent_buffers_set and buffer.is_floating_point()
    ]
    name, buffer = unsaved[0]
    buffer += 1.0
    assert changed_buffers(checkpoint, model) == [name]
