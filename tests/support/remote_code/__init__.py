"""Miniature repositories with code of their own, one a family.

Each has the module names, config fields and inputs that the family publishes, and of its code the
traits that loading, positions and numbers depend on: tiny layers, random weights, a tokenizer of
bytes.
"""

import json
import shutil
from importlib import invalidate_caches
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from normprobe.model.checkpoint import open_checkpoint
from normprobe.remote_code_bridges import foreign_code
from support.remote_code.families import FAMILIES
from support.remote_code.tokenizer import byte_tokenizer

HERE = Path(__file__).parent

#: A folder for ``sys.path``, beside the repositories.
PACKAGES = "packages"


def make_repository(family: str, folder: Path) -> Path:
    """Write a checkpoint that loads with ``trust_remote_code``, weights included.

    The code of a package is written beside it, below ``PACKAGES``.
    """
    spec = FAMILIES[family]
    folder.mkdir(parents=True)
    code = folder.parent / PACKAGES / spec.package.replace(".", "/") if spec.package else folder
    code.mkdir(parents=True, exist_ok=True)
    for source in ("shared", *spec.code, family):
        for file in (HERE / source).glob("*.py"):
            shutil.copy(file, code)
    invalidate_caches()  # a folder on sys.path came or grew
    config = dict(spec.config)
    if spec.special_tokens is not None:
        tokenizer = byte_tokenizer(spec.special_tokens, spec.chat_template)
        tokenizer.save_pretrained(folder)
        spec.fit(config, tokenizer)
    auto_map = {"auto_map": spec.auto_map} if spec.auto_map else {}
    _write(folder / "config.json", {**config, "model_type": family, **auto_map})
    for name, content in spec.files.items():
        _write(folder / name, content)
    model = _built(family, folder)
    randomise(model)
    model.save_pretrained(folder)
    return folder


def plain_model(family: str, folder: Path) -> nn.Module:
    """The model as its ``__init__`` makes it, with its weights: no loader takes part."""
    model = _built(family, folder)
    model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    return model.eval()


def _built(family: str, folder: Path) -> nn.Module:
    import transformers

    config = open_checkpoint(str(folder), trust_remote_code=True).config
    with foreign_code(True, []):
        auto = getattr(transformers, FAMILIES[family].auto_class)
        model: nn.Module = auto.from_config(config, trust_remote_code=True)
    return model


@torch.no_grad()
def randomise(model: nn.Module) -> None:
    """Unit gain: with the usual small weights an image would hardly show behind the projector."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() > 1:
            parameter.copy_(noise / parameter.shape[-1] ** 0.5)
        else:
            parameter.copy_(0.1 * noise + ("norm" in name and name.endswith("weight")))


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2))
