"""Processors for the tiny models: the classes of transformers, with a tokenizer of characters.

``RECIPES``          how the processor of each type is built
``make_checkpoint``  a model and its processor in a folder, as one downloads them
"""

from inspect import signature
from pathlib import Path

import transformers
from transformers import ProcessorMixin
from transformers.utils import is_torchvision_available

from normprobe.versions import is_line_5
from support.processors.beside import BESIDE
from support.processors.fixed import FIXED
from support.processors.media import MEDIA
from support.processors.recipe import Recipe
from support.processors.tokenizer import character_tokenizer
from support.processors.varying import ANY_SIZE, TILED
from support.processors.with_torchvision import WITH_TORCHVISION
from support.tiny_models import BOS, EOS, IMAGE, IMAGE_END, IMAGE_START, PAD, tiny_model

__all__ = ["RECIPES", "SYSTEM_PROMPT", "make_checkpoint"]

RECIPES: dict[str, Recipe] = FIXED | TILED | ANY_SIZE | BESIDE
if is_torchvision_available():
    RECIPES |= WITH_TORCHVISION

NAMES = {
    PAD: "<pad>",
    BOS: "<s>",
    EOS: "</s>",
    IMAGE: "<image>",
    IMAGE_START: "<image_start>",
    IMAGE_END: "<image_end>",
}

#: What the chat templates begin with, unless the conversation does.
SYSTEM_PROMPT = "Be kind."
CHAT_TEMPLATE = """
{%- if messages[0].role != 'system' %}system: PROMPT</s>{% endif %}
{%- for message in messages %}{{ message.role }}: {% if message.content is string %}
{{- message.content }}
{%- else %}{% for part in message.content %}
{{- 'IMAGE' if part.type == 'image' else 'VIDEO' if part.type == 'video' else
'AUDIO' if part.type == 'audio' else part.text }}
{%- endfor %}{% endif %}</s>{% endfor %}
{%- if add_generation_prompt %}assistant: {% endif %}""".replace("PROMPT", SYSTEM_PROMPT)


def make_processor(model_type: str) -> ProcessorMixin:
    """The processor of a type, of its own class."""
    recipe = (RECIPES | MEDIA)[model_type]
    tokenizer = character_tokenizer(NAMES | {**recipe.names}, recipe.roles, recipe.more)
    made_of = {
        "image_processor": (recipe.image_processor, recipe.images),
        "video_processor": (recipe.video_processor, recipe.videos),
        "feature_extractor": (recipe.feature_extractor, recipe.sounds),
        "audio_processor": (recipe.feature_extractor, recipe.sounds),
    }
    processor_class = getattr(transformers, recipe.processor)
    parts = {}
    for part in signature(processor_class.__init__).parameters:
        name, settings = made_of.get(part, (None, {}))
        if name:
            if not is_line_5():  # its slow ones read with Pillow
                name = name.removesuffix("Pil")
            parts[part] = getattr(transformers, name)(**settings)
        elif part.endswith("tokenizer"):  # the queries of InstructBLIP read the prompt, too
            parts[part] = tokenizer
    processor = processor_class(**parts, **recipe.options)
    if recipe.chat:
        image = recipe.placeholder or getattr(processor, "image_token", None) or NAMES[IMAGE]
        video = recipe.video or getattr(processor, "video_token", "")
        written = {"IMAGE": image, "VIDEO": video, "AUDIO": getattr(processor, "audio_token", "")}
        for name, placeholder in written.items():
            processor.chat_template = (processor.chat_template or CHAT_TEMPLATE).replace(
                f"'{name}'", f"'{placeholder}'"
            )
    return processor


def make_checkpoint(model_type: str, folder: Path) -> Path:
    """Save a tiny model and its processor."""
    tiny_model(model_type).save_pretrained(folder)
    make_processor(model_type).save_pretrained(folder)
    return folder
