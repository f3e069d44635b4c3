"""Model families whose processors are called in a way of their own: one file a family.

How they are called was read from published excerpts of their repositories, not executed: where a
repository differs, its own code raises, and the error says so.

To add a family, write a file here with ``MODEL_TYPES`` and ``build``, and name it in ``MODULES``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from normprobe.data.sample import Sample

if TYPE_CHECKING:
    from transformers import BatchFeature

    BuildFunction = Callable[[Any, Sequence[Sample], str | None], BatchFeature]

#: The file of a family, by ``config.model_type``.
MODULES = {
    "deepseek_vl_v2": "deepseek_vl_v2",
    "minicpmv": "minicpmv",
    "molmo": "molmo",
    "moonvit": "moonvit",
    "ovis2_5": "ovis2_5",
    "phi4mm": "phi4mm",
}


def build_function(model_type: str | None) -> BuildFunction | None:
    """Return the function that builds the inputs of a model type.

    Args:
        model_type: ``config.model_type``.

    Returns:
        ``build(processor, samples, system)``, which gives one batch as ``InputBuilder.build``
        describes; None for a type that takes its inputs as most do.
    """
    module = MODULES.get(model_type or "")
    if module is None:
        return None
    build: BuildFunction = import_module(f"{__name__}.{module}").build
    return build
