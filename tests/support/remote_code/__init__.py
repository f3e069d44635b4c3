"""Miniature repositories with code of their own, one a family.

Each has the module names, config fields and inputs that the family publishes, and nothing else of
it: tiny layers, random weights, a tokenizer of bytes. What these miniatures do not show is said in
``normprobe/inputs/families/__init__.py``: the real code was read in excerpts, never executed.
"""

import json
import shutil
from pathlib import Path

import torch
from torch import nn

from normprobe.bridges import foreign_code
from support.remote_code.families import FAMILIES
from support.remote_code.tokenizer import byte_tokenizer

HERE = Path(__file__).parent


def make_repository(family: str, folder: Path) -> Path:
    """Write a checkpoint that loads with ``trust_remote_code``, weights included."""
    import transformers

    spec = FAMILIES[family]
    folder.mkdir(parents=True)
    for source in ("shared", *spec.code, family):
        for file in (HERE / source).glob("*.py"):
            shutil.copy(file, folder)
    config = dict(spec.config)
    if spec.special_tokens is not None:
        tokenizer = byte_tokenizer(spec.special_tokens, spec.chat_template)
        tokenizer.save_pretrained(folder)
        spec.fit(config, tokenizer)
    _write(folder / "config.json", {**config, "model_type": family, "auto_map": spec.auto_map})
    for name, content in spec.files.items():
        _write(folder / name, content)
    auto = getattr(transformers, spec.auto_class)
    with foreign_code(True, []):
        loaded = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
        model = auto.from_config(loaded, trust_remote_code=True)
    randomise(model)
    model.save_pretrained(folder)
    return folder


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
