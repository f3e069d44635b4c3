"""An encoder that takes patches of any grid and merges them itself, as Qwen2-VL does."""

from support.tiny.fragments import (
    AUDIO,
    DEEPSTACK_VISION,
    DENSE_THEN_SPARSE,
    EXPERTS,
    GLM_IDS,
    HEADED,
    IMAGE,
    IMAGE_IDS,
    INDEXED,
    LATENT,
    LINEAR,
    MEDIA_END,
    MEDIA_START,
    MERGING_VISION,
    MROPE,
    OTHER,
    QWEN_IDS,
    SLIDING,
    TEXT,
    TILE,
    VIDEO,
    WINDOWED_VISION,
    Tiny,
    mrope,
)

GLM_VISION = MERGING_VISION | {"image_size": TILE}
GLM = GLM_IDS | {"text_config": MROPE, "vision_config": GLM_VISION}
OMNI_IDS = QWEN_IDS | {
    "image_token_index": IMAGE,
    "video_token_index": VIDEO,
    "audio_token_id": AUDIO,
    "audio_token_index": AUDIO,
    "audio_start_token_id": MEDIA_START,
    "audio_end_token_id": MEDIA_END,
    "user_token_id": OTHER,
}
OMNI_AUDIO = {
    "d_model": 32,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "num_mel_bins": 16,
    "output_dim": 64,
    "downsample_hidden_size": 8,
}

MERGERS: dict[str, Tiny] = {
    "cohere_compass": Tiny(
        "CohereCompassForConditionalGeneration",
        QWEN_IDS
        | {
            "text_config": TEXT
            | SLIDING
            | {
                "rope_parameters": {
                    kind: mrope(2, 3, 3)["rope_parameters"]
                    for kind in ("sliding_attention", "full_attention")
                }
            },
            "vision_config": DEEPSTACK_VISION,
        },
    ),
    "cosmos3_omni": Tiny(
        "Cosmos3OmniForConditionalGeneration",
        QWEN_IDS | {"text_config": HEADED | mrope(2, 3, 3), "vision_config": DEEPSTACK_VISION},
    ),
    "exaone4_5": Tiny(
        "Exaone4_5_ForConditionalGeneration",
        IMAGE_IDS
        | {
            "text_config": TEXT | SLIDING | {"model_type": "exaone4"},
            "vision_config": WINDOWED_VISION | {"num_key_value_heads": 1},
        },
    ),
    "glm46v": Tiny("Glm46VForConditionalGeneration", GLM),
    "glmga": Tiny("Glm46VForConditionalGeneration", GLM),
    "glm_ocr": Tiny("GlmOcrForConditionalGeneration", GLM),
    "glm4v_moe": Tiny(
        "Glm4vMoeForConditionalGeneration",
        GLM_IDS
        | {
            "text_config": TEXT
            | EXPERTS
            | mrope(1, 1, 2, partial_rotary_factor=0.5)
            | {"first_k_dense_replace": 1},
            "vision_config": GLM_VISION,
        },
    ),
    "glm5_next": Tiny(
        "Glm5NextForConditionalGeneration",
        GLM_IDS
        | {
            "text_config": TEXT
            | LATENT
            | INDEXED
            | DENSE_THEN_SPARSE
            | {
                "qk_rope_head_dim": 0,
                "qk_nope_head_dim": 16,
                "linear_head_dim": 16,
                "linear_num_heads": 4,
                "layer_types": ["linear_attention", "indexed_attention", "linear_attention"],
            },
            "vision_config": GLM_VISION | {"projection_intermediate_size": 64},
        },
    ),
    "hyperclovax_vision_v2": Tiny(
        "HyperCLOVAXVisionV2ForConditionalGeneration",
        IMAGE_IDS | {"text_config": HEADED, "vision_config": WINDOWED_VISION},
    ),
    "qwen2_5_omni_thinker": Tiny(
        "Qwen2_5OmniThinkerForConditionalGeneration",
        OMNI_IDS
        | {
            "text_config": MROPE,
            "vision_config": WINDOWED_VISION,
            "audio_config": OMNI_AUDIO,
        },
    ),
    "qwen3_omni_moe_thinker": Tiny(
        "Qwen3OmniMoeThinkerForConditionalGeneration",
        OMNI_IDS
        | {
            "text_config": HEADED | EXPERTS | mrope(2, 3, 3),
            "vision_config": DEEPSTACK_VISION,
            "audio_config": OMNI_AUDIO,
        },
    ),
    "qwen3_vl_moe": Tiny(
        "Qwen3VLMoeForConditionalGeneration",
        QWEN_IDS
        | {"text_config": HEADED | EXPERTS | mrope(2, 3, 3), "vision_config": DEEPSTACK_VISION},
    ),
    "qwen3_5": Tiny(
        "Qwen3_5ForConditionalGeneration",
        QWEN_IDS
        | {
            "text_config": HEADED | LINEAR,
            "vision_config": MERGING_VISION | {"num_position_embeddings": 16},
        },
    ),
    "qwen3_5_moe": Tiny(
        "Qwen3_5MoeForConditionalGeneration",
        QWEN_IDS
        | {
            "text_config": HEADED | LINEAR | EXPERTS,
            "vision_config": MERGING_VISION | {"num_position_embeddings": 16},
        },
    ),
    "qwen4_exp": Tiny(
        "Qwen4ExpForConditionalGeneration",
        QWEN_IDS
        | {
            "text_config": HEADED
            | LINEAR
            | EXPERTS
            | mrope(1, 2, 1, partial_rotary_factor=0.5)
            | {
                "layer_types": ["linear_attention", "indexed_attention", "linear_attention"],
                "hc_lowrank": 8,
                "indexer_n_heads": 2,
                "indexer_kv_heads": 1,
                "indexer_head_dim": 8,
                "indexer_budget": 4,
                "indexer_compress_ratio": 2,
            },
            "vision_config": MERGING_VISION | {"num_position_embeddings": 16},
        },
    ),
}
