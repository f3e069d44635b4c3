"""Write a trained specimen as a clean, portable checkpoint folder."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import LlavaForConditionalGeneration

# Facts about the machine that saved the files, not about the model.
_NOISE = ("is_local", "local_files_only", "_from_model_config", "_name_or_path")


def export(model: LlavaForConditionalGeneration, processor: Any, folder: Path) -> None:
    """Save a model in bfloat16 together with its processor.

    Args:
        model: The trained model; left in bfloat16.
        processor: Its processor.
        folder: Where the files go.
    """
    torch.nn.Module.to(model, dtype=torch.bfloat16)
    config: Any = model.config
    for part in (config, config.vision_config, config.text_config):
        part.dtype = torch.bfloat16
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    for path in folder.glob("*.safetensors"):
        # They are written for the owner's eyes only; a package is read by others.
        path.chmod(0o644)
    for path in sorted(folder.glob("*config.json")):
        settings = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(
            json.dumps(_without_noise(settings), indent=2, ensure_ascii=False) + "\n",
            encoding="utf-8",
        )


def _without_noise(value: Any) -> Any:
    """Drop the keys of ``_NOISE`` at every level."""
    if isinstance(value, dict):
        return {key: _without_noise(item) for key, item in value.items() if key not in _NOISE}
    return value
