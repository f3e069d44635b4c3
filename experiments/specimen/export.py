"""Write a trained specimen as a clean, portable checkpoint folder.

The files are laid out as those of published LLaVA checkpoints: transformers 4 and 5 read them.
"""

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import LlavaForConditionalGeneration

# Facts about the machine that saved the files, not about the model.
_NOISE = (
    "is_local",
    "local_files_only",
    "_from_model_config",
    "_name_or_path",
    "transformers_version",
)


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
    write_for_both_lines(folder)


def write_for_both_lines(folder: Path) -> None:
    """Rewrite the files of a saved specimen so that transformers 4 reads them too.

    transformers 5 saves the vision encoder one level higher, keeps what belongs to rotary tables
    in ``rope_parameters``, and has another name for the tokenizer's class.
    """
    for path in folder.glob("*.safetensors"):
        weights = load_file(path)
        save_file({_key(name): weights[name] for name in weights}, path, metadata={"format": "pt"})
        # It was written for the owner's eyes only; a package is read by others.
        path.chmod(0o644)
    for path in sorted(folder.glob("*config.json")):
        settings = _for_both_lines(json.loads(path.read_text(encoding="utf-8")))
        path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _key(name: str) -> str:
    return re.sub(r"^vision_tower\.(?!vision_model\.)", "vision_tower.vision_model.", name)


def _for_both_lines(value: Any) -> Any:
    """Settings as both lines of transformers read them, without ``_NOISE``, at every level."""
    if not isinstance(value, dict):
        return value
    settings = {key: _for_both_lines(item) for key, item in value.items() if key not in _NOISE}
    rotary = settings.pop("rope_parameters", None)
    if rotary is not None:
        assert rotary["rope_type"] == "default"
        settings["rope_theta"] = rotary["rope_theta"]
    if settings.get("tokenizer_class") == "TokenizersBackend":
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        assert not settings["extra_special_tokens"]
        settings["extra_special_tokens"] = {"image_token": settings.pop("image_token")}
    return settings
