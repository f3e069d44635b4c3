"""No placeholder in the prompt: rows are prepended, or the text attends to the image."""

from support.processors.fixed import CLIP
from support.processors.recipe import SQUARE, Recipe
from support.tiny_models import IMAGE_START, PATCH, TILE

PIX2STRUCT = {"patch_size": {"height": PATCH, "width": PATCH}, "max_patches": 36}

BESIDE = {
    "git": Recipe(
        "GitProcessor",
        "CLIPImageProcessorPil",
        CLIP,
        chat=False,
        rows=17,  # with the class row
    ),
    "blip": Recipe("BlipProcessor", "BlipImageProcessorPil", chat=False, rows=0),
    "pix2struct": Recipe(
        "Pix2StructProcessor", "Pix2StructImageProcessorPil", PIX2STRUCT, chat=False, rows=0
    ),
    "vision-encoder-decoder": Recipe("TrOCRProcessor", "ViTImageProcessorPil", chat=False, rows=0),
    "idefics": Recipe(
        "IdeficsProcessor",
        "IdeficsImageProcessorPil",
        {"image_size": TILE},
        {"image_size": TILE},
        names={IMAGE_START: "<fake_token_around_image>"},
        more=["<end_of_utterance>"],
        chat=False,
        rows=0,
    ),
    "mllama": Recipe(
        "MllamaProcessor",
        "MllamaImageProcessorPil",
        {**SQUARE, "max_image_tiles": 4},
        more=["<|python_tag|>"],
        rows=0,
    ),
}
