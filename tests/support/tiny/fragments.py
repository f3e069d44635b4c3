"""What the configs of many types have in common. A key that a config does not know is ignored."""

from typing import Any, NamedTuple

VOCABULARY = 128
PAD, BOS, EOS, IMAGE, VIDEO, IMAGE_START, IMAGE_END = range(7)
INDICATORS = (7, 8, 9, 10, 11)  # Ovis2 writes rows of its visual table at these ids
AUDIO, MEDIA_START, MEDIA_END, OTHER = range(12, 16)  # media: audio and video
FIRST_TEXT = 16  # ids from here on are ordinary text

PATCH = 4  # pixels
TILE = 16  # pixels: the image size of encoders with a fixed one
WIDTH, VISION_WIDTH = 64, 32


class Tiny(NamedTuple):
    """How to build one type: the name of the model class and the arguments of its config."""

    model_class: str
    config: dict[str, Any]


# --- language models ------------------------------------------------------------------------------

TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}
#: For types whose heads have a width of their own.
HEADED = TEXT | {"head_dim": 16}
LLAMA = TEXT | {"model_type": "llama"}
QWEN2 = TEXT | {"model_type": "qwen2"}
GPTJ = {
    "model_type": "gptj",
    "vocab_size": VOCABULARY,
    "n_embd": WIDTH,
    "n_layer": 3,
    "n_head": 4,
    "rotary_dim": 8,
    "n_positions": 512,
}


def mrope(*sections: int, **others: float) -> dict[str, Any]:
    """Rotary embeddings with so many frequencies for time, height and width."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(sections)}
    return {"rope_parameters": rope | others}


MROPE = TEXT | mrope(2, 3, 3)

SLIDING = {
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
#: Linear attention with full attention in between.
LINEAR = {
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
#: Mixtures of experts count them under one of three names.
EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
DENSE_THEN_SPARSE = EXPERTS | {"mlp_layer_types": ["dense", "sparse", "sparse"]}
#: Attention with queries, keys and values of low rank.
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
}
#: Attention to the positions that an indexer picks.
INDEXED = {"index_topk": 64, "index_head_dim": 16, "index_n_heads": 2}

# --- vision encoders ------------------------------------------------------------------------------

VISION = {
    "hidden_size": VISION_WIDTH,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "patch_size": PATCH,
}
FIXED_VISION = VISION | {"image_size": TILE}
CLIP = FIXED_VISION | {"model_type": "clip_vision_model"}
SIGLIP = FIXED_VISION | {"model_type": "siglip_vision_model"}
#: SigLIP without its pooling head, which no language model reads.
HEADLESS_SIGLIP = SIGLIP | {"vision_use_head": False}
SAM = FIXED_VISION | {"output_channels": 16, "mlp_dim": 64, "global_attn_indexes": [1]}

#: Encoders that take patches of any grid and merge two by two inside.
GRID_VISION = {"depth": 3, "num_heads": 2, "patch_size": PATCH, "temporal_patch_size": 2}
MERGING_VISION = GRID_VISION | {
    "hidden_size": VISION_WIDTH,
    "out_hidden_size": WIDTH,
    "intermediate_size": 64,
}
#: Features of two encoder layers enter between the first decoder layers.
DEEPSTACK_VISION = MERGING_VISION | {
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0, 1],
}
#: Attention within windows in all layers but one.
WINDOWED_VISION = MERGING_VISION | {"window_size": 16, "fullatt_block_indexes": [1]}

#: Image sizes, height by width, that LLaVA-NeXT and OneVision cut into tiles.
PINPOINTS = [[16, 32], [32, 16], [32, 32]]

# --- ids ------------------------------------------------------------------------------------------

IMAGE_IDS = {"image_token_id": IMAGE, "video_token_id": VIDEO}
IMAGE_INDICES = {"image_token_index": IMAGE, "video_token_index": VIDEO}
QWEN_IDS = IMAGE_IDS | {"vision_start_token_id": IMAGE_START, "vision_end_token_id": IMAGE_END}
GLM_IDS = IMAGE_IDS | {
    "image_start_token_id": IMAGE_START,
    "image_end_token_id": IMAGE_END,
    "video_start_token_id": MEDIA_START,
    "video_end_token_id": MEDIA_END,
}
GEMMA_IDS = {
    "image_token_id": IMAGE,
    "image_token_index": IMAGE,
    "boi_token_id": IMAGE_START,
    "boi_token_index": IMAGE_START,
    "eoi_token_id": IMAGE_END,
    "eoi_token_index": IMAGE_END,
}
GEMMA_AUDIO_IDS = {
    "audio_token_id": AUDIO,
    "boa_token_id": MEDIA_START,
    "eoa_token_id": MEDIA_END,
    "eoa_token_index": MEDIA_END,
}
