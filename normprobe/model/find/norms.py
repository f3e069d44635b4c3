"""Where the norms of a decoder layer stand, and whether the paper's theory covers it."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from normprobe.errors import NormprobeError, first_line
from normprobe.failures import is_native
from normprobe.hooks import attached, observing, on_call, run_until
from normprobe.inputs.on_device import transformers_config
from normprobe.model.find.parts import Parts
from normprobe.model.find.residual import (
    CLOSING,
    INPUT,
    Flow,
    Followed,
    Operations,
    Residual,
    State,
)
from normprobe.versions import autocast_on_meta

#: Decoders whose layers read their input as it is: no norm opens their branches.
WITHOUT_INPUT_NORM = frozenset({"post", "branch-post"})


class _LayerDone(BaseException):
    """The layer has run. A BaseException: no model code may swallow it."""


def norm_placement(
    layer: nn.Module, forward: Callable[[], object], *, hidden_size: int | None = None
) -> str:
    """Name the norm placement of one decoder layer."""
    residual = Residual()
    several = False

    def see(input: Tensor, output: Tensor, arguments: dict[Any, Any]) -> None:
        nonlocal several
        width = input.shape[-1]
        several = input.dim() > 3 or width > (hidden_size or width)
        for other in arguments.values():  # Inkling: the states of earlier layers, stacked
            if isinstance(other, Tensor) and other.dim() == 4:
                several |= (*other.shape[:2], other.shape[-1]) == input.shape
        raise _LayerDone

    with residual.following([layer]), attached(on_call(layer, see)), observing(layer):
        try:
            forward()
        except _LayerDone:
            return "multi-stream" if several else _placement(layer, residual.take())
    raise NormprobeError(
        f"norm placement unknown: the forward ended without running {type(layer).__name__}",
        "pass a layer that these inputs reach",
    )


def _placement(layer: nn.Module, seen: Followed) -> str:
    """The word for what was seen in a layer of one stream."""
    states = seen.held.lineage if isinstance(seen.held, State) else []
    norms_added = {term.norm for state in states for term in state.terms}
    if isinstance(seen.held, Flow) and seen.held.norm and INPUT not in seen.normed:
        return "post"
    if CLOSING in norms_added:
        return "sandwich" if seen.normed else "branch-post"
    if norms_added and seen.normed:
        return "pre-parallel" if seen.normed == {INPUT} and seen.opened > 1 else "pre"
    left = seen.held.norm if isinstance(seen.held, Flow) else seen.held and seen.held.kind
    raise NormprobeError(
        f"norm placement unknown: {type(layer).__name__} returns {left or 'something else'}, and "
        f"norms read {'the' if seen.normed else 'no'} residual",
        "read the forward of that layer: the paper's theory may not apply",
    )


#: The paper's theory speaks of a residual that no norm resets, and of updates whose size does not
#: depend on it because a norm opens each branch (Section 3.1). It does not speak of norms that
#: close branches: those set the size of the update by their gains.
THEORY_APPLIES = frozenset({"pre", "pre-parallel"})


#: Where made-up tokens do not show it.
NOT_SHOWN = "unknown"


def norm_placement_note(
    model: nn.Module, parts: Parts, inputs: Mapping[str, Any] | None = None
) -> str:
    """Where the norms of the decoder stand, and whether the paper speaks of such decoders.

    ``inputs``: of one batch, which the middle layer is watched on; None: made-up tokens.
    """
    if parts.decoder_layers is None:
        return ""
    try:
        if inputs is None:
            placement = find_norm_placement(model, parts)
        else:
            layers = [*parts.decoder_layers.module.children()]
            middle = layers[len(layers) // 2]
            placement = norm_placement(middle, partial(run_until, model, inputs, leaving=middle))
    except NormprobeError:
        return NOT_SHOWN
    applies = placement in THEORY_APPLIES
    return f"{placement}: the paper's theory {'applies' if applies else 'is about pre-norm'}"


def find_norm_placement(model: nn.Module, parts: Parts) -> str:
    """Name the norm placement of a model: a layer runs on four made-up tokens.

    The middle layer stands for all: first layers may be dense where others are sparse, and kinds of
    attention alternate, but no type of transformers mixes placements. The layer after it is tried
    where the middle one does not run on text alone (cross-attention of Mllama), and then the first,
    where experts are chosen by values that made-up states do not have (DeepSeek-VL2).
    """
    stack, embedding = parts.decoder_layers, parts.text_embedding
    layers = [] if stack is None else list(stack.module.children())
    if stack is None or embedding is None or not layers:
        raise NormprobeError(
            f"norm placement unknown: {type(model).__name__} has no decoder layers",
            "pass a vision-language model or a language model",
        )
    table, config = next(embedding.module.parameters()), transformers_config(model)
    text = config.get_text_config(decoder=True) if config is not None else None
    hidden_size = getattr(text, "hidden_size", table.shape[-1])  # PI0's config has none
    if text is config and not is_native(model):
        hidden_size = table.shape[-1]  # that of the config may be an action head's (GR00T)
    state = table.new_zeros(1, 4, hidden_size)
    first_error: Exception | None = None
    with observing(model), autocast_on_meta(), Operations(_with_zero_values):
        for layer in [*layers[len(layers) // 2 :][:2], layers[0]]:
            for forward in _forwards(model, stack.name, layer, state):
                try:
                    return norm_placement(layer, forward, hidden_size=hidden_size)
                except Exception as error:  # a model may raise anything on inputs it does not like
                    first_error = first_error or error
    assert first_error is not None
    reason = getattr(first_error, "problem", None)
    raise NormprobeError(
        f"norm placement unknown: {type(model).__name__} gave no answer on made-up inputs: "
        f"{reason or f'{type(first_error).__name__}: {first_line(first_error)}'}",
        "load the model and call norm_placement with one of its layers and a forward",
    ) from first_error


def _forwards(
    model: nn.Module, layers: str, layer: nn.Module, state: Tensor
) -> Iterator[Callable[[], object]]:
    """Ways to run a layer: through the modules that hold it, from the inside out; alone."""
    ids = state.new_zeros(state.shape[:2], dtype=torch.long)
    inputs = {"inputs_embeds": state, "input_ids": ids}
    while layers:
        layers = layers.rpartition(".")[0]
        holder = model.get_submodule(layers)
        takes = signature(holder.forward).parameters
        yield from (partial(run_until, holder, {k: v}) for k, v in inputs.items() if k in takes)
    positions = {"position_ids"} & signature(layer.forward).parameters.keys()
    yield partial(layer, state, **dict.fromkeys(positions, ids))


def _with_zero_values(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation on the meta device; one that needs values gets zeros.

    Shortcuts for masks look at values, and so does the choice of experts. Neither moves a norm.
    """
    if func.overloadpacket is getattr(torch.ops.aten, "_grouped_mm", None):
        # The experts. On this device it takes bfloat16 alone.
        return args[0].new_empty(*args[0].shape[:-1], args[1].shape[-1])
    try:
        return func(*args, **kwargs)
    except RuntimeError:
        zero = torch.zeros(())  # one number, expanded to any size
        zeros = tree_map_only(Tensor, lambda t: zero.to(t.dtype).expand(t.shape), (args, kwargs))
        return tree_map_only(Tensor, lambda t: t.to("meta"), func(*zeros[0], **zeros[1]))
