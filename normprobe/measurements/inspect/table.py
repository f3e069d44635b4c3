"""The parts of a model as a table, from its modules alone."""

import pandas as pd
from torch import nn

from normprobe.model.find.parts import Parts


def parts_table(model: nn.Module, parts: Parts) -> pd.DataFrame:
    """The parts of a model."""
    rows = [
        {
            "part": role,
            "name": part.name or "(the model itself)",
            "class": _class_of(part.module),
            "size": _size_of(part.module),
            "parameters": sum(p.numel() for p in part.module.parameters()),
        }
        for role, part in parts
    ]
    whole = sum(p.numel() for p in model.parameters())
    rows.append(
        {
            "part": "model",
            "name": "",
            "class": type(model).__name__,
            "size": "",
            "parameters": whole,
        }
    )
    return pd.DataFrame(rows)


def _class_of(module: nn.Module) -> str:
    """The class; of a list of layers, the class of its first."""
    layers = list(module.children()) if isinstance(module, nn.ModuleList) else []
    return type(layers[0] if layers else module).__name__


def _size_of(module: nn.Module) -> str:
    if isinstance(module, nn.ModuleList):
        return f"{len(module)} layers"
    weight = getattr(module, "weight", None)
    if isinstance(module, nn.Embedding) and weight is not None:
        return f"{weight.shape[0]} x {weight.shape[1]}"
    return ""
