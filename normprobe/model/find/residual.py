"""The residual of a decoder layer, followed from operation to operation while the layer runs.

Modules of a layer return what is added, but rarely as it is added: multipliers, gates, norms and
convolutions lie between, and some add it themselves. So operations are followed. A *state* is the
layer's input and what was added so far; a *term* is what a sum adds to a state; a *flow* is what
comes from either and is no state. ``branches`` and ``norms`` read off these what each branch adds,
and where the norms stand.

Tensors are told apart by their storage: that takes in views and writes in place, with weights and
without. Values could mislead: behind a closed gate no branch is seen.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn, ops
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from normprobe.hooks import after_call, attached, before_call, hidden_state_of, on_input
from normprobe.schema import BRANCHES

_ATTENTION, _CROSS_ATTENTION, _MLP = BRANCHES
_SUMS = {ops.aten.add, ops.aten.add_}
_PRODUCTS = {ops.aten.mul, ops.aten.mul_}
_SCALES = {*_PRODUCTS, ops.aten.div, ops.aten.div_}
#: Casts, copies, dropout and clamping: the result is the same state, or the same sum.
_SAME = {ops.aten.clone, ops.aten._to_copy, ops.aten.native_dropout, ops.aten.clamp}

#: What a state is, and what a norm returns.
INPUT = "the layer's input"
STREAM = "the layer's input plus the outputs of branches"
OPENING = "a norm of the residual"
CLOSING = "a norm of something else"


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hands every tensor operation to ``run``, on any device: ``run(func, args, kwargs)``.

    What is compiled, such as flex_attention, runs as it was written: Dynamo would leave a function
    that is called here uncompiled for good.
    """

    def __init__(self, run: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._run = run
        self._uncompiled = ExitStack()

    def __enter__(self) -> Self:
        self._uncompiled.enter_context(torch.compiler.set_stance("force_eager"))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        self._uncompiled.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._run(func, args, kwargs or {})


def norms_of(layer: nn.Module) -> list[nn.Module]:
    """The norms in a layer, those inside its branches among them."""
    return [
        module
        for module in layer.modules()
        if "norm" in type(module).__name__.lower() and next(module.children(), None) is None
    ]


@dataclass(eq=False)
class Term:
    """What a sum adds to a state."""

    tensor: Tensor
    branches: frozenset[str]  # whose modules began it
    reads: "State | None"  # the last state that these read
    norm: str  # OPENING or CLOSING, where a norm returned it


@dataclass(eq=False)
class State:
    """The layer's input, or ``before`` and what was done to it."""

    tensor: Tensor
    before: "State | None" = None
    terms: tuple[Term, ...] = ()  # added to it
    factor: Any = None  # what it was multiplied by: a number, or a tensor

    @property
    def lineage(self) -> "list[State]":
        """It, and the states before it."""
        return [self, *(self.before.lineage if self.before else [])]

    @property
    def kind(self) -> str:
        """INPUT or STREAM."""
        return STREAM if any(state.terms for state in self.lineage) else INPUT


class Flow(NamedTuple):
    """What a tensor comes from that is no state."""

    branches: frozenset[str] = frozenset()  # whose modules began it
    reads: State | None = None  # the last state that these read
    terms: tuple[Term, ...] = ()  # of different branches, of which it is the sum
    norm: str = ""  # OPENING or CLOSING, where a norm returned it
    opaque: bool = False  # inside a norm


class _Step(NamedTuple):
    """What makes the next state, once the operation has run."""

    before: State
    terms: tuple[Term, ...] = ()
    factor: Any = None


Held = State | Flow


@dataclass
class Followed:
    """What was seen in a layer that has ended."""

    output: Tensor | None = None  # the state that it returned; None: it has not run
    held: Held | None = None  # what that comes from; None: nothing that was followed
    normed: frozenset[str] = frozenset()  # kinds of the states that norms read
    opened: int = 0  # how many children read a norm of the residual


class Residual:
    """Follows the residual through each of some layers, one after the other.

    Args:
        change: what is added to a state is replaced by ``change(it, terms)``, of the shape of the
            state. The terms are what it is the sum of, where branches were added up before.
    """

    def __init__(
        self, change: "Callable[[Tensor, tuple[Term, ...]], Tensor] | None" = None
    ) -> None:
        self._change = change
        self._ended = Followed()
        self._followed: dict[int, tuple[object, Held]] = {}
        self._kept: list[State | Term] = []
        self._running: list[Flow] = []  # children of the layer, and norms
        self._normed: set[str] = set()
        self._opened: set[nn.Module] = set()
        self._follows = False

    @contextmanager
    def following(self, layers: Iterable[nn.Module]) -> Iterator[None]:
        """Hooks on the layers, and eyes on all operations, inside the block.

        When other forward hooks of a layer are called, ``take`` has what was seen in it.
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

    def take(self) -> Followed:
        """What was seen in the layer that has just ended; nothing of it is kept."""
        ended, self._ended = self._ended, Followed()
        return ended

    # --- a layer, its norms and its children ----------------------------------------------------

    def _begin(self, x: Tensor) -> None:
        self._forget()
        self._follows = True
        self._follow(x, self._keep(State(x)))

    def _end(self, layer: nn.Module, args: object, kwargs: object, output: Any) -> None:
        h = hidden_state_of(output)
        self._ended = Followed(h, self._held(h), frozenset(self._normed), len(self._opened))
        self._forget()

    def _forget(self) -> None:
        for kept in (self._followed, self._kept, self._running, self._normed, self._opened):
            kept.clear()
        self._follows = False

    def _enter(
        self, branch: str, child: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        held = [self._held(value) for value in tree_leaves((args, kwargs))]
        if any(isinstance(value, Flow) and value.norm == OPENING for value in held):
            self._opened.add(child)
        read = _joined(held)
        # What another child began and this one only passes on, as a second projection does.
        self._running.append(read if read.branches else read._replace(branches=frozenset({branch})))

    def _enter_norm(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        held = [self._held(tensor) for tensor in tensors]
        norm = CLOSING
        if isinstance(held[0], State):
            self._normed.add(held[0].kind)
            norm = OPENING
        elif held[0] is not None and held[0].norm == OPENING:
            norm = OPENING
        self._running.append(_joined(held)._replace(norm=norm, opaque=True))

    def _leave(self, module: nn.Module, args: object, kwargs: object, output: Any) -> None:
        flow = self._running.pop()
        if self._running and not flow.norm:
            return
        for value in tree_leaves(output):
            held = self._held(value)
            if isinstance(value, Tensor) and not isinstance(held, State):
                norm = flow.norm or (held.norm if held else "")
                self._follow(value, flow._replace(norm=norm, opaque=False))

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
        if self._change is not None and isinstance(held, _Step) and held.terms:
            args = self._with_changed_term(args, held.terms, writes=writes)
        result = func(*args, **kwargs)
        shared = {_key(tensor) for tensor in tensors}
        for value in result if isinstance(result, tuple | list) else [result]:
            # A view holds what it is a view of.
            if isinstance(value, Tensor) and (writes or _key(value) not in shared):
                if isinstance(held, _Step):
                    held = self._keep(State(value, *held))
                # Inside a child only states and norms are followed: all else is the child's.
                if isinstance(held, State) or writes or held.norm or not self._running:
                    self._follow(value, held)
        return result

    def _with_changed_term(
        self, args: tuple[Any, ...], terms: tuple[Term, ...], *, writes: bool
    ) -> tuple[Any, ...]:
        """The summands, that which is no state changed; in place where the sum is written there."""
        assert self._change is not None
        places = [isinstance(self._held(summand), State) for summand in args[:2]]
        place = places.index(False)
        state, term = args[1 - place], args[place]
        changed = self._change(term.expand(state.shape), terms)
        if writes and place == 0:
            changed = term.copy_(changed)
        return (*args[:place], changed, *args[place + 1 :])

    def _after(
        self, packet: Any, args: tuple[Any, ...], tensors: list[Tensor], alpha: float
    ) -> Held | _Step:
        """What the result of an operation holds."""
        held = [self._held(tensor) for tensor in tensors]
        if packet in _SUMS and len(tensors) == 2:
            return self._sum(tensors, held, alpha)
        if packet in _SAME and held[0] is not None:
            return held[0]
        return self._scaled(packet, args, held) if packet in _SCALES else _joined(held)

    def _scaled(self, packet: Any, args: tuple[Any, ...], held: list[Held | None]) -> Held | _Step:
        product = packet in _PRODUCTS
        for scaled, by in [args[:2], args[1::-1]] if product else [args[:2]]:
            state, flow = self._held(scaled), self._held(by) or Flow()
            no_module = isinstance(flow, Flow) and not flow.branches and not flow.norm
            if isinstance(state, State) and no_module and _spreads(by, scaled):
                return _Step(state, factor=by if product else 1 / by)
        norms = (value.norm for value in held if isinstance(value, Flow) and value.norm)
        return _joined(held)._replace(norm=next(norms, ""))

    def _sum(self, tensors: list[Tensor], held: list[Held | None], alpha: float) -> Held | _Step:
        places = [place for place, value in enumerate(held) if isinstance(value, State)]
        if not places:
            joined = _joined(held)
            if all(isinstance(value, Flow) and value.norm == CLOSING for value in held):
                joined = joined._replace(norm=CLOSING)
            if len(joined.branches) < 2 or tensors[0].shape != tensors[1].shape:
                return joined
            terms = self._terms(tensors[0], held[0], 1) + self._terms(tensors[1], held[1], alpha)
            return joined._replace(terms=terms)
        state, other = held[places[0]], tensors[1 - places[0]]
        assert isinstance(state, State)
        written_to = tensors[places[0]]
        if len(places) == 2 or (places == [1] and alpha != 1) or not _spreads(other, written_to):
            return _joined(held)
        term = other.expand(written_to.shape)
        return _Step(state, self._terms(term, held[1 - places[0]], alpha))

    def _terms(self, tensor: Tensor, held: Held | None, alpha: float) -> tuple[Term, ...]:
        """What a summand adds: one term, or those of a sum that was made before."""
        flow = held if isinstance(held, Flow) else Flow()
        if flow.terms and alpha == 1:
            return flow.terms
        began = self._running[-1] if not flow.branches and self._running else flow
        written = tensor if alpha == 1 else tensor * alpha
        return (self._keep(Term(written, began.branches, began.reads, flow.norm)),)

    # --- what tensors hold ----------------------------------------------------------------------

    def _follow(self, tensor: Tensor, held: Held) -> None:
        # A weak reference keeps the address of a storage from being reused, not its memory.
        reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        self._followed[_key(tensor)] = reference, held

    def _held(self, value: object) -> Held | None:
        if not isinstance(value, Tensor) or _key(value) not in self._followed:
            return None
        _, held = self._followed[_key(value)]
        if isinstance(held, State) and value.numel() != held.tensor.numel():
            return Flow(reads=held)  # a part of it
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


def _joined(held: Iterable[Held | None]) -> Flow:
    """What comes from several tensors."""
    branches: frozenset[str] = frozenset()
    reads: list[State] = []
    for value in held:
        if isinstance(value, Flow):
            branches |= value.branches
        state = value if isinstance(value, State) else value and value.reads
        if state is not None:
            reads.append(state)
    return Flow(branches, max(reads, key=lambda state: len(state.lineage), default=None))


def _spreads(value: object, state: Tensor) -> bool:
    """Whether a number or a tensor can stand beside a state whose shape the result has."""
    if not isinstance(value, Tensor):
        return True
    try:
        shape = torch.broadcast_shapes(value.shape, state.shape)  # type: ignore[no-untyped-call]
    except RuntimeError:
        return False
    return bool(shape == state.shape)


def _children(module: nn.Module, norms: Collection[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """The modules of a layer that branches begin with, or pass through."""
    for name, child in module.named_children():
        if isinstance(child, nn.ModuleList):
            yield from _children(child, norms)
        elif child not in norms:
            yield name, child


_NAMES_OF_MLPS = ("mlp", "ff", "feed_forward", "fc", "moe", "expert")
_NAMES_OF_MIXERS = ("att", "mamba", "ssm", "conv", "delta", "recurrent", "lstm", "rwkv")


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
