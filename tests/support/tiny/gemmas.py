"""The Gemma family, and the robot policy that is built on PaliGemma."""

from support.tiny.fragments import (
    EXPERTS,
    GEMMA_AUDIO_IDS,
    GEMMA_IDS,
    HEADED,
    HEADLESS_SIGLIP,
    IMAGE,
    PATCH,
    SLIDING,
    TILE,
    VIDEO,
    VISION,
    VOCABULARY,
    WIDTH,
    Tiny,
)

GEMMA3 = GEMMA_IDS | {
    "text_config": HEADED | SLIDING,
    "vision_config": HEADLESS_SIGLIP,
    "mm_tokens_per_image": 4,
}
#: Patches pooled two by two; a learned position for each row and column.
GEMMA4_VISION = VISION | {
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pooling_kernel_size": 2,
    "position_embedding_size": 64,
}
#: Gemma 4 ends with a full layer, whose heads are wider.
GEMMA4_TEXT = HEADED | {
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "per_layer_config": {2: {"head_dim": 32}},
}

GEMMAS: dict[str, Tiny] = {
    "shieldgemma2": Tiny("Gemma3ForConditionalGeneration", GEMMA3),
    "t5gemma2": Tiny(
        "T5Gemma2ForConditionalGeneration",
        {
            "encoder": GEMMA3,
            "decoder": HEADED | SLIDING,
            "image_token_index": IMAGE,
            "eoi_token_index": GEMMA_IDS["eoi_token_index"],
        },
    ),
    "gemma3n": Tiny(
        "Gemma3nForConditionalGeneration",
        GEMMA_IDS
        | GEMMA_AUDIO_IDS
        | {
            "text_config": HEADED
            | SLIDING
            | {
                "intermediate_size": [96] * 3,
                "activation_sparsity_pattern": [0.0] * 3,
                "hidden_size_per_layer_input": 16,
                "vocab_size_per_layer_input": VOCABULARY,
                "laurel_rank": 8,
                "num_kv_shared_layers": 0,
            },
            "vision_config": {
                "architecture": "test_resnet",
                "hidden_size": 96,
                "vocab_offset": VOCABULARY,
                "vocab_size": 8,
            },
            "audio_config": {
                "hidden_size": 32,
                "input_feat_size": 16,
                "conf_num_hidden_layers": 2,
                "conf_num_attention_heads": 2,
                "vocab_offset": VOCABULARY + 8,
                "vocab_size": 8,
            },
            "vision_soft_tokens_per_image": 4,
        },
    ),
    "gemma4": Tiny(
        "Gemma4ForConditionalGeneration",
        GEMMA_IDS
        | GEMMA_AUDIO_IDS
        | {
            "text_config": GEMMA4_TEXT
            | {
                "hidden_size_per_layer_input": 16,
                "vocab_size_per_layer_input": VOCABULARY,
                "num_kv_shared_layers": 0,
            },
            "vision_config": GEMMA4_VISION,
            "video_token_id": VIDEO,
        },
    ),
    # No encoder: patches are projected as they are.
    "gemma4_unified": Tiny(
        "Gemma4UnifiedForConditionalGeneration",
        GEMMA_IDS
        | GEMMA_AUDIO_IDS
        | {
            "text_config": GEMMA4_TEXT,
            "vision_config": {
                "patch_size": PATCH,
                "pooling_kernel_size": 1,
                "mm_embed_dim": WIDTH,
                "mm_posemb_size": TILE,
                "output_proj_dims": WIDTH,
            },
            "video_token_id": VIDEO,
        },
    ),
    "diffusion_gemma": Tiny(
        "DiffusionGemmaForBlockDiffusion",
        GEMMA_IDS
        | {
            "text_config": GEMMA4_TEXT | EXPERTS | {"top_k_experts": 2},
            "vision_config": GEMMA4_VISION,
            "canvas_length": 8,
        },
    ),
    "pi0": Tiny(
        "PI0ForConditionalGeneration",
        {
            "vlm_config": {
                "text_config": HEADED | {"model_type": "gemma"},
                "vision_config": HEADLESS_SIGLIP,
                "image_token_index": IMAGE,
                "projection_dim": WIDTH,
            },
            "dit_config": HEADED,
            "chunk_size": 8,
        },
    ),
}
