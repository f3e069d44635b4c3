"""Miniatures of the paper's models: the same architectures, random weights."""

from collections.abc import Callable
from pathlib import Path

import transformers
from transformers.utils import is_torchvision_available

from support.processors import NAMES, make_checkpoint
from support.processors.recipe import SQUARE
from support.processors.tokenizer import character_tokenizer
from support.tiny_models import tiny_model

#: Model types, by hub id; the paper's SigLIP 2 of one fixed size has the type of SigLIP.
TYPES = {
    "openai/clip-vit-large-patch14": "clip",
    "google/siglip-so400m-patch14-384": "siglip",
    "google/siglip2-so400m-patch14-384": "siglip",
    "Qwen/Qwen2.5-7B-Instruct": "qwen2",
    "Qwen/Qwen2-7B-Instruct": "qwen2",
    "Qwen/Qwen3-8B": "qwen3",
    "meta-llama/Llama-3.2-3B-Instruct": "llama",
    "llava-hf/llava-1.5-7b-hf": "llava",
    "Qwen/Qwen2-VL-7B-Instruct": "qwen2_vl",
    "Qwen/Qwen2.5-VL-7B-Instruct": "qwen2_5_vl",
    "zai-org/GLM-4.1V-9B-Thinking": "glm4v",
}
#: Families with code of their own.
FAMILIES = {
    "moonshotai/MoonViT-SO-400M": "moonvit",
    "moonshotai/Kimi-VL-A3B-Instruct": "kimi_vl",
    "AIDC-AI/Ovis2.5-9B": "ovis2_5",
}
#: Their processors read videos too; without torchvision a LLaVA takes their place.
NEED_TORCHVISION = ("qwen2_vl", "qwen2_5_vl", "glm4v")


def stand_in(hub_id: str, root: Path, repository: Callable[[str], Path]) -> Path:
    """The folder of a miniature, written once below ``root``."""
    if hub_id in FAMILIES:
        return repository(FAMILIES[hub_id])
    model_type = TYPES[hub_id]
    if model_type in NEED_TORCHVISION and not is_torchvision_available():
        model_type = "llava"
    folder = root / f"tiny-{model_type}"
    if folder.exists():
        return folder
    if model_type in ("clip", "siglip"):
        processor = {"clip": "CLIPImageProcessorPil", "siglip": "SiglipImageProcessorPil"}
        options = SQUARE | ({"do_center_crop": False} if model_type == "clip" else {})
        getattr(transformers, processor[model_type])(**options).save_pretrained(folder)
    elif model_type in ("qwen2", "qwen3", "llama"):
        character_tokenizer(NAMES, {}, ()).save_pretrained(folder)
    else:
        return make_checkpoint(model_type, folder)
    tiny_model(model_type).save_pretrained(folder)
    return folder
