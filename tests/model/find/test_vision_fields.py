"""Which configs speak of images: by the names of their fields, or by what those hold."""

from typing import Any

import pytest
from torch import nn
from transformers import LlamaConfig, LlavaConfig, PretrainedConfig

from normprobe.model.config import vision_fields, vision_modules


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("img_processor", {"name": "a_tower"}),
        ("embd_layer", {"embedding_cls": "image"}),
        ("embd_layer", {"image_embd_layer": {"use": True}}),
        ("vision_tower", "a/tower"),
        ("mm_vision_tower", "a/tower"),
        ("vision_cfg", {}),
        ("visual", {"width": 16}),
        ("encoders", [{"path": "google/siglip-so400m"}]),
        ("tower", "clip_vision_model"),
        ("image_token_id", 7),
        ("vit_config", {"depth": 2}),
    ],
)
def test_a_config_that_speaks_of_images(name: str, value: Any) -> None:
    assert vision_fields(PretrainedConfig(**{name: value})) == [name]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("img_processor", None),
        ("use_image", False),
        ("code_revision", "main"),
        ("supervision", {"division": 2}),
        ("_name_or_path", "home/vision/llama"),
        ("tokenizer_class", "ImageTokenizer"),
        ("activation", "gelu"),
        ("clip_qkv", 8),
    ],
)
def test_a_config_that_does_not(name: str, value: Any) -> None:
    assert vision_fields(PretrainedConfig(**{name: value})) == []


@pytest.mark.parametrize("config", [LlavaConfig(), LlamaConfig(image_token_id=7)])
def test_types_of_transformers_are_known(config: PretrainedConfig) -> None:
    assert vision_fields(config) == []


def test_modules_that_speak_of_images() -> None:
    tower = nn.ModuleDict({"img_proj": nn.Linear(2, 2), "layers": nn.ModuleList()})
    model = nn.ModuleDict({"vision": tower, "division": nn.Linear(2, 2), "text": nn.Linear(2, 2)})
    assert vision_modules(model) == ["vision"]
