"""An encoder with a fixed image size, a projector, a language model."""

from support.tiny.fragments import (
    CLIP,
    DENSE_THEN_SPARSE,
    EXPERTS,
    FIXED_VISION,
    HEADED,
    HEADLESS_SIGLIP,
    IMAGE,
    IMAGE_END,
    IMAGE_IDS,
    IMAGE_INDICES,
    IMAGE_START,
    LLAMA,
    PAD,
    PATCH,
    PINPOINTS,
    QWEN2,
    SAM,
    SLIDING,
    TEXT,
    TILE,
    VISION,
    VISION_WIDTH,
    VOCABULARY,
    WIDTH,
    Tiny,
)

COHERE2 = TEXT | SLIDING | {"model_type": "cohere2"}
KOSMOS_TEXT = TEXT | {"embed_dim": WIDTH, "layers": 3, "ffn_dim": 96, "attention_heads": 4}

PROJECTORS: dict[str, Tiny] = {
    "aria": Tiny(
        "AriaForConditionalGeneration",
        {
            "text_config": TEXT | {"moe_num_experts": 4, "moe_topk": 2},
            "vision_config": FIXED_VISION,
            "projector_patch_to_query_dict": {16: 4},
            "image_token_index": IMAGE,
        },
    ),
    "aya_vision": Tiny(
        "AyaVisionForConditionalGeneration",
        {"text_config": COHERE2, "vision_config": HEADLESS_SIGLIP, "image_token_index": IMAGE},
    ),
    "cohere2_vision": Tiny(
        "Cohere2VisionForConditionalGeneration",
        {
            "text_config": COHERE2,
            "vision_config": HEADLESS_SIGLIP,
            "image_token_id": IMAGE,
            "alignment_intermediate_size": 64,
        },
    ),
    "deepseek_vl": Tiny(
        "DeepseekVLForConditionalGeneration",
        {"text_config": LLAMA, "vision_config": HEADLESS_SIGLIP, "image_token_id": IMAGE},
    ),
    # Two encoders, for an overview and for details.
    "deepseek_vl_hybrid": Tiny(
        "DeepseekVLHybridForConditionalGeneration",
        {
            "text_config": LLAMA,
            "vision_config": HEADLESS_SIGLIP,
            "high_res_vision_config": SAM,
            "image_token_id": IMAGE,
        },
    ),
    "deepseek_ocr2": Tiny(
        "DeepseekOcr2ForConditionalGeneration",
        {
            "text_config": TEXT | DENSE_THEN_SPARSE,
            "vision_config": {
                "sam_config": SAM | {"downsample_channels": [32, WIDTH]},
                "encoder_config": TEXT,
            },
            "image_token_id": IMAGE,
        },
    ),
    "unlimited_ocr": Tiny(
        "UnlimitedOcrForConditionalGeneration",
        {
            "text_config": TEXT | DENSE_THEN_SPARSE | {"sliding_window": 8},
            "vision_config": {
                "sam_config": SAM | {"downsample_channels": [16, VISION_WIDTH]},
                "encoder_config": FIXED_VISION,
            },
            "image_token_id": IMAGE,
        },
    ),
    "fast_vlm": Tiny(
        "FastVlmForConditionalGeneration",
        {
            "text_config": QWEN2,
            # Checkpoints have an encoder from timm. This one is also convolutional.
            "vision_config": {
                "model_type": "convnext",
                "hidden_size": VISION_WIDTH,
                "hidden_sizes": [16, VISION_WIDTH],
                "depths": [1, 1],
                "num_stages": 2,
            },
            "image_token_index": IMAGE,
        },
    ),
    "git": Tiny("GitForCausalLM", TEXT | {"vision_config": FIXED_VISION}),
    "got_ocr2": Tiny(
        "GotOcr2ForConditionalGeneration",
        {"text_config": QWEN2, "vision_config": SAM, "image_token_index": IMAGE},
    ),
    "pp_chart2table": Tiny(
        "GotOcr2ForConditionalGeneration",
        {"text_config": QWEN2, "vision_config": SAM, "image_token_index": IMAGE},
    ),
    # A projector, made of Q-Formers, for each of several encoder layers.
    "granite4_vision": Tiny(
        "Granite4VisionForConditionalGeneration",
        {
            "text_config": TEXT | {"num_hidden_layers": 4},
            "vision_config": HEADLESS_SIGLIP | {"hidden_size": 64},  # a head of a Q-Former has 64
            "vision_feature_select_strategy": "full",
            "qformer_config": {
                "vocab_size": VOCABULARY,
                "num_hidden_layers": 1,
                "intermediate_size": 64,
                "cross_attention_frequency": 1,
            },
            "downsample_rate": "1/2",
            "deepstack_layer_map": [[1, 0], [2, 1]],
            "spatial_target_layers": [0, 1, 2, 3],
            "image_token_index": IMAGE,
            "image_grid_pinpoints": PINPOINTS,
        },
    ),
    "granite_docling": Tiny(
        "GraniteDoclingForConditionalGeneration",
        {
            "text_config": TEXT,
            "vision_config": FIXED_VISION
            | {"out_hidden_size": WIDTH, "deepstack_visual_indexes": [0, 1]},
            "image_token_id": IMAGE,
            "pad_token_id": PAD,
        },
    ),
    "idefics2": Tiny(
        "Idefics2ForConditionalGeneration",
        {
            "text_config": TEXT | {"model_type": "mistral", "sliding_window": 8},
            "vision_config": FIXED_VISION,
            "perceiver_config": {
                "resampler_n_latents": 4,
                "resampler_depth": 2,
                "resampler_n_heads": 2,
                "resampler_head_dim": 16,
                "num_key_value_heads": 1,
            },
            "image_token_id": IMAGE,
        },
    ),
    "janus": Tiny(
        "JanusForConditionalGeneration",
        {
            "text_config": LLAMA,
            "vision_config": FIXED_VISION | {"projection_dim": WIDTH},
            "vq_config": {
                "embed_dim": 8,
                "num_embeddings": 64,
                "latent_channels": 32,
                "base_channels": 32,
                "channel_multiplier": [1, 1],
                "num_res_blocks": 1,
                "image_token_embed_dim": WIDTH,
                "projection_dim": WIDTH,
            },
            "image_token_id": IMAGE,
        },
    ),
    "kosmos-2": Tiny(
        "Kosmos2ForConditionalGeneration",
        {
            "text_config": KOSMOS_TEXT,
            "vision_config": FIXED_VISION,
            "latent_query_num": 4,
        },
    ),
    "kosmos-2.5": Tiny(
        "Kosmos2_5ForConditionalGeneration",
        {
            "text_config": KOSMOS_TEXT,
            "vision_config": VISION
            | {
                "head_dim": 16,
                "patch_embed_hidden_size": 3 * PATCH**2,
                "max_num_patches": 64,
            },
            "latent_query_num": 4,
        },
    ),
    "llama4": Tiny(
        "Llama4ForConditionalGeneration",
        {
            "text_config": HEADED
            | EXPERTS
            | {
                "intermediate_size_mlp": 96,
                "moe_layers": [1],
                "layer_types": ["chunked_attention", "full_attention", "chunked_attention"],
                "attention_chunk_size": 64,
            },
            "vision_config": FIXED_VISION
            | {
                "intermediate_size": 128,
                "vision_output_dim": WIDTH,
                "projector_input_dim": WIDTH,
                "projector_output_dim": WIDTH,
            },
            "image_token_index": IMAGE,
            "boi_token_index": IMAGE_START,
            "eoi_token_index": IMAGE_END,
        },
    ),
    "llava_next_video": Tiny(
        "LlavaNextVideoForConditionalGeneration",
        IMAGE_INDICES
        | {"text_config": LLAMA, "vision_config": CLIP, "image_grid_pinpoints": PINPOINTS},
    ),
    "molmo2": Tiny(
        "Molmo2ForConditionalGeneration",
        {
            "text_config": HEADED | {"additional_vocab_size": 16},
            "vision_config": FIXED_VISION
            | {"image_size": [TILE, TILE], "head_dim": 16, "num_key_value_heads": 2},
            "adapter_config": {
                "vision_feature_layer": [-1, -2],
                "hidden_size": VISION_WIDTH,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "head_dim": 16,
                "intermediate_size": 64,
                "text_hidden_size": WIDTH,
            },
            "image_patch_id": IMAGE,
            "image_start_token_id": IMAGE_START,
            "image_end_token_id": IMAGE_END,
            "low_res_image_start_token_id": IMAGE_START,
            "frame_start_token_id": IMAGE_START,
            "frame_end_token_id": IMAGE_END,
        },
    ),
    "perception_lm": Tiny(
        "PerceptionLMForConditionalGeneration",
        IMAGE_IDS
        | {
            "text_config": LLAMA,
            # Checkpoints have an encoder from timm, which names its width here.
            "vision_config": CLIP | {"model_args": {"embed_dim": VISION_WIDTH}},
            "vision_use_cls_token": True,
        },
    ),
    "qianfan_ocr": Tiny(
        "QianfanOCRForConditionalGeneration",
        {
            "text_config": HEADED | {"model_type": "qwen3"},
            "vision_config": FIXED_VISION | {"image_size": [16, 16], "patch_size": [4, 4]},
            "image_token_id": IMAGE,
        },
    ),
    "step3p7": Tiny(
        "Step3p7ForConditionalGeneration",
        {
            "text_config": HEADED | DENSE_THEN_SPARSE | SLIDING | {"share_expert_dim": 32},
            "vision_config": FIXED_VISION,
            "image_token_id": IMAGE,
        },
    ),
    "video_llava": Tiny(
        "VideoLlavaForConditionalGeneration",
        IMAGE_INDICES | {"text_config": LLAMA, "vision_config": CLIP},
    ),
    "vipllava": Tiny(
        "VipLlavaForConditionalGeneration",
        {
            "text_config": LLAMA,
            "vision_config": CLIP,
            "vision_feature_layers": [-1, -2],
            "image_token_index": IMAGE,
        },
    ),
}
