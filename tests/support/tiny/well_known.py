"""The types whose parts are written down in ``expected_parts``, and bare models."""

from support.tiny.fragments import (
    CLIP,
    FIXED_VISION,
    GLM_IDS,
    GPTJ,
    GRID_VISION,
    IMAGE,
    IMAGE_END,
    IMAGE_START,
    INDICATORS,
    LLAMA,
    MROPE,
    PATCH,
    PINPOINTS,
    QWEN2,
    QWEN_IDS,
    SIGLIP,
    TEXT,
    TILE,
    VIDEO,
    VISION,
    VISION_WIDTH,
    VOCABULARY,
    WIDTH,
    Tiny,
)

WELL_KNOWN: dict[str, Tiny] = {
    # --- vision-language models -----------------------------------------------------------------
    "llava": Tiny(
        "LlavaForConditionalGeneration",
        {"text_config": LLAMA, "vision_config": CLIP, "image_token_index": IMAGE},
    ),
    "llava_next": Tiny(
        "LlavaNextForConditionalGeneration",
        {
            "text_config": LLAMA,
            "vision_config": CLIP,
            "image_token_index": IMAGE,
            "image_grid_pinpoints": PINPOINTS,
        },
    ),
    "llava_onevision": Tiny(
        "LlavaOnevisionForConditionalGeneration",
        {
            "text_config": QWEN2,
            "vision_config": SIGLIP | {"vision_use_head": False},
            "image_token_index": IMAGE,
            "video_token_index": VIDEO,
            "image_grid_pinpoints": PINPOINTS,
        },
    ),
    "qwen2_vl": Tiny(
        "Qwen2VLForConditionalGeneration",
        QWEN_IDS
        | {
            "text_config": MROPE,
            "vision_config": GRID_VISION
            | {"embed_dim": VISION_WIDTH, "hidden_size": WIDTH, "mlp_ratio": 2},
        },
    ),
    "qwen2_5_vl": Tiny(
        "Qwen2_5_VLForConditionalGeneration",
        QWEN_IDS
        | {
            "text_config": MROPE,
            "vision_config": GRID_VISION
            | {
                "hidden_size": VISION_WIDTH,
                "out_hidden_size": WIDTH,
                "intermediate_size": 64,
                "window_size": 16,
                "fullatt_block_indexes": [1],
            },
        },
    ),
    "qwen3_vl": Tiny(
        "Qwen3VLForConditionalGeneration",
        QWEN_IDS
        | {
            "text_config": MROPE | {"head_dim": 16},
            "vision_config": GRID_VISION
            | {
                "hidden_size": VISION_WIDTH,
                "out_hidden_size": WIDTH,
                "intermediate_size": 64,
                "num_position_embeddings": 16,
                "deepstack_visual_indexes": [0, 1],
            },
        },
    ),
    "internvl": Tiny(
        "InternVLForConditionalGeneration",
        {
            "text_config": QWEN2,
            "vision_config": VISION | {"image_size": [TILE, TILE], "patch_size": [PATCH, PATCH]},
            "image_token_id": IMAGE,
        },
    ),
    "idefics3": Tiny(
        "Idefics3ForConditionalGeneration",
        {"text_config": LLAMA, "vision_config": FIXED_VISION, "image_token_id": IMAGE},
    ),
    "smolvlm": Tiny(
        "SmolVLMForConditionalGeneration",
        {"text_config": LLAMA, "vision_config": FIXED_VISION, "image_token_id": IMAGE},
    ),
    "gemma3": Tiny(
        "Gemma3ForConditionalGeneration",
        {
            "text_config": TEXT
            | {
                "head_dim": 16,
                "sliding_window": 8,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            "vision_config": SIGLIP | {"vision_use_head": False},
            "mm_tokens_per_image": 4,
            "image_token_index": IMAGE,
            "boi_token_index": IMAGE_START,
            "eoi_token_index": IMAGE_END,
        },
    ),
    "paligemma": Tiny(
        "PaliGemmaForConditionalGeneration",
        {
            "text_config": TEXT | {"model_type": "gemma", "head_dim": 16, "num_key_value_heads": 1},
            "vision_config": SIGLIP | {"vision_use_head": False},
            "image_token_index": IMAGE,
            "projection_dim": WIDTH,
            "hidden_size": WIDTH,
        },
    ),
    "mistral3": Tiny(
        "Mistral3ForConditionalGeneration",
        {
            "text_config": TEXT | {"model_type": "mistral", "head_dim": 16},
            "vision_config": VISION | {"model_type": "pixtral", "image_size": 64},
            "image_token_index": IMAGE,
        },
    ),
    "glm4v": Tiny(
        "Glm4vForConditionalGeneration",
        GLM_IDS
        | {
            "text_config": MROPE,
            "vision_config": GRID_VISION
            | {
                "hidden_size": VISION_WIDTH,
                "out_hidden_size": WIDTH,
                "intermediate_size": 64,
                "image_size": TILE,
            },
        },
    ),
    "ovis2": Tiny(
        "Ovis2ForConditionalGeneration",
        {
            "text_config": QWEN2,
            "vision_config": FIXED_VISION | {"vocab_size": 48, "hidden_stride": 2},
            "image_token_id": IMAGE,
            "visual_indicator_token_ids": list(INDICATORS),
            "hidden_size": WIDTH,
            "vocab_size": VOCABULARY,
        },
    ),
    # The layers of GPT-J return tuples, those of all types above a tensor.
    "llava_gptj": Tiny(
        "LlavaForConditionalGeneration",
        {"text_config": GPTJ, "vision_config": CLIP, "image_token_index": IMAGE},
    ),
    # --- bare vision encoders, with their text tower and alone ------------------------------------
    "clip": Tiny("CLIPModel", {"text_config": TEXT, "vision_config": FIXED_VISION}),
    "clip_vision_model": Tiny("CLIPVisionModel", FIXED_VISION),
    "siglip": Tiny("SiglipModel", {"text_config": TEXT, "vision_config": FIXED_VISION}),
    "siglip_vision_model": Tiny("SiglipVisionModel", FIXED_VISION),
    "siglip2": Tiny(
        "Siglip2Model", {"text_config": TEXT, "vision_config": VISION | {"num_patches": 16}}
    ),
    "siglip2_vision_model": Tiny("Siglip2VisionModel", VISION | {"num_patches": 16}),
    # --- bare language models --------------------------------------------------------------------
    "llama": Tiny("LlamaForCausalLM", TEXT),
    "qwen2": Tiny("Qwen2ForCausalLM", TEXT),
    "qwen3": Tiny("Qwen3ForCausalLM", TEXT | {"head_dim": 16}),
}
