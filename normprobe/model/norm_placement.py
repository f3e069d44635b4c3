"""Where the norms of a decoder stand, read off the operations inside one of its layers.

The model type does not tell: LLaVA carries any language model, and Chameleon and Molmo2 switch by a
config value. So one layer runs, on weights or on the meta device, and its residual is followed from
operation to operation. With x what enters a branch F (attention, MLP) and y what leaves it:

- ``pre``: y = x + F(Norm(x)). Norms open the branches, none touches the residual. The paper's
  pre-norm: Eq. 6 is the branch, Eq. 7 the sum.
- ``pre-parallel``: the same, but attention and MLP both start from what enters the layer (Cohere).
- ``branch-post``: y = x + Norm(F(x)). Norms close branches and open none (OLMo-2).
- ``sandwich``: y = x + Norm(F(Norm(x))). Norms open branches and close some or all (GLM-4).
- ``post``: y = Norm(x + F(x)). The residual itself is normalised (BERT). The paper's Eq. 5.
- ``multi-stream``: the residual is not one [batch, seq, hidden] tensor but several (Gemma 3n).

A norm is a module without children that has "norm" in its class name. Norms inside a branch, as of
queries and keys, have no say: what they return is not added to the residual.
"""

from collections.abc import Callable, Iterator
from functools import partial
from inspect import signature
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from normprobe.errors import NormprobeError
from normprobe.hooks import attached, observing, on_call, on_input, run_until
from normprobe.model.parts import Parts

#: The paper's theory speaks of a residual that no norm resets, and of updates whose size does not
#: depend on it because a norm opens each branch (Section 3.1). It does not speak of norms that
#: close branches: those set the size of the update by their gains.
THEORY_APPLIES = frozenset({"pre", "pre-parallel"})

# What a followed tensor holds. All others (inside branches, masks, weights) hold None.
_INPUT = "what entered the layer"
_STREAM = "what entered the layer plus what branches wrote"
_OPENING = "a norm of the residual"
_CLOSING = "a norm of something else"

_aten = torch.ops.aten
#: In-place sums change what a storage holds; other in-place operations and views do not.
_SUMS = {_aten.add, _aten.add_}
#: Multipliers, gates, dropout, casts, copies: the result holds what an operand held.
_SAME = {_aten.mul, _aten.div, _aten.clamp, _aten.clone, _aten._to_copy, _aten.native_dropout}


class _Left(BaseException):
    """The layer is done. A BaseException: no model code may swallow it."""


def norm_placement(
    layer: nn.Module, forward: Callable[[], object], *, hidden_size: int | None = None
) -> str:
    """Name the norm placement of one decoder layer.

    Args:
        layer: a decoder layer, on any device, meta included.
        forward: runs the layer on any input, whatever its values; it is stopped after the layer.
        hidden_size: the width of one stream; a wider state holds several side by side.

    Returns:
        A word of the module docstring.

    Raises:
        NormprobeError: when the layer does not run, or its norms stand in none of these ways.
    """
    residual = _Residual(hidden_size)
    handles = [on_call(module, residual.normalised) for module in layer.modules() if _norm(module)]
    for child in layer.children():
        handles.append(child.register_forward_pre_hook(residual.starts, with_kwargs=True))
    handles.append(on_input(layer, partial(residual.follow, holds=_INPUT)))
    handles.append(on_call(layer, residual.leaves))
    with attached(*handles), observing(layer), _Operations(residual.run):
        try:
            forward()
        except _Left:
            return residual.placement(type(layer).__name__)
    raise NormprobeError(
        f"norm placement unknown: the forward ended without running {type(layer).__name__}",
        "pass a layer that these inputs reach",
    )


def find_norm_placement(model: nn.Module, parts: Parts) -> str:
    """Name the norm placement of a model from its structure, four made-up tokens long.

    The middle layer stands for all: first layers may be dense where others are sparse, and kinds of
    attention alternate, but no type of transformers mixes placements. Where text passes the middle
    layer by (cross-attention of Mllama), the next one is taken.

    Args:
        model: with weights, or on the meta device.
        parts: of ``find_parts(model)``.

    Raises:
        NormprobeError: no decoder layers, none that runs on made-up inputs, or no known placement.
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
    with observing(model), _Operations(_with_zero_values):
        for layer in layers[len(layers) // 2 :][:2]:
            for forward in _forwards(model, stack.name, layer, state):
                try:
                    return norm_placement(layer, forward, hidden_size=hidden_size)
                except Exception as error:  # a model may raise anything on inputs it does not like
                    first_error = first_error or error
    reason = getattr(first_error, "problem", None) or f"{type(first_error).__name__}: {first_error}"
    raise NormprobeError(
        f"norm placement unknown: {type(model).__name__} gave no answer on made-up inputs: "
        f"{' '.join(reason.split())[:200]}",
        "load the model and call norm_placement with one of its layers and a forward",
    ) from first_error


def _norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower() and next(module.children(), None) is None


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


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hands every operation to ``run``: below modules, on any device."""

    def __init__(self, run: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._run = run

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._run(func, args, kwargs or {})


class _Residual:
    """Follows the residual through the operations of one layer.

    Tensors are told apart by their storage: that takes in views and in-place writes, with weights
    and without. Values could mislead: behind a closed gate no branch is seen.
    """

    def __init__(self, hidden_size: int | None) -> None:
        self._hidden_size = hidden_size
        #: What storages hold, by their address; the tensors keep them from being used anew.
        self._followed: dict[int, tuple[str, Tensor]] = {}
        self._several = False  # more than one stream
        self._normed: set[str | None] = set()  # what norms read
        self._opened: set[nn.Module] = set()  # children that read a norm of the residual
        self._closed = False  # the residual took in what a norm returned
        self._left: str | None = None

    def follow(self, tensor: Tensor, holds: str) -> None:
        self._followed[tensor.untyped_storage()._cdata] = holds, tensor

    def leaves(self, entered: Tensor, left: Tensor, arguments: dict[Any, Any]) -> None:
        self._left = self._holds(left)
        width = entered.shape[-1]
        self._several = entered.dim() > 3 or width > (self._hidden_size or width)
        for other in arguments.values():  # Inkling: the states of earlier layers, stacked
            if isinstance(other, Tensor) and other.dim() == 4:
                self._several |= (*other.shape[:2], other.shape[-1]) == entered.shape
        raise _Left

    def normalised(self, entered: Tensor, left: Tensor, _: object) -> None:
        read = self._holds(entered)
        self._normed.add(read)
        self.follow(left, _CLOSING if read in (None, _CLOSING) else _OPENING)

    def starts(self, child: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if any(self._holds(value) == _OPENING for value in tree_leaves((args, kwargs))):
            self._opened.add(child)

    def placement(self, name: str) -> str:
        """The word for what was seen in the layer of that class name."""
        normed = self._normed & {_INPUT, _STREAM}
        if self._several:
            return "multi-stream"
        if self._left in (_OPENING, _CLOSING) and _INPUT not in normed:
            return "post"
        if self._left == _STREAM and self._closed:
            return "sandwich" if normed else "branch-post"
        if self._left == _STREAM and normed:
            return "pre-parallel" if normed == {_INPUT} and len(self._opened) > 1 else "pre"
        raise NormprobeError(
            f"norm placement unknown: {name} returns {self._left or 'something else'}, and norms "
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


def _with_zero_values(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation on the meta device; one that needs values gets zeros.

    Shortcuts for masks look at values, and so does the choice of experts. Neither moves a norm.
    """
    if func.overloadpacket is getattr(_aten, "_grouped_mm", None):
        # The experts. On this device it takes bfloat16 alone.
        return args[0].new_empty(*args[0].shape[:-1], args[1].shape[-1])
    try:
        return func(*args, **kwargs)
    except RuntimeError:
        zero = torch.zeros(())  # one number, expanded to any size
        zeros = tree_map_only(Tensor, lambda t: zero.to(t.dtype).expand(t.shape), (args, kwargs))
        return tree_map_only(Tensor, lambda t: t.to("meta"), func(*zeros[0], **zeros[1]))
