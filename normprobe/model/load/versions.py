"""What lies in different places in the transformers versions that are supported."""

from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any


def meta_device_safe_creation_ops() -> AbstractContextManager[None]:
    """Code that reads a value while it is built on the meta device gets one (transformers 5)."""
    make = getattr(_home(), "meta_device_safe_creation_ops", nullcontext)
    context: AbstractContextManager[None] = make()
    return context


def _home() -> Any:
    try:
        return import_module("transformers.initialization")
    except ImportError:  # transformers 4
        return import_module("transformers.modeling_utils")
