"""Model families with inputs of their own: one inputs file a family.

To add a family, write a file here, as ``inputs_file`` describes it, named as its
``config.model_type`` in lower case, and say in ``FAMILIES`` what tells its models.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from normprobe.inputs.inputs_file import NO_INPUTS_FILE, InputsFile, inputs_file_of


@dataclass(frozen=True)
class Family:
    """What tells a family: a type alone may be that of other code, too.

    Attributes:
        classes: names of its model classes, as ``architectures`` or ``auto_map`` gives them.
        field: a config field that other models of this type and class lack; empty: there are none.
    """

    classes: tuple[str, ...]
    field: str = ""


#: The family by ``config.model_type``.
FAMILIES = {
    "Keye": Family(("KeyeForConditionalGeneration",)),
    "deepseek_vl_v2": Family(("DeepseekVLV2ForCausalLM",)),  # DeepSeek-OCR, too
    "idefics": Family(("IdeficsForVisionText2Text", "IdeficsModel")),
    "internvl_chat": Family(("InternVLChatModel",)),
    "kimi_vl": Family(("KimiVLForConditionalGeneration",)),
    # MiniCPM-V 2.0 names its vision encoder by a hub id.
    "minicpmv": Family(("MiniCPMV",), "vision_config"),
    "molmo": Family(("MolmoForCausalLM",)),
    "moonvit": Family(("MoonVitPretrainedModel",)),
    "ovis2_5": Family(("Ovis2_5",)),
    "phi3_v": Family(("Phi3VForCausalLM",)),
    "phi4mm": Family(("Phi4MMForCausalLM",)),
    "vila": Family(("VILAForCausalLM", "VILAForConditionalGeneration")),
}


def family_file(config: Any) -> InputsFile:
    """What is known of the inputs of a model."""
    model_type = str(_field(config, "model_type"))
    family = FAMILIES.get(model_type)
    if family is None:
        return NO_INPUTS_FILE
    named = set(_classes(config))  # a config may name no class: then its type is all there is
    if (named and not named & set(family.classes)) or (
        family.field and _field(config, family.field) is None
    ):
        return NO_INPUTS_FILE
    name = model_type.lower()
    found = inputs_file_of(import_module(f"{__name__}.{name}"))
    return replace(found, record={"family": name})


def _classes(config: Any) -> Iterable[str]:
    yield from _field(config, "architectures") or ()
    for auto_class, reference in (_field(config, "auto_map") or {}).items():
        if auto_class.startswith("AutoModel") and isinstance(reference, str):
            yield reference.rpartition(".")[2]


def _field(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
