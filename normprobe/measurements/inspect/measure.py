"""Look at a checkpoint without loading its weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from normprobe.measurements.inspect.table import parts_table
from normprobe.measurements.inspect.weights import weights_table
from normprobe.model.checkpoint import Checkpoint
from normprobe.model.find.norm_placement import norm_placement_note
from normprobe.model.find.parts import family_of
from normprobe.model.find.structure import find_parts
from normprobe.model.load.build import build_on_meta


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
    """Build a checkpoint's modules without weights and describe them.

    Args:
        checkpoint: of ``open_checkpoint``.
        named: parts named by hand, as ``find_parts`` takes them.
        weights: read the headers of the weight files, too.

    Raises:
        NormprobeError: the model cannot be built, its parts are not found, or a weight file is
            absent or unreadable.
    """
    model = build_on_meta(checkpoint)
    parts = find_parts(model, named=named)
    text_config = checkpoint.config.get_text_config(decoder=True)
    facts = {
        "model": checkpoint.name,
        "type": f"{checkpoint.config.model_type} ({checkpoint.kind})",
        "hidden size": getattr(text_config, "hidden_size", None),
        "family": family_of(parts),
        "norm placement": norm_placement_note(model, parts),
        "image token ids": ", ".join(map(str, parts.image_token_ids)),
    }
    if checkpoint.alignment is not None:
        facts["alignment norm"] = f"behind {checkpoint.alignment.after}"
    stored = weights_table(checkpoint, model, parts) if weights else None
    return Inspection(facts, parts_table(model, parts), stored)
