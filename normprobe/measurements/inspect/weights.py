"""``inspect --weights``: what the weight files hold of each part, and what each command reads."""

from math import prod
from typing import Any

import pandas as pd
from torch import nn

from normprobe.measurements import measurements
from normprobe.model.checkpoint import Checkpoint
from normprobe.model.find.parts import Parts
from normprobe.model.load.plan import LoadPlan, plan_loading
from normprobe.model.load.required_tensors import outside, unneeded
from normprobe.model.load.weight_files import WeightFiles


def weights_table(
    checkpoint: Checkpoint, model: nn.Module, parts: Parts, weights: WeightFiles
) -> pd.DataFrame:
    """Parts and commands by the tensors they need, from the headers of the weight files alone."""

    def plan(without: frozenset[str]) -> LoadPlan:
        return plan_loading(checkpoint, model, without, weights=weights)

    rows = [_row(role, "part", plan(outside(part.name, model))) for role, part in parts]
    rows += [
        _row(offered.name, "command", plan(unneeded(offered.needs, model, parts)))
        for offered in measurements()
        if offered.needs is not None
        and all(getattr(parts, role) is not None for role in offered.measures)
    ]
    whole = LoadPlan(checkpoint, type(model), weights, frozenset(weights.file_of))
    return pd.DataFrame([*rows, _row("checkpoint", "checkpoint", whole)])


def _row(what: str, kind: str, plan: LoadPlan) -> dict[str, Any]:
    row: dict[str, Any] = {"what": what, "kind": kind, "files": " ".join(plan.files)}
    if plan.keys is None:
        return row
    headers = [plan.weights.header(key) for key in plan.keys]
    return row | {
        "parameters": sum(prod(header.shape) for header in headers),
        "bytes": sum(header.nbytes for header in headers),
        "dtype": " ".join(sorted({header.dtype for header in headers})),
    }
