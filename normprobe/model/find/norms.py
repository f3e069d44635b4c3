"""Where the norms of a decoder layer stand, and whether the paper's theory covers it."""

from collections.abc import Callable, Iterator
from functools import partial
from inspect import signature
from typing import Any, cast

import torch
from torch import Tensor, nn, ops
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from normprobe.errors import NormprobeError, first_line
from normprobe.hooks import attached, before_call, observing, on_call, on_input, run_until
from normprobe.model.find.parts import Parts
from normprobe.versions import autocast_on_meta

# What a followed tensor holds. All others (inside branches, masks, weights) hold None.
_INPUT = "the layer's input"
_STREAM = "the layer's input plus the outputs of branches"
_OPENING = "a norm of the residual"
_CLOSING = "a norm of something else"

#: In-place sums change what a storage holds; other in-place operations and views do not.
_SUMS = {ops.aten.add, ops.aten.add_}

#: Decoders whose layers read their input as it is: no norm opens their branches.
WITHOUT_INPUT_NORM = frozenset({"post", "branch-post"})

#: Multipliers, gates, dropout, casts, copies: the result holds what an operand held.
_SAME = {
    *(ops.aten.mul, ops.aten.div, ops.aten.clamp),
    *(ops.aten.clone, ops.aten._to_copy, ops.aten.native_dropout),
}


class _LayerDone(BaseException):
    """The layer has run. A BaseException: no model code may swallow it."""


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hands every tensor operation to ``run``, on any device: ``run(func, args, kwargs)``."""

    def __init__(self, run: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._run = run

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._run(func, args, kwargs or {})


def norm_placement(
    layer: nn.Module, forward: Callable[[], object], *, hidden_size: int | None = None
) -> str:
    """Name the norm placement of one decoder layer."""
    residual = _Residual(hidden_size)
    norms = norms_of(layer)
    handles = [on_call(module, residual.see_norm) for module in norms]
    for child in layer.children():
        handles.append(before_call(child, residual.see_child))
    handles.append(on_input(layer, partial(residual.follow, holds=_INPUT)))
    handles.append(on_call(layer, residual.see_output))
    with attached(*handles), observing(layer), Operations(residual.run):
        try:
            forward()
        except _LayerDone:
            return residual.placement(type(layer).__name__)
    raise NormprobeError(
        f"norm placement unknown: the forward ended without running {type(layer).__name__}",
        "pass a layer that these inputs reach",
    )


def norms_of(layer: nn.Module) -> list[nn.Module]:
    """The norms in a layer, those inside its branches among them."""
    return [
        module
        for module in layer.modules()
        if "norm" in type(module).__name__.lower() and next(module.children(), None) is None
    ]


class _Residual:
    """Follows the residual through the operations of one layer.

    Tensors are told apart by their storage: that takes in views and in-place writes, with weights
    and without. Values could mislead: behind a closed gate no branch is seen.
    """

    def __init__(self, hidden_size: int | None) -> None:
        self._hidden_size = hidden_size
        #: What storages hold, by their address; kept tensors keep an address from being reused.
        self._followed: dict[int, tuple[str, Tensor]] = {}
        self._several = False  # more than one stream
        self._normed: set[str | None] = set()  # what norms read
        self._opened: set[nn.Module] = set()  # children that read a norm of the residual
        self._closed = False  # the output of a norm was added to the residual
        self._output: str | None = None  # what the layer's output holds

    def follow(self, tensor: Tensor, holds: str) -> None:
        self._followed[tensor.untyped_storage()._cdata] = holds, tensor

    def see_output(self, input: Tensor, output: Tensor, arguments: dict[Any, Any]) -> None:
        self._output = self._holds(output)
        width = input.shape[-1]
        self._several = input.dim() > 3 or width > (self._hidden_size or width)
        for other in arguments.values():  # Inkling: the states of earlier layers, stacked
            if isinstance(other, Tensor) and other.dim() == 4:
                self._several |= (*other.shape[:2], other.shape[-1]) == input.shape
        raise _LayerDone

    def see_norm(self, input: Tensor, output: Tensor, _: object) -> None:
        read = self._holds(input)
        self._normed.add(read)
        self.follow(output, _CLOSING if read in (None, _CLOSING) else _OPENING)

    def see_child(self, child: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if any(self._holds(value) == _OPENING for value in tree_leaves((args, kwargs))):
            self._opened.add(child)

    def placement(self, name: str) -> str:
        """The word for what was seen in the layer of that class name."""
        normed = self._normed & {_INPUT, _STREAM}
        if self._several:
            return "multi-stream"
        if self._output in (_OPENING, _CLOSING) and _INPUT not in normed:
            return "post"
        if self._output == _STREAM and self._closed:
            return "sandwich" if normed else "branch-post"
        if self._output == _STREAM and normed:
            return "pre-parallel" if normed == {_INPUT} and len(self._opened) > 1 else "pre"
        raise NormprobeError(
            f"norm placement unknown: {name} returns {self._output or 'something else'}, and norms "
            f"read {'the' if normed else 'no'} residual",
            "read the forward of that layer: the paper's theory may not apply",
        )

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        holds = None
        if func.overloadpacket in _SUMS:
            holds = self._sum({self._holds(value) for value in args[:2]})
        elif func.overloadpacket in _SAME:
            holds = next(filter(None, map(self._holds, args)), None)
        if holds:
            self.follow(result if isinstance(result, Tensor) else result[0], holds)
        return result

    def _sum(self, terms: set[str | None]) -> str | None:
        if terms & {_INPUT, _STREAM}:
            self._closed |= _CLOSING in terms
            return _STREAM
        return _CLOSING if terms == {_CLOSING} else None

    def _holds(self, value: object) -> str | None:
        key = value.untyped_storage()._cdata if isinstance(value, Tensor) else None
        return self._followed[key][0] if key in self._followed else None


#: The paper's theory speaks of a residual that no norm resets, and of updates whose size does not
#: depend on it because a norm opens each branch (Section 3.1). It does not speak of norms that
#: close branches: those set the size of the update by their gains.
THEORY_APPLIES = frozenset({"pre", "pre-parallel"})


def norm_placement_note(model: nn.Module, parts: Parts) -> str:
    """Where the norms of the decoder stand, and whether the paper speaks of such decoders."""
    if parts.decoder_layers is None:
        return ""
    try:
        placement = find_norm_placement(model, parts)
    except NormprobeError:
        return "unknown"
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
    table = next(embedding.module.parameters())
    config = cast(Any, model).config.get_text_config(decoder=True)
    hidden_size = getattr(config, "hidden_size", table.shape[-1])  # PI0's config has none
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
