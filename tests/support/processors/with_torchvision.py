"""Processors that read videos too, or have no part for images that does without torchvision."""

from support.processors.recipe import SQUARE, Recipe
from support.processors.varying import AREA, PIXTRAL, PIXTRAL_NAMES, TILES
from support.tiny_models import IMAGE, IMAGE_END, IMAGE_START, PATCH, PINPOINTS, TILE, VIDEO

PAIRS = {**AREA, "temporal_patch_size": 2}
QWEN_NAMES = {
    IMAGE: "<|image_pad|>",
    IMAGE_START: "<|vision_start|>",
    IMAGE_END: "<|vision_end|>",
}
QWEN = Recipe(
    "Qwen2VLProcessor",
    "Qwen2VLImageProcessor",
    PAIRS,
    names=QWEN_NAMES,
    more=["<|video_pad|>"],
    video_processor="Qwen2VLVideoProcessor",
)

WITH_TORCHVISION = {
    "qwen2_vl": QWEN,
    "qwen2_5_vl": QWEN._replace(processor="Qwen2_5_VLProcessor"),
    "qwen3_vl": QWEN._replace(
        processor="Qwen3VLProcessor", video_processor="Qwen3VLVideoProcessor"
    ),
    "glm4v": Recipe(
        "Glm4vProcessor",
        "Glm4vImageProcessor",
        {**PAIRS, "size": {"shortest_edge": 2 * TILE**2, "longest_edge": 8 * TILE**2}},
        names={IMAGE: "<|image|>"},
        more=["<|video|>"],
        video_processor="Glm4vVideoProcessor",
    ),
    "internvl": Recipe(
        "InternVLProcessor",
        "GotOcr2ImageProcessor",
        TILES,
        {"image_seq_length": 4},
        names={
            IMAGE: "<IMG_CONTEXT>",
            IMAGE_START: "<img>",
            IMAGE_END: "</img>",
            VIDEO: "<video>",
        },
        roles={
            "context_image_token": IMAGE,
            "start_image_token": IMAGE_START,
            "end_image_token": IMAGE_END,
            "video_token": VIDEO,
        },
        video_processor="InternVLVideoProcessor",
    ),
    "llava_onevision": Recipe(
        "LlavaOnevisionProcessor",
        "LlavaOnevisionImageProcessor",
        {**SQUARE, "image_grid_pinpoints": PINPOINTS},
        {"num_image_tokens": 16, "vision_feature_select_strategy": "full"},
        more=["<video>"],
        video_processor="LlavaOnevisionVideoProcessor",
    ),
    "mistral3": Recipe(
        "PixtralProcessor",
        "PixtralImageProcessor",
        PIXTRAL,
        {"patch_size": PATCH, "spatial_merge_size": 2},
        names=PIXTRAL_NAMES,
    ),
}
