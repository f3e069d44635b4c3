"""What ``--verify`` goes by: states taken without hooks, and how far numbers are from others.

Each module's ``forward`` is replaced by one that keeps what it takes and returns. The model's own
``output_hidden_states`` gives most states of decoder layers a second time. Token groups are told by
other pixels.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, signature
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normprobe.hooks import (
    HIDDEN_STATE,
    accepted_inputs,
    copied,
    lock_of,
    observing,
    on_this_thread,
)
from normprobe.inputs.on_device import pixel_inputs
from normprobe.model.find.overrides import CROSS_ATTENTION, DISCRETE
from normprobe.model.measured_model import MeasuredModel
from normprobe.model.provenance import text_ids
from normprobe.model.tracing.trace import TracedParts
from normprobe.schema import (
    AUDIO,
    IMAGE,
    NON_VISUAL,
    PADDING,
    SPECIAL,
    STRUCTURAL,
    TEXT,
    TOKEN_GROUPS,
    VIDEO,
    VISUAL,
)


class CapturedCall(NamedTuple):
    """The state that entered a module and the one that left it, on the CPU in their dtype."""

    entered: Tensor
    left: Tensor


@dataclass(frozen=True)
class CapturedStates:
    """What one forward showed, copied to the CPU in the dtype of the model."""

    entered: list[Tensor]  # what each decoder layer took
    left: list[Tensor]  # what each returned
    # ``hidden_states`` of the model's output, the last of them as it leaves the decoder; None: the
    # model does not offer them
    told: list[Tensor] | None


class _Done(BaseException):
    """Nothing that follows is needed. A BaseException: no model code may swallow it."""


def captured_states(
    model: nn.Module, layers: Sequence[nn.Module], inputs: Mapping[str, Any]
) -> CapturedStates:
    """Run the model once, to its end."""
    calls: list[list[CapturedCall]] = [[] for _ in layers]
    with lock_of(model), _hooks_as_they_are(model), ExitStack() as stack:
        for layer, of_layer in zip(layers, calls, strict=True):
            stack.enter_context(_replaced_forward(layer, of_layer.append))
        output = _run(model, inputs, use_cache=False, output_hidden_states=True)
    told = getattr(output, "decoder_hidden_states", None) or getattr(output, "hidden_states", None)
    return CapturedStates(
        [of_layer[-1].entered for of_layer in calls if of_layer],
        [of_layer[-1].left for of_layer in calls if of_layer],
        None if told is None else [_on_cpu(state) for state in told],
    )


@contextmanager
def _hooks_as_they_are(model: nn.Module) -> Iterator[None]:
    """Take away what transformers hooks in to return hidden states.

    It hooks a tower inside the model a second time; code that asks that tower for one of its states
    by its place would get another one from then on.
    """
    flag = "_output_capturing_hooks_installed"
    held = [(m, dict(m._forward_hooks), flag in vars(m)) for m in model.modules()]
    try:
        yield
    finally:
        for module, hooks, flagged in held:
            module._forward_hooks.clear()
            module._forward_hooks.update(hooks)
            if not flagged:
                vars(module).pop(flag, None)


def captured_calls(
    model: nn.Module,
    modules: Mapping[str, nn.Module],
    inputs: Mapping[str, Any],
    last: nn.Module | None,
    fields: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, list[CapturedCall]]:
    """Run the model once."""
    calls: dict[str, list[CapturedCall]] = {name: [] for name in modules}
    with lock_of(model), ExitStack() as stack, suppress(_Done):
        for name, module in modules.items():
            field = fields.get(name, HIDDEN_STATE)
            keep = _replaced_forward(module, calls[name].append, field, stops=module is last)
            stack.enter_context(keep)
        _run(model, inputs, use_cache=False)
    return calls


def _run(model: nn.Module, inputs: Mapping[str, Any], **options: bool) -> Any:
    """Run with those options that the model takes."""
    parameters = signature(model.forward).parameters
    any_name = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values())
    options = {name: value for name, value in options.items() if any_name or name in parameters}
    taken = accepted_inputs(model, inputs)
    with observing(model):
        return model(**copied(taken), **options)


@contextmanager
def _replaced_forward(
    module: nn.Module,
    keep: Callable[[CapturedCall], None],
    field: str = HIDDEN_STATE,
    *,
    stops: bool = False,
) -> Iterator[None]:
    own = vars(module).get("forward")  # accelerate replaces it, too
    original: Callable[..., Any] = module.forward

    @wraps(original)  # models ask forwards for their signature
    def forward(*args: Any, **kwargs: Any) -> Any:
        state = _state_in((kwargs.get("hidden_states"), *args, *kwargs.values()))
        before = None if state is None else _on_cpu(state)  # a module may overwrite it
        output = original(*args, **kwargs)
        returned = _returned_state(output, field)
        if before is not None and returned is not None:
            keep(CapturedCall(before, _on_cpu(returned)))
            if stops:
                raise _Done
        return output

    module.forward = on_this_thread(forward, elsewhere=original)
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own


def _state_in(value: Any, field: str = HIDDEN_STATE) -> Tensor | None:
    """The first state among what a module takes or returns.

    A model output names it ``field``; a list of tensors holds rows of one state, image by image,
    unless they are of several widths.
    """
    if isinstance(value, Tensor):
        return value if value.is_floating_point() and value.dim() > 1 else None
    if isinstance(value, Mapping):
        return _state_in((value.get(field), *value.values()), field)
    if isinstance(value, list) and value and all(isinstance(item, Tensor) for item in value):
        several = len({item.shape[-1] for item in value}) > 1
        return torch.cat([item.flatten(0, -2) for item in value[: 1 if several else None]])
    if not isinstance(value, tuple | list):
        return None
    states = (_state_in(item, field) for item in value)
    return next((state for state in states if state is not None), None)


def _returned_state(output: Any, field: str) -> Tensor | None:
    """The state that a module returns: the first, or the longest that is pooled to it.

    What is pooled has a row an image.
    """
    first, items = _state_in(output, field), output
    if isinstance(output, Mapping):
        items = () if output.get(field) is not None else tuple(output.values())
    if first is None or not isinstance(items, tuple) or first.shape[:-1].numel() > len(first):
        return first
    beside = [t for t in items if isinstance(t, Tensor) and t.dim() == 3 and len(t) == len(first)]
    return max([first, *beside], key=lambda state: state.shape[:-1].numel())


def _on_cpu(state: Tensor) -> Tensor:
    return state.detach().to("cpu", copy=True)


Masks = dict[str, NDArray[np.bool_]]

#: Why other pixels do not tell which tokens are visual.
_WHY_UNKNOWN = {
    CROSS_ATTENTION: "text attends to the image, which has no place among the tokens",
    DISCRETE: "the image tokenizer may give other pixels the same tokens",
}


def traced_groups(
    model: MeasuredModel, inputs: Mapping[str, Any], decoder_input: Tensor, traced: TracedParts
) -> tuple[Masks, float | str]:
    """Visual are the positions that other pixels change, whatever their ids.

    Args:
        model: whose ids tell the other groups.
        inputs: what the processor returned.
        decoder_input: ``[batch, seq, hidden]``.
        traced: of the same inputs.

    Returns:
        A mask ``[batch, seq]`` a group; and how many positions are visual to pixels or to the ids
        alone, or in words why only the ids tell it.
    """
    groups = model.batch(inputs).groups_at(decoder_input).numpy()
    by_id = {group: groups == code for code, group in enumerate(TOKEN_GROUPS)}
    moved, has_image = by_id[VISUAL], bool(pixel_inputs(inputs))
    untold = _why_unknown(model, decoder_input, traced) if has_image else ""
    if has_image and not untold:
        assert traced.visual_positions is not None
        # A trace changes what the inputs hold of videos and sounds, too.
        others = by_id[VIDEO] | by_id[AUDIO] | _padding(model, inputs, groups)
        moved = traced.visual_positions.numpy() & ~others
    masks = {
        VISUAL: moved,
        STRUCTURAL: (by_id[VISUAL] | by_id[STRUCTURAL]) & ~moved,
        **{group: by_id[group] & ~moved for group in (SPECIAL, TEXT, VIDEO, AUDIO)},
    }
    masks[NON_VISUAL] = masks[TEXT] | masks[SPECIAL]
    if masks[VIDEO].any():
        masks |= {IMAGE: moved, VISUAL: moved | masks[VIDEO]}
    return masks, untold or float((moved != by_id[VISUAL]).sum())


def _why_unknown(model: MeasuredModel, decoder_input: Tensor, traced: TracedParts) -> str:
    if model.parts.fusion in _WHY_UNKNOWN:
        return _WHY_UNKNOWN[model.parts.fusion]
    positions = traced.visual_positions
    if positions is None or positions.shape != decoder_input.shape[:-1]:
        return "a trace does not find their places"
    return ""


def _padding(
    model: MeasuredModel, inputs: Mapping[str, Any], groups: NDArray[Any]
) -> NDArray[np.bool_]:
    _, mask = text_ids(inputs, model.parts)
    if mask is None or mask.shape != groups.shape:  # visual tokens have no place in the prompt
        return np.asarray(groups == PADDING)
    return np.asarray(mask.cpu().numpy() == 0)


#: By quantity the largest difference, or in words why there is none.
Differences = Mapping[str, float | str]

#: Quantities that count tokens or rows which one way alone counts as it does: none may differ.
TOKENS, ROWS = "visual_tokens", "rows_of_groups"


def largest_difference(
    measured: "pd.Series[Any]", recomputed: "pd.Series[Any]", *, relative: bool
) -> float:
    """Between measured numbers and recomputed ones of the same index.

    Args:
        measured: in any order; what was not recomputed has no say.
        recomputed: NaN has no say.
        relative: as a share of the recomputed one, where this is not zero.

    Returns:
        Infinite where a measured number is missing or not finite.
    """
    recomputed = recomputed.dropna()
    there = measured.reindex(recomputed.index).to_numpy(dtype=np.float64)
    expected = recomputed.to_numpy(dtype=np.float64)
    scale = np.where(relative & (expected != 0), np.abs(expected), 1.0)
    with np.errstate(invalid="ignore"):
        apart = np.abs(there - expected) / scale
    return float(np.where(np.isfinite(there), apart, np.inf).max(initial=0.0))


def in_doubt(found: Differences, dtype: torch.dtype) -> list[str]:
    """The quantities that differ by more than rounding explains.

    Args:
        found: of a recomputation.
        dtype: of the model.
    """
    # Two forwards of a half-precision model may take kernels that round differently.
    tolerance = 1e-2 if torch.finfo(dtype).bits < 32 else 1e-4
    return [
        name
        for name, value in found.items()
        if not isinstance(value, str) and not value <= tolerance * (name not in (TOKENS, ROWS))
    ]
