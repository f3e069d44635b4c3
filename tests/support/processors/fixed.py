"""Every image becomes the same number of rows."""

from support.processors.recipe import SQUARE, Recipe
from support.tiny_models import IMAGE, IMAGE_END, IMAGE_START, PATCH, TILE

#: Squeezed, not cut out.
CLIP = {**SQUARE, "do_center_crop": False}
SMALL = {**SQUARE, "min_size": PATCH}
LLAVA = Recipe(
    "LlavaProcessor",
    "CLIPImageProcessorPil",
    CLIP,
    {
        "patch_size": PATCH,
        "vision_feature_select_strategy": "default",
        "num_additional_image_tokens": 1,
    },
    rows=16,
)
GEMMA3 = Recipe(
    "Gemma3Processor",
    "Gemma3ImageProcessorPil",
    options={"image_seq_length": 4},
    names={
        IMAGE: "<image_soft_token>",
        IMAGE_START: "<start_of_image>",
        IMAGE_END: "<end_of_image>",
    },
    rows=4,
)
BLIP2 = Recipe(
    "Blip2Processor",
    "BlipImageProcessorPil",
    options={"num_query_tokens": 4},
    roles={"image_token": None},
    chat=False,
    rows=4,
)

FIXED = {
    "llava": LLAVA,
    "vipllava": LLAVA._replace(chat=False),
    "paligemma": Recipe(
        "PaliGemmaProcessor",
        "SiglipImageProcessorPil",
        {**SQUARE, "image_seq_length": 16},
        chat=False,
        rows=16,
    ),
    "gemma3": GEMMA3,
    "t5gemma2": GEMMA3._replace(chat=False),
    "deepseek_vl": Recipe(
        "DeepseekVLProcessor",
        "DeepseekVLImageProcessorPil",
        SMALL,
        {"num_image_tokens": 16},
        rows=16,
    ),
    "deepseek_vl_hybrid": Recipe(
        "DeepseekVLHybridProcessor",
        "DeepseekVLHybridImageProcessorPil",
        {**SMALL, "high_res_size": SQUARE["size"]},
        {"num_image_tokens": 16},
        rows=16,
    ),
    "janus": Recipe(
        "JanusProcessor", "JanusImageProcessorPil", SMALL, {"num_image_tokens": 16}, rows=16
    ),
    "idefics2": Recipe(
        "Idefics2Processor",
        "Idefics2ImageProcessorPil",
        {"size": {"shortest_edge": PATCH, "longest_edge": TILE}},
        {"image_seq_len": 4},
        names={IMAGE_START: "<fake_token_around_image>"},
        roles={"image_boundary_token": IMAGE_START},
        more=["<end_of_utterance>"],
        rows=4,
    ),
    "pp_chart2table": Recipe(
        "PPChart2TableProcessor",
        "PPChart2TableImageProcessorPil",
        names={IMAGE: "<imgpad>", IMAGE_START: "<img>", IMAGE_END: "</img>"},
        placeholder="<img><imgpad></img>",
        rows=1,
    ),
    "florence2": Recipe(
        "Florence2Processor",
        "CLIPImageProcessorPil",
        {**CLIP, "image_seq_length": 5},
        chat=False,
        rows=5,
    ),
    # --- queries ----------------------------------------------------------------------------------
    "blip-2": BLIP2,
    "instructblip": BLIP2._replace(processor="InstructBlipProcessor"),
}
