"""config.json as it stands in its file; nothing where it cannot be read."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.tiny_models import tiny_model
from torch import nn
from transformers import LlamaConfig, LlavaConfig, PretrainedConfig

from normprobe.errors import NormprobeError
from normprobe.model.checkpoint import open_checkpoint
from normprobe.model.config import (
    ADAPTER_CONFIG,
    CONFIG_ENTRY,
    AlignmentSettings,
    adapter_settings,
    read_config_file,
    refuse_kernels,
    refuse_original_llava,
    vision_fields,
    vision_modules,
    write_adapter_settings,
)


def test_the_fields_are_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llava"}')
    assert read_config_file(tmp_path / "config.json") == {"model_type": "llava"}


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_what_cannot_be_read_has_no_fields(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    assert read_config_file(tmp_path / "config.json") == {}


def test_no_file_has_no_fields(tmp_path: Path) -> None:
    assert read_config_file(None) == read_config_file(tmp_path / "absent.json") == {}


# --- which configs speak of images: by the names of their fields, or by what those hold -----------


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


# --- kernels are refused, whichever part of a model they are for ----------------------------------


@pytest.mark.parametrize(
    "config",
    [
        {"attn_implementation": "org/kernel"},
        {"text_config": {"_attn_implementation": "org/kernel"}},
        {"attn_implementation": {"text_config": "org/kernel"}},
        {"experts_implementation": {"vision_config": "eager", "text_config": "org/kernel"}},
    ],
)
def test_a_config_that_fetches_a_kernel_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(NormprobeError, match=r"my/model fetches the kernel org/kernel \("):
        refuse_kernels(config, "my/model")


@pytest.mark.parametrize("value", ["eager", {"text_config": "sdpa"}])
def test_implementations_of_transformers_are_not(value: Any) -> None:
    refuse_kernels({"attn_implementation": value, "_name_or_path": "org/model"}, "my/model")


# --- what adapters and checkpoints of aligned models say of their norm, whole and broken ----------


ENTRY = {"after": "model.multi_modal_projector", "compensate": True}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    tiny_model("llava").save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def adapter(folder: Path, base: Path) -> AlignmentSettings:
    folder.mkdir()
    settings = AlignmentSettings(
        **ENTRY, folder=folder, base_model=str(base), model_type="llava", hidden_size=32
    )
    write_adapter_settings(settings)
    return settings


def test_an_adapter_says_what_was_written(base: Path, tmp_path: Path) -> None:
    settings = adapter(tmp_path / "adapter", base)
    assert adapter_settings(tmp_path / "adapter") == settings
    assert list(json.loads((tmp_path / "adapter" / ADAPTER_CONFIG).read_text())) == [
        "base_model",
        "revision",
        "model_type",
        "hidden_size",
        "after",
        "compensate",
    ]


def test_an_adapter_opens_its_base_and_the_checkpoint_carries_the_settings(
    base: Path, tmp_path: Path
) -> None:
    settings = adapter(tmp_path / "adapter", base)
    checkpoint = open_checkpoint(str(tmp_path / "adapter"))
    assert checkpoint.name == "adapter"
    assert checkpoint.source == str(base)
    assert checkpoint.alignment == settings
    assert checkpoint.local_folders == [str(base), str(tmp_path / "adapter")]


def test_a_checkpoint_of_an_aligned_model_says_so_in_its_config(base: Path) -> None:
    assert open_checkpoint(str(base)).alignment is None
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {CONFIG_ENTRY: ENTRY}))
    checkpoint = open_checkpoint(str(base))
    assert checkpoint.alignment == AlignmentSettings(**ENTRY)
    assert checkpoint.local_folders == [str(base)]


@pytest.mark.parametrize("entry", [{}, {"after": "x"}, "x", [1]])
def test_a_broken_entry_is_refused(entry: object, base: Path) -> None:
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {CONFIG_ENTRY: entry}))
    with pytest.raises(NormprobeError, match="expected after and compensate"):
        open_checkpoint(str(base))


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "{}", json.dumps(ENTRY)])
def test_a_broken_adapter_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / ADAPTER_CONFIG).write_text(content)
    with pytest.raises(NormprobeError, match=f"cannot read .*{ADAPTER_CONFIG}") as failure:
        open_checkpoint(str(tmp_path))
    assert "normprobe align" in failure.value.remedy


def test_a_folder_without_settings_is_no_adapter(base: Path) -> None:
    assert adapter_settings(base) is None
    assert adapter_settings(base / "nowhere") is None


# --- checkpoints of the original LLaVA code are refused, and those of transformers are named ------


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
    "fork",
    [
        {"architectures": ["LlavaMiniLlamaForCausalLM"], **ORIGINAL},
        {"architectures": ["LlavaLlamaForCausalLM"], "mm_projector_type": "mlp2x_gelu"},
    ],
)
def test_a_fork_is_told_no_checkpoint_of_the_original(fork: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(NormprobeError, match="code of its own") as refusal:
        refuse_original_llava("my/model", written(tmp_path, hidden_size=4096, **fork))
    assert "llava-hf" not in refusal.value.remedy


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
