"""What leaves each block of the vision encoder, and the projector, under the names of a file."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normprobe.extensions.check.measure import block_stage
from normprobe.hooks import (
    HIDDEN_STATE,
    PROJECTED_STATE,
    after_call,
    attached,
    hidden_state_of,
    observing,
    run_until,
)
from normprobe.inputs.on_device import moved_to
from normprobe.model.find.parts import Part
from normprobe.model.measured_model import MeasuredModel
from normprobe.model.tower import blocks_of
from normprobe.schema import PROJECTOR_OUTPUT

#: What a file may call them in every model, beside the names that they have in this one.
BLOCKS, PROJECTOR = "vision_layers", "projector"


def vision_names(model: MeasuredModel) -> dict[str, str]:
    """The stages by the names of their tensors."""
    found: dict[str, str] = {}
    for stage, number, part in _parts(model):
        names = [part.name, PROJECTOR if number is None else f"{BLOCKS}.{number}"]
        found |= {f"{name}{end}": stage for name in names for end in ("", ".output")}
    return found


def own_vision(model: MeasuredModel, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """The model's own, ``[rows, hidden]`` by stage, of all pictures of one sample."""
    kept: dict[str, list[Tensor]] = {}

    def keep(stage: str, _: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        state = hidden_state_of(
            output, PROJECTED_STATE if stage == PROJECTOR_OUTPUT else HIDDEN_STATE
        )
        kept.setdefault(stage, []).append(state.detach().flatten(0, -2).cpu())

    handles = [after_call(part.module, partial(keep, stage)) for stage, _, part in _parts(model)]
    with observing(model.model), attached(*handles):
        run_until(model.model, moved_to(model.model, inputs))
    return {stage: torch.cat(states) for stage, states in kept.items()}


def _parts(model: MeasuredModel) -> list[tuple[str, int | None, Part]]:
    """Stage, number and module of each block, and of the projector."""
    encoder, projector = model.parts.vision_encoder, model.parts.projector
    blocks = blocks_of(encoder, projector) if encoder is not None else None
    modules = [] if blocks is None else [*blocks.module.children()]
    found: list[tuple[str, int | None, Part]] = [
        (block_stage(number + 1), number, Part(f"{blocks.name}.{number}", module))
        for number, module in enumerate(modules)
        if blocks is not None
    ]
    if projector is not None:
        found.append((PROJECTOR_OUTPUT, None, projector))
    return found
