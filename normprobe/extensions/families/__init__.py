"""Model families with inputs of their own, grouped by how their inputs are made.

``conversations``  DeepSeek-VL2, Ovis2.5: messages
``prompts``        MiniCPM-V 2.6, Phi-3-vision, Phi-4-multimodal: one text, placeholders in it
``internvl_chat``  InternVL: no processor at all
``molmo``          Molmo: one sample a call
``declared_parts`` IDEFICS, Keye-VL, Kimi-VL, MoonViT, NVILA: as others, but for a few words

To add a family, put an ``InputsFile`` into one of them, named as its ``config.model_type`` in upper
case, and say in ``FAMILIES`` where it stands and what tells its models. Most need none: parts,
places and signatures are found without (docs/how-to/remote-code.md).
"""

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from normprobe.registry import MAKE, Extension

if TYPE_CHECKING:
    from normprobe.inputs.inputs_file import InputsFile
    from normprobe.runs.model_source import ModelSource


@dataclass(frozen=True)
class Family:
    """What tells a family: a type alone may be that of other code, too."""

    module: str  # where it stands
    # names of its model classes, as ``architectures`` or ``auto_map`` gives them
    classes: tuple[str, ...]
    # a config field that other models of this type and class lack; empty: there are none
    field: str = ""


#: The family by ``config.model_type``.
FAMILIES = {
    "Keye": Family("declared_parts", ("KeyeForConditionalGeneration",)),
    "deepseek_vl_v2": Family("conversations", ("DeepseekVLV2ForCausalLM",)),  # DeepSeek-OCR, too
    "idefics": Family("declared_parts", ("IdeficsForVisionText2Text", "IdeficsModel")),
    "internvl_chat": Family("internvl_chat", ("InternVLChatModel",)),
    "kimi_vl": Family("declared_parts", ("KimiVLForConditionalGeneration",)),
    # MiniCPM-V 2.0 names its vision encoder by a hub id.
    "minicpmv": Family("prompts", ("MiniCPMV",), "vision_config"),
    "molmo": Family("molmo", ("MolmoForCausalLM",)),
    "moonvit": Family("declared_parts", ("MoonVitPretrainedModel",)),
    "ovis2_5": Family("conversations", ("Ovis2_5",)),
    "phi3_v": Family("prompts", ("Phi3VForCausalLM",)),
    "phi4mm": Family("prompts", ("Phi4MMForCausalLM",)),
    "vila": Family("declared_parts", ("VILAForCausalLM", "VILAForConditionalGeneration")),
}


def own_file(config: Any) -> "InputsFile | None":
    """What is known of the inputs of a model; None: nothing."""
    model_type = str(_field(config, "model_type"))
    family = FAMILIES.get(model_type)
    if family is None:
        return None
    named = set(_classes(config))  # a config may name no class: then its type is all there is
    if (named and not named & set(family.classes)) or (
        family.field and _field(config, family.field) is None
    ):
        return None
    found: InputsFile = getattr(import_module(f"{__name__}.{family.module}"), model_type.upper())
    return replace(found, record={"family": model_type.lower()})


def _open_script(model: str, *given: Any, **named: Any) -> "ModelSource":
    """The model of a script; what is missing for it is told when it is opened."""
    from normprobe.extensions.families.script_source import ScriptSource

    return ScriptSource(model, *given, **named)


def is_script(model: str) -> bool:
    """Whether a MODEL names a Python file or notebook, with or without arguments behind it."""
    try:
        return shlex.split(model)[0].endswith((".py", ".ipynb"))
    except (ValueError, IndexError):  # a quote without its end, no text
        return False


def _classes(config: Any) -> Iterable[str]:
    yield from _field(config, "architectures") or ()
    for auto_class, reference in (_field(config, "auto_map") or {}).items():
        if auto_class.startswith("AutoModel") and isinstance(reference, str):
            yield reference.rpartition(".")[2]


def _field(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


class _Families(Extension):
    panel = MAKE

    def commands(self) -> Mapping[str, Callable[..., None]]:
        from normprobe.extensions.families.command import inputs

        return {"inputs": inputs}

    def opens(self, model: str) -> "Callable[..., ModelSource] | None":
        return partial(_open_script, model) if is_script(model) else None

    def inputs_file(self, config: Any) -> "InputsFile | None":
        return own_file(config)


EXTENSION = _Families()
