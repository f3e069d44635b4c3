"""Which hooks a model carries."""

from collections.abc import Callable
from typing import Any

from torch import nn


def hooks_of(model: nn.Module) -> list[Callable[..., Any]]:
    """Those of transformers itself included: it adds some in the first forward."""
    return [
        hook
        for module in model.modules()
        for hooks in (module._forward_pre_hooks, module._forward_hooks)
        for hook in hooks.values()
    ]
