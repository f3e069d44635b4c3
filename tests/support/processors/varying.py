"""The number of rows depends on the size of the image."""

from support.processors.recipe import SQUARE, Recipe
from support.tiny.fragments import OTHER
from support.tiny_models import IMAGE, IMAGE_END, IMAGE_START, INDICATORS, PATCH, PINPOINTS, TILE

CROP = {"size": {"shortest_edge": TILE}, "crop_size": SQUARE["size"]}
PINPOINT_CROPS = {**CROP, "image_grid_pinpoints": PINPOINTS}
#: At most four, and a small copy of the image.
TILES = {**SQUARE, "crop_to_patches": True, "min_patches": 1, "max_patches": 4}
IDEFICS_TOKENS = {
    "names": {IMAGE_START: "<fake_token_around_image>"},
    "more": ["<end_of_utterance>", "<global-img>"],
}
OVIS_INDICATORS = ("<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")
PIXTRAL = {"size": {"longest_edge": 2 * TILE}, "patch_size": {"height": PATCH, "width": PATCH}}
PIXTRAL_NAMES = {IMAGE: "[IMG]", IMAGE_START: "[IMG_BREAK]", IMAGE_END: "[IMG_END]"}
#: Sizes are numbers of pixels.
AREA = {
    "size": {"shortest_edge": TILE**2, "longest_edge": 4 * TILE**2},
    "patch_size": PATCH,
    "temporal_patch_size": 1,
    "merge_size": 2,
}

TILED = {
    "llava_next": Recipe(
        "LlavaNextProcessor",
        "LlavaNextImageProcessorPil",
        PINPOINT_CROPS,
        {
            "patch_size": PATCH,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
    ),
    "granite4_vision": Recipe(
        "Granite4VisionProcessor",
        "LlavaNextImageProcessorPil",
        PINPOINT_CROPS,
        {"patch_size": PATCH, "vision_feature_select_strategy": "full", "downsample_rate": "1/2"},
    ),
    "idefics3": Recipe(
        "Idefics3Processor",
        "Idefics3ImageProcessorPil",
        {"size": {"longest_edge": 2 * TILE}, "max_image_size": {"longest_edge": TILE}},
        {"image_seq_len": 4},
        **IDEFICS_TOKENS,
    ),
    "granite_docling": Recipe(
        "GraniteDoclingProcessor",
        "GraniteDoclingImageProcessorPil",
        TILES,
        {"image_seq_len": 1},
        **IDEFICS_TOKENS,
    ),
    "ovis2": Recipe(
        "Ovis2Processor",
        "Ovis2ImageProcessorPil",
        TILES,
        {"image_seq_length": 4},
        names={
            IMAGE: "<IMG_ATOM>",
            OTHER: "<image>",
            **dict(zip(INDICATORS, OVIS_INDICATORS, strict=True)),
        },
    ),
    "aya_vision": Recipe(
        "AyaVisionProcessor",
        "GotOcr2ImageProcessorPil",
        TILES,
        {"patch_size": PATCH, "img_size": TILE, "downsample_factor": 2},
        names={
            IMAGE: "<|IMG_PATCH|>",
            IMAGE_START: "<|START_OF_IMG|>",
            IMAGE_END: "<|END_OF_IMG|>",
            OTHER: "<image>",
        },
        more=["<|IMG_LINE_BREAK|>", "TILE_GLOBAL"],
    ),
    "qianfan_ocr": Recipe(
        "QianfanOCRProcessor",
        "GotOcr2ImageProcessorPil",
        TILES,
        {"image_seq_length": 4},
        names={IMAGE: "<IMG_CONTEXT>", IMAGE_START: "<img>", IMAGE_END: "</img>", OTHER: "<image>"},
        roles={
            "context_image_token": IMAGE,
            "start_image_token": IMAGE_START,
            "end_image_token": IMAGE_END,
        },
        placeholder="<image>",
    ),
}

ANY_SIZE = {
    "lighton_ocr": Recipe(
        "LightOnOcrProcessor",
        "PixtralImageProcessorPil",
        PIXTRAL,
        {"patch_size": PATCH, "spatial_merge_size": 2},
        names=PIXTRAL_NAMES,
        roles={"image_break_token": IMAGE_START, "image_end_token": IMAGE_END},
    ),
    "hunyuan_vl": Recipe(
        "HunYuanVLProcessor",
        "HunYuanVLImageProcessorPil",
        AREA,
        roles={"image_start_token": IMAGE_START, "image_end_token": IMAGE_END},
        placeholder="<image_start><image><image_end>",
    ),
    "paddleocr_vl": Recipe(
        "PaddleOCRVLProcessor",
        "PaddleOCRVLImageProcessorPil",
        AREA,
        placeholder="<image_start><image><image_end>",
    ),
    # --- an image tokenizer -----------------------------------------------------------------------
    "chameleon": Recipe(
        "ChameleonProcessor",
        "ChameleonImageProcessorPil",
        CROP,
        {"image_seq_length": 16},
        names={IMAGE_START: "<racm3:break>", IMAGE_END: "<eoss>"},
        roles={"sep_token": OTHER},
        chat=False,
        rows=16,
    ),
}
