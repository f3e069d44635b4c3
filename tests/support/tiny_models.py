"""Random models of each supported type, small enough to run in milliseconds.

The tables in ``tiny`` are the whole story: the class and the config of each type. Everything not
named there keeps the default of the type.
"""

from copy import deepcopy
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from torch import nn
from transformers import PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from normprobe.versions import is_line_5
from support.tiny.any_size import ANY_SIZE
from support.tiny.fragments import (
    BOS,
    EOS,
    FIRST_TEXT,
    IMAGE,
    IMAGE_END,
    IMAGE_START,
    INDICATORS,
    PAD,
    PATCH,
    PINPOINTS,
    TILE,
    VIDEO,
    VOCABULARY,
    Tiny,
)
from support.tiny.gemmas import GEMMAS
from support.tiny.mergers import MERGERS
from support.tiny.others import OTHERS
from support.tiny.projectors import PROJECTORS
from support.tiny.sounds import SOUNDS_ALONE
from support.tiny.well_known import WELL_KNOWN

__all__ = [
    "ALL_TYPES",
    "BEFORE_5_22",
    "BOS",
    "EOS",
    "FIRST_TEXT",
    "IMAGE",
    "IMAGE_END",
    "IMAGE_START",
    "INDICATORS",
    "LANGUAGE_MODELS",
    "MEDIA_OTHERWISE",
    "NEEDS",
    "PAD",
    "PATCH",
    "PINPOINTS",
    "TILE",
    "TINY",
    "VIDEO",
    "VISION_ENCODERS",
    "VLM_TYPES",
    "VOCABULARY",
    "WITHOUT_IMAGES",
    "build",
    "tiny_model",
]

#: The types that every test runs on.
TINY = WELL_KNOWN
EVERY: dict[str, Tiny] = TINY | PROJECTORS | ANY_SIZE | MERGERS | GEMMAS | OTHERS | SOUNDS_ALONE

#: Every image-text-to-text type of transformers.
ALL_TYPES = tuple(
    name for name in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES if is_line_5() or name in EVERY
)
WITHOUT_IMAGES = {"evolla": "reads proteins", "mistral4": "reads text only"}
#: Packages that a type cannot be built without.
NEEDS = {"gemma3n": "timm", "inkling_mm_model": "scipy"}

#: Types of transformers 5 that 4.57 has, but not as these tests need them.
NOT_ON_4 = {
    "aria": "needs torchvision",
    "gemma3n": "needs timm",
    "lfm2_vl": "is saved under a name that does not load",
    "llama4": "has other accessors",
    "mllama": "takes no rotary tables of type default",
    "perception_lm": "needs timm",
    "siglip2": "names the inputs of its encoder otherwise",
    "video_llava": "has other accessors",
}

#: The releases that other packages pin; they lack the newest types.
BEFORE_5_18, BEFORE_5_20, BEFORE_5_22 = (
    Version(transformers.__version__) < Version(release) for release in ("5.18", "5.20", "5.22")
)
#: Types that 5.16 and 5.17 have, but not as these tests need them.
NOT_BEFORE_5_18 = {
    "glm5_next": "knows layers of another type",
    "qwen4_exp": "knows layers of another type",
}
#: Types that 5.16 to 5.19 have, but not as these tests need them.
NOT_BEFORE_5_20 = {
    "aria": "asks for configs where others take settings",
    "minicpmv4_6": "asks for the type of its text config",
    "minicpmv4_7": "asks for the type of its text config",
    "perception_lm": "needs timm",
}
#: Types that these have, but not as the tests with other media than images need them.
MEDIA_OTHERWISE = {
    "gemma4": "takes a video by other names",
    "gemma4_unified": "takes a video by other names",
    "video_llava": "has other accessors",
}

VISION_ENCODERS = ("clip", "siglip", "siglip2")
VISION_ENCODERS += tuple(f"{name}_vision_model" for name in VISION_ENCODERS)
LANGUAGE_MODELS = ("llama", "qwen2", "qwen3")
VLM_TYPES = tuple(name for name in TINY if name not in VISION_ENCODERS + LANGUAGE_MODELS)


def build(model_type: str, **more: Any) -> PreTrainedModel:
    """The model as transformers initialises it, on the default device; ``more`` of its config."""
    name, arguments = EVERY[model_type]
    arguments = {**arguments, **more}
    if not is_line_5() and (model_type in NOT_ON_4 or not hasattr(transformers, name)):
        pytest.skip(f"transformers 4: {model_type} {NOT_ON_4.get(model_type, 'is newer')}")
    otherwise = (NOT_BEFORE_5_18 if BEFORE_5_18 else {}) | (NOT_BEFORE_5_20 if BEFORE_5_20 else {})
    if model_type in otherwise or (BEFORE_5_22 and not hasattr(transformers, name)):
        why = otherwise.get(model_type, "is newer")
        pytest.skip(f"transformers {transformers.__version__}: {model_type} {why}")
    model_class = getattr(transformers, name)
    config_class = model_class.config_class
    if model_type in CONFIG_MAPPING_NAMES:  # some types share the class of another one
        config_class = getattr(transformers, CONFIG_MAPPING_NAMES[model_type])
    return model_class(config_class(**_for_this_line(deepcopy(arguments)))).eval()


def _for_this_line(settings: dict[str, Any]) -> dict[str, Any]:
    """transformers 4 keeps what is in ``rope_parameters`` in fields of their own."""
    if is_line_5():
        return settings
    found = {
        key: _for_this_line(value) if isinstance(value, dict) else value
        for key, value in settings.items()
    }
    rotary = found.pop("rope_parameters", {})
    alone = {
        key: rotary.pop(key) for key in ("rope_theta", "partial_rotary_factor") if key in rotary
    }
    return found | alone | ({"rope_scaling": rotary} if rotary else {})


def tiny_model(model_type: str, seed: int = 0, **more: Any) -> PreTrainedModel:
    """A float32 model in evaluation mode whose output depends on its image."""
    torch.manual_seed(seed)
    model = build(model_type, **more)
    unit_gain_(model)
    return model


@torch.no_grad()
def unit_gain_(model: PreTrainedModel) -> None:
    """Let every signal through: initialisations of 0.02, zero gates and unit norms hide bugs."""
    modules = list(model.modules())
    for module in modules:
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            module.weight.normal_(0.0, module.weight[0].numel() ** -0.5)
    for module in modules:  # after the linear layers: a tied head is the table itself
        if isinstance(module, nn.Embedding):
            module.weight.normal_()
            if module.num_embeddings == VOCABULARY:
                module.weight[PAD] = 0.0  # as in checkpoints
    for name, parameter in model.named_parameters():
        if parameter.dim() == 3 and ".experts." in name:  # the matrices of all experts
            parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
        if parameter.numel() == 1 and parameter.item() == 0.0:  # a closed gate
            parameter.fill_(0.5)
        if parameter.numel() > 1 and bool((parameter == parameter.flatten()[0]).all()):
            parameter.add_(0.1 * torch.randn_like(parameter))
