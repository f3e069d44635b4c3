"""What a repository of each family holds beside its code."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

#: String contents, one line a turn.
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: Contents in parts; the image between media marks.
KIMI_CHAT = (
    "{% for m in messages %}<|im_{{ m['role'] }}|>"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<|media_start|>image<|media_content|><|media_pad|><|media_end|>"
    "{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_assistant|>{% endif %}"
)

UNSEEN_CHAT = KIMI_CHAT.replace(
    "<|media_start|>image<|media_content|><|media_pad|><|media_end|>", "<picture>"
)

#: String contents, which a template joins to other strings.
PHI_CHAT = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)

#: A language model small enough for milliseconds.
LANGUAGE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True)
class Family:
    auto_class: str
    auto_map: dict[str, str]
    config: dict[str, Any]
    #: Sets what depends on the tokenizer.
    fit: Callable[[dict[str, Any], Any], None] = lambda config, tokenizer: None
    special_tokens: Sequence[str] | None = None
    chat_template: str | None = None
    files: dict[str, Any] = field(default_factory=dict)
    code: Sequence[str] = ()  # other families whose files it needs
    package: str = ""  # an installed package that holds the code; empty: the repository does


def _fit_unseen(config: dict[str, Any], tokenizer: Any) -> None:
    config["words"] = len(tokenizer)
    config["picture_mark"] = tokenizer.convert_tokens_to_ids("<picture>")


def _processor(module: str, name: str, image_processor: str = "") -> dict[str, Any]:
    """The files that make AutoProcessor find the repository's own classes."""
    classes = {"AutoProcessor": f"{module}.{name}"}
    files = {"processor_config.json": {"processor_class": name, "auto_map": classes}}
    if image_processor:
        image_class = image_processor.rpartition(".")[2]
        files["preprocessor_config.json"] = {
            "image_processor_type": image_class,
            "processor_class": name,
            "auto_map": {**classes, "AutoImageProcessor": image_processor},
        }
    return files


def _vocabulary_in(*path: str) -> Callable[[dict[str, Any], Any], None]:
    def fit(config: dict[str, Any], tokenizer: Any) -> None:
        for key in path:
            config[key] = dict(config[key])
            config = config[key]
        config["vocab_size"] = len(tokenizer)

    return fit


def _fit_kimi(config: dict[str, Any], tokenizer: Any) -> None:
    _vocabulary_in("text_config")(config, tokenizer)
    config["media_placeholder_token_id"] = tokenizer.convert_tokens_to_ids("<|media_pad|>")


def _fit_molmo(config: dict[str, Any], tokenizer: Any) -> None:
    config["vocab_size"] = config["embedding_size"] = len(tokenizer)


_MOONVIT_IMAGES = "image_processing_moonvit.MoonViTImageProcessor"
_IM = ("<|im_start|>", "<|im_end|>")

FAMILIES = {
    "moonvit": Family(
        "AutoModel",
        {
            "AutoConfig": "configuration_moonvit.MoonViTConfig",
            "AutoModel": "modeling_moonvit.MoonVitPretrainedModel",
        },
        {},
        files={
            "preprocessor_config.json": {
                "image_processor_type": "MoonViTImageProcessor",
                "auto_map": {"AutoImageProcessor": _MOONVIT_IMAGES},
            }
        },
    ),
    "kimi_vl": Family(
        "AutoModelForCausalLM",
        {
            "AutoConfig": "configuration_kimi_vl.KimiVLConfig",
            "AutoModelForCausalLM": "modeling_kimi_vl.KimiVLForConditionalGeneration",
        },
        {"text_config": LANGUAGE, "tie_word_embeddings": True},
        _fit_kimi,
        [
            "<|im_user|>",
            "<|im_system|>",
            "<|im_assistant|>",
            "<|im_end|>",
            *(f"<|media_{name}|>" for name in ("start", "content", "pad", "end")),
        ],
        KIMI_CHAT,
        _processor("processing_kimi_vl", "KimiVLProcessor", _MOONVIT_IMAGES),
        code=("moonvit",),
    ),
    # A class that the project has never seen: no accessor, no known field, names of its own.
    "unseen": Family(
        "AutoModelForCausalLM",
        {
            "AutoConfig": "configuration_unseen.UnseenConfig",
            "AutoModelForCausalLM": "modeling_unseen.UnseenForCausalLM",
        },
        {},
        _fit_unseen,
        ["<|im_user|>", "<|im_system|>", "<|im_assistant|>", "<|im_end|>", "<picture>"],
        UNSEEN_CHAT,
        _processor("processing_unseen", "UnseenProcessor"),
    ),
    # A language model with tables that no checkpoint holds.
    "buffers": Family(
        "AutoModelForCausalLM",
        {
            "AutoConfig": "configuration_buffers.BuffersConfig",
            "AutoModelForCausalLM": "modeling_buffers.BuffersForCausalLM",
        },
        {},
    ),
    # Says nothing of vision but in dicts, marks images by negative ids, changes its inputs.
    "inplace": Family(
        "AutoModelForCausalLM",
        {
            "AutoConfig": "configuration_inplace.InplaceConfig",
            "AutoModelForCausalLM": "modeling_inplace.InplaceForCausalLM",
        },
        {},
        _vocabulary_in(),
        ["<|im_user|>", "<|im_system|>", "<|im_assistant|>", "<|im_end|>", "<picture>"],
        UNSEEN_CHAT,
        _processor("processing_inplace", "InplaceProcessor"),
    ),
    "ovis2_5": Family(
        "AutoModelForCausalLM",
        {
            "AutoConfig": "configuration_ovis2_5.Ovis2_5_Config",
            "AutoModelForCausalLM": "modeling_ovis2_5.Ovis2_5",
        },
        {
            "llm_config": LANGUAGE,
            "hidden_size": LANGUAGE["hidden_size"],
            "visual_vocab_size": 50,
            "vit_config": {"patch_size": 56, "hidden_stride": 2, "temporal_patch_size": 1},
        },
        _vocabulary_in("llm_config"),
        _IM,
        CHAT,
        {
            "preprocessor_config.json": {
                "image_processor_type": "SiglipImageProcessor",
                "do_rescale": True,
                "rescale_factor": 1 / 255,
                "do_normalize": True,
                "image_mean": [0.5, 0.5, 0.5],
                "image_std": [0.5, 0.5, 0.5],
            }
        },
    ),
    "minicpmv": Family(
        "AutoModelForCausalLM",
        {
            "AutoConfig": "configuration_minicpm.MiniCPMVConfig",
            "AutoModel": "modeling_minicpmv.MiniCPMV",
            "AutoModelForCausalLM": "modeling_minicpmv.MiniCPMV",
        },
        {**LANGUAGE, "vision_config": {}},
        _vocabulary_in(),
        (*_IM, "<image>", "</image>", "<slice>", "</slice>"),
        CHAT,
        _processor(
            "processing_minicpmv", "MiniCPMVProcessor", "processing_minicpmv.MiniCPMVImageProcessor"
        ),
    ),
    "molmo": Family(
        "AutoModelForCausalLM",
        {
            "AutoConfig": "config_molmo.MolmoConfig",
            "AutoModelForCausalLM": "modeling_molmo.MolmoForCausalLM",
        },
        {"hidden_size": 32, "num_hidden_layers": 3},
        _fit_molmo,
        ("<im_start>", "<im_end>", "<im_patch>", "<im_col>"),
        files=_processor(
            "preprocessing_molmo", "MolmoProcessor", "preprocessing_molmo.MolmoImageProcessor"
        ),
    ),
    "deepseek_vl_v2": Family(
        "AutoModelForCausalLM",
        {},
        {"language_config": LANGUAGE},
        _vocabulary_in("language_config"),
        ("<image>", "<|User|>", "<|Assistant|>"),
        files={"processor_config.json": {"processor_class": "DeepseekVLV2Processor"}},
        package="deepseek_vl2.models",
    ),
    "phi4mm": Family(
        "AutoModelForCausalLM",
        {
            "AutoConfig": "configuration_phi4mm.Phi4MMConfig",
            "AutoModelForCausalLM": "modeling_phi4mm.Phi4MMForCausalLM",
        },
        # The image token is a constant of the code, far behind the bytes.
        {
            **LANGUAGE,
            "hidden_size": 16,
            "head_dim": 4,
            "vocab_size": 200064,
            "embd_layer": {"image_embd_layer": {"hd_transform_order": "sub_glb"}},
            "vision_lora": {"r": 2, "lora_alpha": 8},
        },
        special_tokens=("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
        files=_processor(
            "processing_phi4mm", "Phi4MMProcessor", "processing_phi4mm.Phi4MMImageProcessor"
        ),
    ),
    "phi3_v": Family(
        "AutoModelForCausalLM",
        {
            "AutoConfig": "configuration_phi3_v.Phi3VConfig",
            "AutoModelForCausalLM": "modeling_phi3_v.Phi3VForCausalLM",
        },
        {
            "img_processor": {"name": "clip_vision_model"},
            "embd_layer": {"embedding_cls": "image", "hd_transform_order": "sub_glb"},
        },
        _vocabulary_in(),
        ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
        PHI_CHAT,
        _processor("processing_phi3_v", "Phi3VProcessor", "processing_phi3_v.Phi3VImageProcessor"),
    ),
    "internvl_chat": Family(
        "AutoModelForCausalLM",
        {
            "AutoConfig": "configuration_internvl_chat.InternVLChatConfig",
            "AutoModel": "modeling_internvl_chat.InternVLChatModel",
            "AutoModelForCausalLM": "modeling_internvl_chat.InternVLChatModel",
        },
        {
            "llm_config": LANGUAGE,
            "force_image_size": 28,
            "template": "tiny",
            "dynamic_image_size": True,
            "use_thumbnail": True,
            "max_dynamic_patch": 12,
        },
        _vocabulary_in("llm_config"),
        (*_IM, "<img>", "</img>", "<IMG_CONTEXT>"),
        CHAT,  # of its language model: images are unknown to it
        {"preprocessor_config.json": {"feature_extractor_type": "CLIPFeatureExtractor"}},
    ),
}
