"""Whether a model with code of its own speaks of images, whatever its parts are called."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

#: In the name of a field or module: `img_processor`, `mm_vision_tower`, `image_token_id`.
_NAME = re.compile(r"(^|_)(vision|visual|images?|img|pixels?|vit)(_|\d|$)", re.IGNORECASE)
#: In a text: `clip_vision_model`, `google/siglip-so400m`, `image`.
_TEXT = re.compile(r"(?<![a-z])(vision|visual|image|siglip\d?|vit)(?![a-z])", re.IGNORECASE)
#: Fields that name files, classes and places: they say nothing of the model's parts.
_OF_FILES = re.compile(r"^_|^name_or_path$|^architectures$|^auto_map$|_class$|_path$")


def vision_fields(config: Any) -> list[str]:
    """The fields of a config that speak of images, by their names or by what they hold."""
    if type(config).__module__.startswith("transformers.models."):
        return []
    return [name for name, value in config.to_dict().items() if _speaks(name, value)]


def vision_modules(model: "nn.Module") -> list[str]:
    """The modules of a model with code of its own whose names speak of images, the outermost."""
    if type(model).__module__.startswith("transformers.models."):
        return []
    named = [name for name, _ in model.named_modules() if _NAME.search(name.rpartition(".")[2])]
    return [name for name in named if not any(name.startswith(f"{other}.") for other in named)]


def _speaks(name: str, value: Any) -> bool:
    if value is None or value is False or _OF_FILES.search(name):
        return False
    return _NAME.search(name) is not None or _holds_images(value)


def _holds_images(value: Any) -> bool:
    if isinstance(value, str):
        return _TEXT.search(value) is not None
    if isinstance(value, Mapping):
        return any(_speaks(str(name), inner) for name, inner in value.items())
    return isinstance(value, list | tuple) and any(map(_holds_images, value))
