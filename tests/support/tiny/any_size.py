"""An encoder that takes images of any size, a projector, a language model."""

from support.tiny.fragments import (
    AUDIO,
    DENSE_THEN_SPARSE,
    EXPERTS,
    FIXED_VISION,
    GLM_IDS,
    HEADED,
    IMAGE,
    IMAGE_END,
    IMAGE_IDS,
    IMAGE_INDICES,
    IMAGE_START,
    INDEXED,
    LATENT,
    LINEAR,
    OTHER,
    PATCH,
    QWEN2,
    QWEN_IDS,
    SLIDING,
    TEXT,
    TILE,
    VISION,
    VISION_WIDTH,
    WIDTH,
    Tiny,
    mrope,
)

#: A table of learned positions, four by four.
POSITIONS = {"pos_emb_height": 4, "pos_emb_width": 4}
PIXTRAL = VISION | {"model_type": "pixtral", "image_size": 64}
MINICPM = IMAGE_IDS | {
    "text_config": HEADED | LINEAR,
    "vision_config": FIXED_VISION,
    "image_size": TILE,
    "insert_layer_id": 1,
}
WINDOWED = VISION | {"layer_types": ["window_attention", "full_attention", "window_attention"]}

ANY_SIZE: dict[str, Tiny] = {
    "cosmos3_edge": Tiny(
        "Cosmos3EdgeForConditionalGeneration",
        QWEN_IDS
        | {
            "text_config": HEADED | mrope(2, 3, 3),
            "vision_config": VISION | {"num_patches": 16},
            "projector_hidden_size": 64,
        },
    ),
    "dots3_note": Tiny(
        "Dots3NoteForConditionalGeneration",
        IMAGE_IDS
        | {
            "text_config": TEXT
            | LATENT
            | INDEXED
            | DENSE_THEN_SPARSE
            | {
                "head_dim": 16,
                "shared_experts_intermediate_size": 32,
                "sliding_window": 8,
                "layer_types": ["indexed_attention", "sliding_attention", "indexed_attention"],
                "per_layer_config": {1: {"kv_lora_rank": 8}},
            },
            "vision_config": VISION
            | DENSE_THEN_SPARSE
            | {"adapter_in_dim": VISION_WIDTH, "adapter_out_dim": WIDTH},
            "audio_config": {
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "head_dim": 16,
                "feature_size": 16,
                "downsample_hidden_size": 8,
                "adapter_input_size": 32,
                "adapter_out_dim": WIDTH,
            },
            "audio_token_id": AUDIO,
        },
    ),
    # Experts of one width for text and of another for images.
    "ernie4_5_vl_moe": Tiny(
        "Ernie4_5_VLMoeForConditionalGeneration",
        GLM_IDS
        | {
            "text_config": TEXT
            | mrope(3, 3, 2)
            | {
                "moe_intermediate_size": [32, 16],
                "moe_k": 2,
                "moe_num_experts": 4,
                "moe_num_shared_experts": 1,
                "mlp_layer_types": ["dense", "sparse", "sparse"],
            },
            "vision_config": {
                "depth": 3,
                "hidden_size": VISION_WIDTH,
                "intermediate_size": 64,
                "num_heads": 2,
                "patch_size": PATCH,
            },
        },
    ),
    "hunyuan_vl": Tiny(
        "HunYuanVLForConditionalGeneration",
        {
            "text_config": HEADED | mrope(2, 2, 2, 2) | {"eod_token_id": OTHER, "sep_token_id": 2},
            "vision_config": VISION | {"max_image_size": 64, "out_hidden_size": WIDTH},
            "image_token_id": IMAGE,
            "image_start_token_id": IMAGE_START,
            "image_end_token_id": IMAGE_END,
        },
    ),
    "inkling2": Tiny(
        "Inkling2ForConditionalGeneration",
        {
            "text_config": HEADED
            | EXPERTS
            | {
                "swa_num_attention_heads": 4,
                "swa_num_key_value_heads": 2,
                "swa_head_dim": 16,
                "sliding_window_size": 8,
                "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"],
            },
            "vision_config": VISION | {"projection_hidden_dim": 64, "text_hidden_size": WIDTH},
            "image_token_id": IMAGE,
        },
    ),
    "inkling_mm_model": Tiny(
        "InklingForConditionalGeneration",
        {
            "text_config": HEADED
            | EXPERTS
            | {
                "swa_num_attention_heads": 4,
                "swa_num_key_value_heads": 2,
                "swa_head_dim": 16,
                "sliding_window_size": 8,
                "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"],
                "mlp_layer_types": ["dense", "sparse", "sparse"],
            },
            "vision_config": {"patch_size": PATCH, "n_layers": 2, "text_hidden_size": WIDTH},
            "audio_config": {"n_mel_bins": 8, "mel_vocab_size": 16, "text_hidden_size": WIDTH},
            "image_token_id": IMAGE,
            "image_bos_token_id": IMAGE_START,
            "audio_token_id": AUDIO,
        },
    ),
    "kimi_k25": Tiny(
        "Kimi_K25ForConditionalGeneration",
        QWEN_IDS
        | {
            "text_config": TEXT
            | LATENT
            | EXPERTS
            | {"first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
            "vision_config": VISION | POSITIONS,
            "projection_hidden_size": VISION_WIDTH,
        },
    ),
    "lfm2_vl": Tiny(
        "Lfm2VlForConditionalGeneration",
        {
            "text_config": TEXT | {"layer_types": ["conv", "full_attention", "conv"]},
            "vision_config": VISION
            | {"model_type": "siglip2_vision_model", "num_patches": 16, "vision_use_head": False},
            "projector_hidden_size": 64,
            "image_token_id": IMAGE,
        },
    ),
    "lfm3_vl": Tiny(
        "Lfm3VlForConditionalGeneration",
        QWEN_IDS
        | {
            "text_config": TEXT
            | {
                "num_hidden_layers": 4,
                "sliding_window": 8,
                "layer_types": ["conv", "conv", "full_attention", "sliding_attention"],
            },
            "vision_config": VISION
            | {"num_key_value_heads": 1, "layer_types": ["conv", "full_attention", "conv"]},
            "projector_hidden_size": 64,
        },
    ),
    "lighton_ocr": Tiny(
        "LightOnOcrForConditionalGeneration",
        {
            "text_config": HEADED | {"model_type": "qwen3"},
            "vision_config": PIXTRAL,
            "image_token_id": IMAGE,
        },
    ),
    "minicpm_ocr": Tiny("MiniCPMOcrForConditionalGeneration", MINICPM),
    "minicpmv4_6": Tiny("MiniCPMV4_6ForConditionalGeneration", MINICPM),
    "minicpmv4_7": Tiny("MiniCPMV4_7ForConditionalGeneration", MINICPM),
    "minimax_m3_vl": Tiny(
        "MiniMaxM3SparseForConditionalGeneration",
        IMAGE_INDICES
        | {
            "text_config": HEADED
            | DENSE_THEN_SPARSE
            | {"dense_intermediate_size": 64, "shared_intermediate_size": 32},
            "vision_config": FIXED_VISION,
            "projector_hidden_size": 64,
        },
    ),
    "mistral_large4": Tiny(
        "MistralLarge4ForConditionalGeneration",
        {
            "text_config": TEXT | LATENT | INDEXED | DENSE_THEN_SPARSE,
            "vision_config": PIXTRAL,
            "image_token_index": IMAGE,
        },
    ),
    "muse_glimmer": Tiny(
        "MuseGlimmerForConditionalGeneration",
        IMAGE_IDS
        | {
            "text_config": HEADED | SLIDING,
            "vision_config": WINDOWED | POSITIONS,
            "out_hidden_size": 128,
            "projector_hidden_size": 64,
        },
    ),
    "muse_spark": Tiny(
        "MuseSparkForConditionalGeneration",
        IMAGE_IDS
        | {
            "text_config": HEADED | SLIDING | EXPERTS | {"moe_hidden_size": 64},
            "vision_config": WINDOWED | POSITIONS,
            "audio_config": {
                "patch_sizes": [16, 6],
                "hidden_sizes": [16, 32],
                "depths": [1, 1],
                "num_hidden_layers": 2,
                "out_hidden_size": WIDTH,
            },
            "out_hidden_size": 128,
            "projector_hidden_size": 64,
            "audio_token_id": AUDIO,
        },
    ),
    # A state-space language model with attention and experts in between.
    "nemotron_h_omni": Tiny(
        "NemotronH_Omni_Reasoning_V3",
        IMAGE_IDS
        | {
            "text_config": HEADED
            | EXPERTS
            | {
                "ssm_state_size": 16,
                "mamba_num_heads": 4,
                "mamba_head_dim": 16,
                "n_groups": 2,
                "chunk_size": 8,
                "moe_shared_expert_intermediate_size": 32,
            },
            "vision_config": FIXED_VISION | {"max_img_size": 64, "video_temporal_patch_size": 2},
            "vision_hidden_size": VISION_WIDTH,
            "projector_hidden_size": 64,
            "audio_token_id": AUDIO,
        },
    ),
    "paddleocr_vl": Tiny(
        "PaddleOCRVLForConditionalGeneration",
        QWEN_IDS | {"text_config": HEADED | mrope(2, 3, 3), "vision_config": FIXED_VISION},
    ),
    "video_llama_3": Tiny(
        "VideoLlama3ForConditionalGeneration",
        IMAGE_IDS | {"text_config": QWEN2, "vision_config": VISION},
    ),
}
