"""What kind of model a config is of, and which auto class makes it."""

import re
from inspect import signature
from typing import Any

from normprobe.errors import NormprobeError
from normprobe.failures import register_in_setup
from normprobe.model.config import vision_fields
from normprobe.model.find.overrides import overrides_of
from normprobe.schema import BARE_VISION_ENCODER, LANGUAGE_MODEL, VISION_LANGUAGE

#: How a kind is set by hand.
KINDS = {
    "vision-language": VISION_LANGUAGE,
    "vision-encoder": BARE_VISION_ENCODER,
    "language": LANGUAGE_MODEL,
}


#: What a config calls its language model; a text encoder beside a vision encoder is none.
_LANGUAGE_PARTS = ("llm_config", "lm_config", "language_config", "language_model_config")


def is_own_code(config: Any) -> bool:
    """Whether a config is of a class that transformers does not bring."""
    return not type(config).__module__.startswith("transformers.")


def auto_class(kind: str, config: Any) -> Any:
    """The transformers auto class that builds the whole model of this kind."""
    import transformers

    if kind == BARE_VISION_ENCODER:
        return transformers.AutoModel
    if offering := _that_offers_its_class(config):
        return getattr(transformers, offering)
    if _is_image_text_to_text(config):
        return transformers.AutoModelForImageTextToText
    if _retrieves(config):
        return transformers.AutoModelForPreTraining
    if _brings(config, "AutoModel") and not _brings(config, "AutoModelForCausalLM"):
        return transformers.AutoModel
    if reads_sounds(config):
        return transformers.AutoModelForMultimodalLM
    return transformers.AutoModelForCausalLM


def kind_of_config(config: Any) -> str:
    """One of ``KINDS``, or a ``NormprobeError`` where nothing tells it."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if _is_image_text_to_text(config) or _retrieves(config):
        return VISION_LANGUAGE
    is_causal = config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    is_causal = is_causal or reads_sounds(config)
    if is_causal or _registers(config, "AutoModelForCausalLM") or _writes_text(config):
        return VISION_LANGUAGE if _has_vision_part(config) else LANGUAGE_MODEL
    if is_own_code(config) and not _registers(config, "AutoModel"):  # Phantom, by its import alone
        kind, names = type(config).__name__, getattr(config, "architectures", None) or ["CLASS"]
        raise NormprobeError(
            f"no class is registered that makes a model of {kind}",
            register_in_setup("AutoModelForCausalLM", kind, names[0]),
        )
    names_place = any(getattr(config, f"image_token_{end}", None) for end in ("id", "index"))
    holds_both = any(getattr(config, name, None) is not None for name in _LANGUAGE_PARTS)
    if (names_place or holds_both) and is_own_code(config) and _has_vision_part(config):  # Dimple
        return VISION_LANGUAGE
    if is_own_code(config) and getattr(config, "is_encoder_decoder", False):
        return VISION_LANGUAGE  # its decoder attends to the picture (Nemotron-Parse)
    if hasattr(config, "vision_config") or hasattr(config, "patch_size"):
        return BARE_VISION_ENCODER
    if _registers(config, "AutoModel") and _has_vision_part(config):  # VILA-U
        return VISION_LANGUAGE
    raise NormprobeError(
        f"model type {config.model_type!r} is no vision-language model, vision encoder or "
        "language model of this transformers version",
        "pass such a model, say what it is with --part kind=KIND, or upgrade transformers if the "
        "type is new",
    )


def reads_sounds(config: Any) -> bool:
    """Whether transformers 5 knows the type as one that reads sounds and writes text alone."""
    from transformers.models.auto import modeling_auto

    others = ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES")
    known = set(getattr(modeling_auto, "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES", ()))
    known = known.difference(*(getattr(modeling_auto, name) for name in others))
    return config.model_type in known and not is_own_code(config)


def _that_offers_its_class(config: Any) -> str:
    """The auto class by which a checkpoint of a native type offers the class that it was saved of.

    It may be none of those that write text (jina-reranker, of Qwen2-VL); "" where there is none.
    """
    import transformers

    named = getattr(config, "architectures", None) or [""]
    offered = {} if is_own_code(config) else getattr(config, "auto_map", None) or {}
    for key, reference in offered.items():
        if isinstance(reference, str) and reference.endswith(f".{named[0]}"):
            return key if key.startswith("AutoModel") and hasattr(transformers, key) else ""
    return ""


def _is_image_text_to_text(config: Any) -> bool:
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    known = () if is_own_code(config) else MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    return config.model_type in known or _registers(config, "AutoModelForImageTextToText")


def _retrieves(config: Any) -> bool:
    """Whether the type stands on a vision-language model, to search by its states (ColPali)."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_PRETRAINING_MAPPING_NAMES

    inside = getattr(config, "vlm_config", None)
    known = config.model_type in MODEL_FOR_PRETRAINING_MAPPING_NAMES and not is_own_code(config)
    return known and inside is not None and _is_image_text_to_text(inside)


def _brings(config: Any, auto_class: str) -> bool:
    """Whether other code than that of transformers offers a model by an auto class."""
    import transformers

    in_repository = auto_class in (getattr(config, "auto_map", None) or {})
    offered = getattr(transformers, auto_class)._model_mapping._extra_content
    return in_repository or type(config) in offered


def _registers(config: Any, auto_class: str) -> bool:
    """Whether code of its own offers a model by an auto class: in its repository, or installed."""
    import transformers

    mapping = getattr(transformers, auto_class)._model_mapping
    # Of transformers' own it looks at the name alone: LLaVA's code has a LlavaConfig, too.
    native = not is_own_code(config) and type(config) in mapping
    return native or _brings(config, auto_class)


def _writes_text(config: Any) -> bool:
    """Whether the class of a repository that offers a bare ``AutoModel`` says that it writes text.

    That of a vision encoder, or of a dual encoder such as CLIP, does not.
    """
    of_text = ("ForCausalLM", "ForConditionalGeneration")
    named = [str(name) for name in getattr(config, "architectures", None) or []]
    return _registers(config, "AutoModel") and any(name.endswith(of_text) for name in named)


def _has_vision_part(config: Any) -> bool:
    """Whether a model that is offered as a causal language model also reads images.

    Some configs do not mention the vision encoder; then the overrides know the model type.
    """
    known = ("vision_config", "vit_config")
    return (
        any(getattr(config, name, None) is not None for name in known)
        or bool(vision_fields(config))
        or _is_given_pixels(config)
        or overrides_of(config).get("vision_encoder") is not None
    )


def _is_given_pixels(config: Any) -> bool:
    """Whether the class that a package offers for a type has an input for pictures (SAIL)."""
    from transformers import AutoModelForCausalLM

    offered = AutoModelForCausalLM._model_mapping._extra_content.get(type(config))
    inputs = signature(offered.forward).parameters if offered is not None else ()
    return any(re.search("pixel|image|picture|patches", name) for name in inputs)
