"""Look at a checkpoint without loading its weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
from torch import nn

from normprobe.errors import NormprobeError
from normprobe.inputs.families import family_file
from normprobe.measurements.inspect.table import parts_table
from normprobe.measurements.inspect.weights import weights_table
from normprobe.model.checkpoint import Checkpoint
from normprobe.model.find.norms import norm_placement_note
from normprobe.model.find.parts import family_of
from normprobe.model.find.structure import find_parts
from normprobe.model.load.partial_load import build_on_meta
from normprobe.model.load.plan import plan_loading
from normprobe.model.load.weight_files import WeightFiles, weight_files_of


@dataclass(frozen=True)
class Inspection:
    """What a checkpoint shows.

    Attributes:
        facts: named facts of the model, in the order to print them.
        parts: of ``parts_table``.
        weights: of ``weights_table``; None where nobody asked.
    """

    facts: dict[str, object]
    parts: pd.DataFrame
    weights: pd.DataFrame | None


def inspected(
    checkpoint: Checkpoint, named: Mapping[str, Any], *, weights: bool = False
) -> Inspection:
    """Build a checkpoint's modules without weights and describe them."""
    model = build_on_meta(checkpoint)
    files = weight_files_of(checkpoint)
    compared = _compared(checkpoint, model, files, asked=weights)
    parts = find_parts(model, named=named)
    text_config = checkpoint.config.get_text_config(decoder=True)
    facts = {
        "model": checkpoint.name,
        "type": f"{checkpoint.config.model_type} ({checkpoint.kind})",
        "hidden size": getattr(text_config, "hidden_size", None),
        "family": family_of(parts),
        "inputs file": family_file(checkpoint.config).record.get("family"),
        "norm placement": norm_placement_note(model, parts),
        "image token ids": ", ".join(map(str, parts.image_token_ids)),
    }
    for name in ("video_token_ids", "audio_token_ids"):
        if ids := getattr(parts, name):
            facts[name.replace("_", " ")] = ", ".join(map(str, ids))
    facts["weight files"] = compared
    if checkpoint.alignment is not None:
        facts["alignment norm"] = f"behind {checkpoint.alignment.after}"
    stored = weights_table(checkpoint, model, parts, files) if weights else None
    return Inspection(facts, parts_table(model, parts), stored)


def _compared(checkpoint: Checkpoint, model: nn.Module, files: WeightFiles, *, asked: bool) -> str:
    """Compare names and shapes of the model's tensors with the headers of the weight files."""
    if not asked:
        try:
            if not files.headers_are_here:
                return "not compared, no headers here"
            for name in files.files:
                files.headers(name)
        except NormprobeError as error:  # nothing to compare with is no reason to refuse
            return f"not compared, {error.problem}"
    plan = plan_loading(checkpoint, model, weights=files)
    if plan.keys is None:
        return f"not compared, {plan.because}"
    return "; ".join(["names and shapes as the model expects", *plan.notes])
