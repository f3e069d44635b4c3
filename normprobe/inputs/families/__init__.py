"""Model families with inputs of their own: one inputs file a family.

To add a family, write a file here, as ``inputs_file`` describes it, and name it in ``MODULES``.
"""

from importlib import import_module

from normprobe.inputs.inputs_file import NO_INPUTS_FILE, InputsFile, inputs_file_of

#: The file of a family, by ``config.model_type``.
MODULES = {
    "Keye": "keye",
    "deepseek_vl_v2": "deepseek_vl_v2",
    "idefics": "idefics",
    "internvl_chat": "internvl_chat",
    "kimi_vl": "kimi_vl",
    "minicpmv": "minicpmv",
    "molmo": "molmo",
    "moonvit": "moonvit",
    "ovis2_5": "ovis2_5",
    "phi3_v": "phi3_v",
    "phi4mm": "phi4mm",
    "vila": "vila",
}


def family_file(model_type: str | None) -> InputsFile:
    """What is known of the inputs of a model type.

    Args:
        model_type: ``config.model_type``.

    Returns:
        The inputs file of the family; an empty one for a type that takes its inputs as most do.
    """
    module = MODULES.get(model_type or "")
    return (
        NO_INPUTS_FILE if module is None else inputs_file_of(import_module(f"{__name__}.{module}"))
    )
