"""Processors that read videos too, or have no part for images that does without torchvision."""

from support.processors.recipe import SQUARE, Recipe
from support.processors.varying import AREA, PIXTRAL, PIXTRAL_NAMES, TILES
from support.tiny.fragments import AUDIO, MEDIA_END, MEDIA_START
from support.tiny_models import IMAGE, IMAGE_END, IMAGE_START, PATCH, PINPOINTS, TILE, VIDEO

PAIRS = {**AREA, "temporal_patch_size": 2}
CLIP = {"size": {"shortest_edge": 2 * TILE**2, "longest_edge": 32 * TILE**2}}
QWEN_NAMES = {
    IMAGE: "<|image_pad|>",
    IMAGE_START: "<|vision_start|>",
    IMAGE_END: "<|vision_end|>",
    VIDEO: "<|video_pad|>",
}
MARKS = {MEDIA_START: "<|audio_bos|>", MEDIA_END: "<|audio_eos|>"}
QWEN = Recipe(
    "Qwen2VLProcessor",
    "Qwen2VLImageProcessor",
    PAIRS,
    names=QWEN_NAMES,
    video_processor="Qwen2VLVideoProcessor",
    videos=PAIRS,
)

WITH_TORCHVISION = {
    "qwen2_vl": QWEN,
    "qwen2_5_vl": QWEN._replace(processor="Qwen2_5_VLProcessor"),
    "qwen3_vl": QWEN._replace(
        processor="Qwen3VLProcessor",
        video_processor="Qwen3VLVideoProcessor",
        videos={**PAIRS, **CLIP},
    ),
    "glm4v": Recipe(
        "Glm4vProcessor",
        "Glm4vImageProcessor",
        {**PAIRS, "size": {"shortest_edge": 2 * TILE**2, "longest_edge": 8 * TILE**2}},
        names={
            IMAGE: "<|image|>",
            VIDEO: "<|video|>",
            MEDIA_START: "<|begin_of_video|>",
            MEDIA_END: "<|end_of_video|>",
        },
        video="<|begin_of_video|><|video|><|end_of_video|>",
        video_processor="Glm4vVideoProcessor",
        videos={**PAIRS, **CLIP},
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
        videos=SQUARE,
    ),
    "llava_onevision": Recipe(
        "LlavaOnevisionProcessor",
        "LlavaOnevisionImageProcessor",
        {**SQUARE, "image_grid_pinpoints": PINPOINTS},
        {"num_image_tokens": 16, "vision_feature_select_strategy": "full"},
        names={VIDEO: "<video>"},
        video_processor="LlavaOnevisionVideoProcessor",
        videos=SQUARE,
    ),
    "qwen2_5_omni_thinker": QWEN._replace(
        processor="Qwen2_5OmniProcessor",
        names={**MARKS, IMAGE: "<|IMAGE|>", VIDEO: "<|VIDEO|>", AUDIO: "<|AUDIO|>"},
        roles={
            "video_token": VIDEO,
            "audio_token": AUDIO,
            "vision_bos_token": IMAGE_START,
            "vision_eos_token": IMAGE_END,
            "audio_bos_token": MEDIA_START,
            "audio_eos_token": MEDIA_END,
        },
        feature_extractor="WhisperFeatureExtractor",
        sounds={"feature_size": 16, "chunk_length": 2},
    ),
    "mistral3": Recipe(
        "PixtralProcessor",
        "PixtralImageProcessor",
        PIXTRAL,
        {"patch_size": PATCH, "spatial_merge_size": 2},
        names=PIXTRAL_NAMES,
    ),
}
