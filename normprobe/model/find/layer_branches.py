"""What each branch of a decoder layer adds to the residual, followed while the layer runs.

Children of a layer return what is added, but rarely as it is added: multipliers, gates, norms and
convolutions lie between, and some children add it themselves. So the residual is followed from
operation to operation. A *state* is the layer's input and what was added so far; a *term* is what a
sum adds to a state. A term belongs to the branch whose module began it:

- ``cross_attention``: the module's name speaks of an encoder or of "cross";
- ``attention``: it mixes tokens otherwise (attention, linear attention, state spaces, recurrences,
  convolutions);
- ``mlp``: all others, experts and shared experts among them.

Of blocks in parallel each term is told from the state that its branch reads, in whatever order the
sums are made.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn, ops
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from normprobe.hooks import after_call, attached, before_call, hidden_state_of, on_input
from normprobe.model.find.norms import Operations, norms_of
from normprobe.schema import BRANCHES
from normprobe.statistics.token_metrics import token_norms, widened

_ATTENTION, _CROSS_ATTENTION, _MLP = BRANCHES
_SUMS = {ops.aten.add, ops.aten.add_}
_PRODUCTS = {ops.aten.mul, ops.aten.mul_}
_SCALES = {*_PRODUCTS, ops.aten.div, ops.aten.div_}
#: Casts, copies, dropout and clamping: the result is the same state, or the same sum.
_SAME = {ops.aten.clone, ops.aten._to_copy, ops.aten.native_dropout, ops.aten.clamp}

_NAMES_OF_MLPS = ("mlp", "ff", "feed_forward", "fc", "moe", "expert")
_NAMES_OF_MIXERS = ("att", "mamba", "ssm", "conv", "delta", "recurrent", "lstm", "rwkv")


class Branch(NamedTuple):
    """What a branch of a layer adds.

    Attributes:
        name: of ``schema.BRANCHES``.
        state: ``[batch, seq, hidden]``, the state that it turns.
        terms: likewise; their sum is what it adds.
    """

    name: str
    state: Tensor
    terms: list[Tensor]


class Split(NamedTuple):
    """A layer that has ended.

    Attributes:
        branches: what they add; empty where that is not known.
        reason: why it is not known, of the layer; else empty.
        fits: one bool: the layer's output is its input and what the branches add, to rounding.
    """

    branches: list[Branch]
    reason: str = ""
    fits: Tensor | None = None


_NOT_RUN = Split([], "it has not run")


@dataclass(eq=False)
class _Term:
    """What a sum adds to a state."""

    tensor: Tensor
    branches: frozenset[str]  # whose modules began it
    reads: "_State | None"  # the last state that these read


@dataclass(eq=False)
class _State:
    """The layer's input, or ``before`` and what was done to it."""

    tensor: Tensor
    before: "_State | None" = None
    terms: tuple[_Term, ...] = ()  # added to it
    factor: Any = None  # a number, or a tensor of one, that it was multiplied by


class _Flow(NamedTuple):
    """What a tensor comes from that is no state."""

    branches: frozenset[str] = frozenset()  # whose modules began it
    reads: _State | None = None  # the last state that these read
    terms: tuple[_Term, ...] = ()  # of different branches, of which it is the sum
    opaque: bool = False  # inside a norm


class _Step(NamedTuple):
    """What makes the next state, once the operation has run."""

    before: _State
    terms: tuple[_Term, ...] = ()
    factor: Any = None


_Held = _State | _Flow


class LayerBranches:
    """Follows the residual through each of some layers, one after the other."""

    def __init__(self) -> None:
        self._split = _NOT_RUN
        self._followed: dict[int, tuple[object, _Held]] = {}
        self._kept: list[_State | _Term] = []
        self._running: list[_Flow] = []  # children of the layer
        self._follows = False

    @contextmanager
    def following(self, layers: Iterable[nn.Module]) -> Iterator[None]:
        """Hooks on the layers, and eyes on all operations, inside the block.

        When other forward hooks of a layer are called, ``take`` has its branches.
        """
        handles = []
        for layer in layers:
            handles.append(on_input(layer, self._begin))
            handles.append(after_call(layer, self._end, first=True))
            norms = norms_of(layer)
            for norm in norms:
                handles.append(before_call(norm, self._enter_norm))
                handles.append(after_call(norm, self._leave))
            for name, child in _children(layer, norms):
                enter = partial(self._enter, _branch_of(name, child))
                handles.append(before_call(child, enter))
                handles.append(after_call(child, self._leave))
        with attached(*handles), Operations(self._run):
            yield

    def take(self) -> Split:
        """The branches of the layer that has just ended; nothing is kept of them."""
        split, self._split = self._split, _NOT_RUN
        return split

    # --- a layer, its norms and its children ----------------------------------------------------

    def _begin(self, x: Tensor) -> None:
        self._forget()
        self._follows = True
        self._follow(x, self._keep(_State(x)))

    def _end(self, layer: nn.Module, args: object, kwargs: object, output: Any) -> None:
        h = hidden_state_of(output)
        left = self._held(h)
        self._forget()
        self._split = _split(left, h)

    def _forget(self) -> None:
        self._followed.clear()
        self._kept.clear()
        self._running.clear()
        self._follows = False

    def _enter(
        self, branch: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        read = _joined(self._held(value) for value in tree_leaves((args, kwargs)))
        # What another child began and this one only passes on, as a second projection does.
        self._running.append(read if read.branches else read._replace(branches=frozenset({branch})))

    def _enter_norm(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        read = _joined(self._held(value) for value in tree_leaves((args, kwargs)))
        self._running.append(read._replace(opaque=True))

    def _leave(self, module: nn.Module, args: object, kwargs: object, output: Any) -> None:
        flow = self._running.pop()
        if not self._running:
            for value in tree_leaves(output):
                if isinstance(value, Tensor) and not isinstance(self._held(value), _State):
                    self._follow(value, flow._replace(opaque=False))

    # --- operations -----------------------------------------------------------------------------

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._follows or (self._running and self._running[-1].opaque):
            return func(*args, **kwargs)
        tensors = [value for value in tree_leaves(args) if isinstance(value, Tensor)]
        if not any(_key(tensor) in self._followed for tensor in tensors):
            return func(*args, **kwargs)
        writes = func._schema.is_mutable
        held = self._after(func.overloadpacket, args, tensors, kwargs.get("alpha", 1))
        if writes:
            self._save(kwargs.get("out", tensors[0]))
        result = func(*args, **kwargs)
        shared = {_key(tensor) for tensor in tensors}
        for value in result if isinstance(result, tuple | list) else [result]:
            # A view holds what it is a view of.
            if isinstance(value, Tensor) and (writes or _key(value) not in shared):
                if isinstance(held, _Step):
                    held = self._keep(_State(value, *held))
                if isinstance(held, _State) or writes or not self._running:
                    self._follow(value, held)
        return result

    def _after(
        self, packet: Any, args: tuple[Any, ...], tensors: list[Tensor], alpha: float
    ) -> _Held | _Step:
        """What the result of an operation holds."""
        held = [self._held(tensor) for tensor in tensors]
        if packet in _SUMS and len(tensors) == 2:
            return self._sum(tensors, held, alpha)
        if packet in _SAME and held[0] is not None:
            return held[0]
        if packet in _SCALES and isinstance(held[0], _State) and _is_number(args[1]):
            factor = args[1] if packet in _PRODUCTS else 1 / args[1]
            return _Step(held[0], factor=factor)
        return _joined(held)

    def _sum(self, tensors: list[Tensor], held: list[_Held | None], alpha: float) -> _Held | _Step:
        places = [place for place, value in enumerate(held) if isinstance(value, _State)]
        if not places:
            flows = [value for value in held if isinstance(value, _Flow)]
            joined = _joined(flows)
            if len(joined.branches) < 2 or tensors[0].shape != tensors[1].shape:
                return joined
            terms = self._terms(tensors[0], held[0], 1) + self._terms(tensors[1], held[1], alpha)
            return joined._replace(terms=terms)
        state, other = held[places[0]], tensors[1 - places[0]]
        assert isinstance(state, _State)
        if len(places) == 2 or (places == [1] and alpha != 1):
            return _joined(held)
        term = other.expand(tensors[places[0]].shape)
        return _Step(state, self._terms(term, held[1 - places[0]], alpha))

    def _terms(self, tensor: Tensor, held: _Held | None, alpha: float) -> tuple[_Term, ...]:
        """What a summand adds: one term, or those of a sum that was made before."""
        flow = held if isinstance(held, _Flow) else _Flow()
        if flow.terms and alpha == 1:
            return flow.terms
        if not flow.branches and self._running:
            flow = self._running[-1]
        written = tensor if alpha == 1 else tensor * alpha
        return (self._keep(_Term(written, flow.branches, flow.reads)),)

    # --- what tensors hold ----------------------------------------------------------------------

    def _follow(self, tensor: Tensor, held: _Held) -> None:
        # A weak reference keeps the address of a storage from being reused, not its memory.
        reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        self._followed[_key(tensor)] = reference, held

    def _held(self, value: object) -> _Held | None:
        if not isinstance(value, Tensor) or _key(value) not in self._followed:
            return None
        _, held = self._followed[_key(value)]
        if isinstance(held, _State) and value.numel() != held.tensor.numel():
            return _Flow(reads=held)  # a part of it
        return held

    def _keep(self, kept: Any) -> Any:
        self._kept.append(kept)
        return kept

    def _save(self, tensor: Tensor) -> None:
        """Copy what is kept of a storage that is about to be overwritten."""
        for kept in self._kept:
            if _key(kept.tensor) == _key(tensor):
                kept.tensor = kept.tensor.clone()


def _key(tensor: Tensor) -> int:
    """One number a storage: that takes in views and writes in place."""
    key: int = tensor.untyped_storage()._cdata
    return key


def _joined(held: Iterable[_Held | None]) -> _Flow:
    """What comes from several tensors."""
    branches: frozenset[str] = frozenset()
    reads: list[_State] = []
    for value in held:
        if isinstance(value, _Flow):
            branches |= value.branches
        state = value if isinstance(value, _State) else value and value.reads
        if state is not None:
            reads.append(state)
    return _Flow(branches, max(reads, key=lambda state: len(_lineage(state)), default=None))


def _lineage(state: _State | None) -> list[_State]:
    """A state, and those before it."""
    found = []
    while state is not None:
        found.append(state)
        state = state.before
    return found


def _split(left: _Held | None, h: Tensor) -> Split:
    """The branches of a layer, by what its output holds."""
    if not isinstance(left, _State):
        return Split([], "its output is not its input plus what its modules return")
    states = _lineage(left)[::-1]
    found: dict[str, tuple[_State, list[Tensor]]] = {}
    last = ""
    for before, state in pairwise(states):
        for term in state.terms:
            if not term.branches:
                return Split([], "it adds what none of its modules returns")
            if len(term.branches) > 1:
                return Split([], f"{' and '.join(sorted(term.branches))} are mixed, then added")
            (name,) = term.branches
            turned = _turned(before, term.reads)
            first, terms = found.setdefault(name, (turned, []))
            if terms and name != last and first is not turned:
                return Split([], f"its {name} writes twice, another branch in between")
            terms.append(term.tensor)
            last = name
    if not found:
        return Split([], "it adds nothing")
    branches = [Branch(name, state.tensor, terms) for name, (state, terms) in found.items()]
    return Split(branches, fits=_fits(states, h))


def _turned(added_to: _State, read: _State | None) -> _State:
    """Which state a term turns: the one it is added to; of blocks in parallel the one they read."""
    lineage = _lineage(added_to)
    read = next((state for state in _lineage(read) if state in lineage), added_to)
    between = lineage[: lineage.index(read)]
    return read if any(state.terms for state in between) else added_to


def _fits(states: list[_State], h: Tensor) -> Tensor:
    """Whether the same sums, made again from the first state, give what the layer returns."""
    x = states[0].tensor
    again, size, eps = widened(x), token_norms(x), torch.finfo(h.dtype).eps
    for state in states[1:]:
        eps = max(eps, torch.finfo(state.tensor.dtype).eps)
        if state.factor is not None:
            again, size = again * state.factor, size * abs(state.factor)
        for term in state.terms:
            added = widened(term.tensor).reshape(x.shape)
            again, size = again + added, size + token_norms(added)
    away = token_norms(h.reshape(x.shape) - again.to(h.device))
    return ~(away > eps * size.to(h.device)).any()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1)


def _children(module: nn.Module, norms: Collection[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """The modules of a layer that branches begin with, or pass through."""
    for name, child in module.named_children():
        if isinstance(child, nn.ModuleList):
            yield from _children(child, norms)
        elif child not in norms:
            yield name, child


def _branch_of(name: str, module: nn.Module) -> str:
    """Which branch a child of a layer begins; where its name does not tell, its class does."""
    name, kind = name.lower(), type(module).__name__.lower()
    attends = "att" in name or "att" in kind
    if "cross" in name or "cross" in kind or ("encoder" in name and attends):
        return _CROSS_ATTENTION
    if "att" in name:
        return _ATTENTION
    if name.startswith(_NAMES_OF_MLPS):
        return _MLP
    return _ATTENTION if any(word in name + kind for word in _NAMES_OF_MIXERS) else _MLP
