"""Checkpoints of the original LLaVA code are refused, and those of transformers are named."""

import json
from pathlib import Path
from typing import Any

import pytest

from normprobe.errors import NormprobeError
from normprobe.model.config import refuse_original_llava

ORIGINAL = {"mm_vision_tower": "openai/clip-vit-large-patch14-336"}


def written(folder: Path, **config: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    return file


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({"architectures": ["LlavaLlamaForCausalLM"], "hidden_size": 4096}, ["llava-1.5-7b-hf"]),
        ({"architectures": ["LlavaLlamaForCausalLM"], "hidden_size": 5120}, ["llava-1.5-13b-hf"]),
        (
            {"model_type": "llava_llama", "hidden_size": 5120, "image_aspect_ratio": "anyres"},
            ["llava-v1.6-vicuna-13b-hf"],
        ),
        (
            {"model_type": "llava_llama", "hidden_size": 7168, "image_aspect_ratio": "anyres"},
            ["llava-v1.6-34b-hf"],
        ),
        (
            {"model_type": "llava_llama", "hidden_size": 4096, "vocab_size": 128256},
            ["llama3-llava-next-8b-hf"],
        ),
        ({"model_type": "llava_mistral", "hidden_size": 4096}, ["llava-v1.6-mistral-7b-hf"]),
        (
            {"model_type": "llava", "architectures": ["LlavaQwenForCausalLM"], "hidden_size": 896},
            ["llava-onevision-qwen2-0.5b-ov-hf"],
        ),
        (
            {"model_type": "llava", "hidden_size": 2048},
            ["llava-1.5-7b-hf", "llava-1.5-13b-hf"],
        ),
    ],
)
def test_the_checkpoints_that_fit_its_size_are_named(
    config: dict[str, Any], names: list[str], tmp_path: Path
) -> None:
    with pytest.raises(NormprobeError, match="original LLaVA code") as refusal:
        refuse_original_llava("my/model", written(tmp_path, **ORIGINAL, **config))
    for name in names:
        assert f"llava-hf/{name}" in refusal.value.remedy
    assert refusal.value.remedy.count("llava-hf/") == len(names)
    assert "my/model" in refusal.value.problem


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llava", "vision_config": {}},
        {"model_type": "llava", **ORIGINAL, "auto_map": {"AutoConfig": "code.Config"}},
        {"model_type": "llava", "mm_vision_tower": None},
    ],
)
def test_others_are_not(config: dict[str, Any], tmp_path: Path) -> None:
    refuse_original_llava("my/model", written(tmp_path, **config))
    refuse_original_llava("my/model", None)
