"""The norms of one sample once more, on a way that shares nothing with the hooks.

States come from replaced forwards of the modules that a trace finds, the rows that count are those
that other pixels change, and the arithmetic is NumPy in float64 on the CPU.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor, nn

from normprobe.failures import is_native
from normprobe.hooks import PROJECTED_STATE
from normprobe.measurements.interface.measure import observe, rows
from normprobe.model.captured_states import (
    ROWS,
    TOKENS,
    CapturedCall,
    Masks,
    captured_calls,
    largest_difference,
    traced_groups,
)
from normprobe.model.measured_model import MeasuredModel
from normprobe.model.tracing.observation import other_pixels
from normprobe.model.tracing.trace import TracedParts
from normprobe.schema import (
    DECODER_INPUT,
    MERGED_INPUT,
    PADDING,
    PROJECTOR_INPUT,
    PROJECTOR_OUTPUT,
    SPECIAL,
    STRUCTURAL,
    TOKEN_GROUPS,
    VIDEO,
    VISION_ENCODER,
    VISUAL,
)
from normprobe.tensors import flattened, unflattened
from normprobe.versions import reader_of_encoder

# --- rows that come from pixels ------------------------------------------------------------------
# Other pixels change them: before the first layer of a vision encoder no row has seen another.
# Class and register rows, padded patches and empty tiles are the same whatever the pixels are.

Codes = NDArray[np.int8]

_VISUAL, _SPECIAL, _STRUCTURAL = map(TOKEN_GROUPS.index, (VISUAL, SPECIAL, STRUCTURAL))


@dataclass(frozen=True)
class RowsFromPixels:
    """The rows that enter a vision encoder, one after another."""

    groups: Codes  # ``[rows]`` codes: patches are visual, class and register rows special; padding
    leading: NDArray[np.bool_]  # ``[rows]`` bool, where each tile has its class and register rows

    def in_stage(self, rows: int) -> Codes | None:
        """The groups of as many rows of a stage behind.

        Returns:
            ``[rows]`` codes; None where padding may have gone into some of them.
        """
        everything, visual = np.ones_like(self.leading), self.groups == _VISUAL
        candidates = everything, ~self.leading, visual
        for kept in candidates:
            if kept.sum() == rows:
                return self.groups[kept]
        # Each row is made of as many of these; or, behind a resampler, of all.
        read = next((kept for kept in candidates if kept.sum() % rows == 0), everything)
        padded = (self.groups[read] == PADDING).any()
        return None if padded else np.full(rows, _VISUAL, dtype=np.int8)


def rows_from_pixels(
    states: Sequence[Tensor], of_other_pixels: Sequence[Tensor]
) -> RowsFromPixels | None:
    """Tell the rows of an image by those of another.

    Args:
        states: ``[..., rows of a tile, hidden]``, one a call of the module that they enter.
        of_other_pixels: the same for other pixels.

    Returns:
        The rows; None where the two cannot be compared, or no row changes.
    """
    shapes = ([state.shape for state in both] for both in (states, of_other_pixels))
    if len({tuple(of_each) for of_each in shapes}) > 1:
        return None
    found: list[tuple[NDArray[Any], NDArray[Any]]] = []
    for state, other in zip(states, of_other_pixels, strict=True):
        moved = (state != other).any(dim=-1).reshape(-1, state.shape[-2]).numpy()
        leading = np.broadcast_to(~np.logical_or.accumulate(moved.any(axis=0)), moved.shape)
        class_rows = leading & moved.any(axis=1, keepdims=True)
        groups = np.where(moved, _VISUAL, np.where(class_rows, _SPECIAL, PADDING))
        found.append((groups.ravel(), leading.ravel()))
    if not any((groups == _VISUAL).any() for groups, _ in found):
        return None
    groups, leading = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return RowsFromPixels(groups.astype(np.int8), leading)


# --- norms ---------------------------------------------------------------------------------------

#: What is captured beside the stages: what enters the vision encoder's first layer.
_PATCHES = "embedded_patches"

_PLACE = ["stage", "group"]
_RETURNED = (VISION_ENCODER, PROJECTOR_OUTPUT)
_OF_PROJECTOR = (PROJECTOR_INPUT, PROJECTOR_OUTPUT)
_OF_IMAGES = (VISION_ENCODER, PROJECTOR_INPUT, MERGED_INPUT, PROJECTOR_OUTPUT)

_States = dict[str, list[Tensor]]  # by stage, one a call of its module


def differences(
    model: MeasuredModel, inputs: Mapping[str, Any], traced: TracedParts
) -> dict[str, float | str]:
    """How far the measured norms of a sample are from recomputed ones."""
    measured = rows(observe(model, inputs), None).set_index(_PLACE)
    states = _states(model, inputs, traced)
    recomputed: list[dict[str, object]] = []
    found: dict[str, float | str] = {}
    if changed := other_pixels(flattened(inputs)):
        others = _states(model, unflattened(changed), traced)
        first = next(iter(states))  # where rows have seen least of each other
        from_pixels = rows_from_pixels(states[first], others[first])
        if from_pixels and not (model.parts.class_rows or is_native(model.model)):
            # Class rows that are handed over enter the decoder as visual ones (Valley).
            groups = from_pixels.groups
            from_pixels = replace(from_pixels, groups=np.where(groups == _SPECIAL, _VISUAL, groups))
        learned = {} if is_native(model.model) else _learned(states, others)
        for stage in _OF_IMAGES:
            if stage not in measured.index:
                continue
            if VIDEO in measured.loc[stage].index:
                found[stage] = "a trace takes videos for images"
                continue
            masks = _masks(states.get(stage, []), from_pixels, learned.get(stage))
            if isinstance(masks, str):
                found[stage] = masks
            else:
                recomputed += _rows(stage, _norms(states[stage]), masks)
    if DECODER_INPUT in states:
        (x,) = states[DECODER_INPUT]
        of_tokens, found[TOKENS] = traced_groups(model, inputs, x, traced)
        recomputed += _rows(DECODER_INPUT, _norms([x]).reshape(x.shape[:-1]), of_tokens)
    return _of_stages(measured, pd.DataFrame(recomputed).set_index(_PLACE)) | found


def _of_stages(measured: pd.DataFrame, recomputed: pd.DataFrame) -> dict[str, float]:
    found = {}
    for stage in recomputed.index.unique("stage"):
        there, expected = (table["norm_mean"].loc[[stage]] for table in (measured, recomputed))
        found[stage] = largest_difference(there, expected, relative=True)
    stages = measured.index.isin(found, level="stage")
    apart = measured["tokens"][stages].sub(recomputed["tokens"], fill_value=0)
    return {**found, ROWS: float(apart.abs().max())}


def _states(model: MeasuredModel, inputs: Mapping[str, Any], traced: TracedParts) -> _States:
    """The states of one forward up to decoder layer 1, in the order of the flow."""

    def module(name: str | None) -> nn.Module | None:
        return None if name is None else model.model.get_submodule(name)

    def first_of(name: str | None) -> nn.Module | None:
        layers = module(name)
        return None if layers is None else next(layers.children())

    encoder, projector = module(traced.vision_encoder), module(traced.projector)
    reader = None if encoder is None else reader_of_encoder(encoder, projector)
    watched = {
        _PATCHES: first_of(traced.encoder_layers),
        VISION_ENCODER: reader or encoder,
        PROJECTOR_OUTPUT: projector,
        DECODER_INPUT: first_of(traced.decoder_layers),
    }
    # A dual encoder such as CLIP wants texts, too: its vision side runs alone.
    alone = None if model.has_decoder else model.parts.vision_encoder
    runs = model.model if alone is None else alone.module
    present = {name: part for name, part in watched.items() if part is not None}
    found = captured_calls(
        runs, present, inputs, present.get(DECODER_INPUT), {PROJECTOR_OUTPUT: PROJECTED_STATE}
    )
    calls = {name: found.get(name, []) for name in watched}
    read = [call.left if reader is None else call.entered for call in calls[VISION_ENCODER]]
    # Older code projects zeros in the place of an image, too: these count nowhere.
    of_projector = [call for call in calls[PROJECTOR_OUTPUT] if call.entered.any()]
    # Without a vision encoder the projector receives pixels.
    projected = of_projector if encoder is not None else []
    states = {
        _PATCHES: [call.entered for call in calls[_PATCHES]],
        VISION_ENCODER: [_as_rows(model, state) for state in read],
        PROJECTOR_INPUT: [_as_rows(model, call.entered) for call in projected],
        MERGED_INPUT: [_side_by_side(call) for call in projected],
        PROJECTOR_OUTPUT: [call.left for call in of_projector],
        DECODER_INPUT: [model.read_stream(call.entered) for call in calls[DECODER_INPUT][:1]],
    }
    return {stage: of_stage for stage, of_stage in states.items() if of_stage}


def _as_rows(model: MeasuredModel, state: Tensor) -> Tensor:
    """Maps ``[..., hidden, height, width]`` as ``[..., height, width, hidden]``."""
    return state.movedim(-3, -1) if model.parts.channels_first and state.dim() > 3 else state


def _side_by_side(call: CapturedCall) -> Tensor:
    """The rows of which the projector makes one, as one row."""
    rows = call.left.shape[:-1].numel()
    return call.entered.reshape(rows, -1) if call.entered.numel() % rows == 0 else call.entered


def _masks(
    states: list[Tensor], from_pixels: RowsFromPixels | None, learned: NDArray[np.bool_] | None
) -> Masks | str:
    """The rows of each group in a stage; or why they cannot be told.

    ``learned``: of as many rows as the stage has, those that stand beside rows of pixels.
    """
    if not states:
        return "a trace does not find its module"
    if from_pixels is None:
        return "other pixels change other rows"
    count = sum(state.shape[:-1].numel() for state in states)
    if learned is None or len(learned) != count or learned.all():
        learned = np.zeros(count, bool)
    groups = np.full(count, _STRUCTURAL, np.int8)
    told = from_pixels.in_stage(count - int(learned.sum()))
    if told is None:
        return "rows that no pixel changes may have gone into it"
    groups[~learned] = told
    return {group: groups == code for code, group in enumerate(TOKEN_GROUPS)}


def _learned(states: _States, others: _States) -> dict[str, NDArray[np.bool_] | None]:
    """By stage the rows that its module adds to those of pixels, or the one before it."""
    by_tower, by_projector = (_unmoved(states, others, stage) for stage in _RETURNED)
    if PROJECTOR_OUTPUT not in states:
        return {VISION_ENCODER: by_tower}
    found: dict[str, NDArray[np.bool_] | None] = dict.fromkeys(_OF_PROJECTOR, by_projector)
    if by_tower is not None and by_projector is not None and np.array_equal(by_tower, by_projector):
        found[VISION_ENCODER] = by_tower
    return found


def _unmoved(states: _States, others: _States, stage: str) -> NDArray[np.bool_] | None:
    """Which rows that a module returns other pixels leave as they are: learned ones."""
    calls = [each.get(stage, []) for each in (states, others)]
    both = list(zip(*calls, strict=False))
    if not both or any(one.shape != other.shape for one, other in both):
        return None
    return np.concatenate([(one == other).all(dim=-1).ravel().numpy() for one, other in both])


def _norms(states: list[Tensor]) -> NDArray[np.float64]:
    norms = [np.linalg.norm(state.double().numpy(), axis=-1).ravel() for state in states]
    return np.concatenate(norms)


def _rows(stage: str, norms: NDArray[np.float64], masks: Masks) -> list[dict[str, object]]:
    """One row a group that has any."""
    kept = {group: norms[mask & np.isfinite(norms)] for group, mask in masks.items()}
    return [
        {"stage": stage, "group": group, "tokens": len(of_group), "norm_mean": of_group.mean()}
        for group, of_group in kept.items()
        if len(of_group)
    ]
