"""Where the norms of one decoder layer stand, read off the operations inside it.

The model type does not tell: LLaVA carries any language model, and Chameleon and Molmo2 switch by a
config value. So the layer runs, on weights or on the meta device, and its residual is followed from
operation to operation. With x the input of a branch F (attention, MLP) and y the residual after it:

- ``pre``: y = x + F(Norm(x)). Norms open the branches, none touches the residual. The paper's
  pre-norm: Eq. 6 is the branch, Eq. 7 the sum.
- ``pre-parallel``: the same, but attention and MLP both start from the layer's input (Cohere).
- ``branch-post``: y = x + Norm(F(x)). Norms close branches and open none (OLMo-2).
- ``sandwich``: y = x + Norm(F(Norm(x))). Norms open branches and close some or all (GLM-4).
- ``post``: y = Norm(x + F(x)). The residual itself is normalised (BERT). The paper's Eq. 5.
- ``multi-stream``: the residual is not one [batch, seq, hidden] tensor but several (Gemma 3n).

A norm is a module without children that has "norm" in its class name. Norms inside a branch, as of
queries and keys, do not count: their output is not added to the residual.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn, ops
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from normprobe.errors import NormprobeError
from normprobe.hooks import attached, before_call, observing, on_call, on_input

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
