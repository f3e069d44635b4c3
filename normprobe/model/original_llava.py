"""Checkpoints of the original LLaVA code: refused, with the transformers checkpoints named.

Their config describes a vision tower by its hub id alone, and no part of their code is in
transformers or in the repository. Read as a LLaVA of transformers they would be a default model
that is not there.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from normprobe.errors import NormprobeError
from normprobe.model.config_file import read_config_file

#: Fields that only configs of the original code have.
_FIELDS = ("mm_vision_tower", "mm_projector_type")

#: The conversions, below llava-hf/ on the hub, by language model and its hidden size.
_LLAVA_1_5: dict[Any, str] = {4096: "llava-1.5-7b-hf", 5120: "llava-1.5-13b-hf"}
_LLAVA_NEXT: dict[str, dict[Any, str]] = {
    "llama": {
        4096: "llava-v1.6-vicuna-7b-hf",
        5120: "llava-v1.6-vicuna-13b-hf",
        7168: "llava-v1.6-34b-hf",
    },
    "llama 3": {4096: "llama3-llava-next-8b-hf"},
    "mistral": {4096: "llava-v1.6-mistral-7b-hf"},
}
_ONEVISION: dict[Any, str] = {
    896: "llava-onevision-qwen2-0.5b-ov-hf",
    3584: "llava-onevision-qwen2-7b-ov-hf",
    8192: "llava-onevision-qwen2-72b-ov-hf",
}
_LLAMA_3_VOCABULARY = 128_000


def refuse_original_llava(model: str, config_file: Path | None) -> None:
    """Refuse a checkpoint of the original LLaVA code."""
    config = read_config_file(config_file)
    fields = [name for name in _FIELDS if config.get(name)]
    if not fields or config.get("auto_map"):  # with its own code beside it, it may well run
        return
    kind = ", ".join(config.get("architectures") or [str(config.get("model_type"))])
    names = [f"llava-hf/{name}" for name in _conversions(config)]
    raise NormprobeError(
        f"{model} is a checkpoint of the original LLaVA code ({kind}; {' and '.join(fields)} in "
        "config.json), which transformers does not load",
        f"use {' or '.join(names)}, or convert it with a convert_llava script of transformers",
    )


def _conversions(config: Mapping[str, Any]) -> list[str]:
    """The checkpoint that was converted from one of this size; all of its kind if none fits.

    LLaVA-NeXT (1.6) cuts images into tiles (``anyres``), 1.5 does not.
    """
    told = " ".join([str(config.get("model_type")), *(config.get("architectures") or [])]).lower()
    if "qwen" in told:
        by_size = _ONEVISION
    elif "mistral" in told:
        by_size = _LLAVA_NEXT["mistral"]
    elif (config.get("vocab_size") or 0) >= _LLAMA_3_VOCABULARY:
        by_size = _LLAVA_NEXT["llama 3"]
    elif "anyres" in str(config.get("image_aspect_ratio")):
        by_size = _LLAVA_NEXT["llama"]
    else:
        by_size = _LLAVA_1_5
    fitting = by_size.get(config.get("hidden_size"))
    return list(by_size.values()) if fitting is None else [fitting]
