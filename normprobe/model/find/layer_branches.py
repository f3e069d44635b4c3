"""What each branch of a decoder layer adds to the residual.

A term belongs to the branch whose module began it:

- ``cross_attention``: the module's name speaks of an encoder or of "cross";
- ``attention``: it mixes tokens otherwise (attention, linear attention, state spaces, recurrences,
  convolutions);
- ``mlp``: all others, experts and shared experts among them.

Of blocks in parallel each term is told from the state that its branch reads, in whatever order the
sums are made.
"""

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from normprobe.model.find.residual import Followed, State
from normprobe.statistics.token_metrics import token_norms, widened


class Branch(NamedTuple):
    """What a branch of a layer adds."""

    name: str  # of ``schema.BRANCHES``
    state: Tensor  # ``[batch, seq, hidden]``, the state that it turns
    terms: list[Tensor]  # likewise; their sum is what it adds


class Split(NamedTuple):
    """A layer that has ended."""

    branches: list[Branch]  # what they add; empty where that is not known
    reason: str = ""  # why it is not known, of the layer; else empty
    # one bool: the layer's output is its input and what the branches add, to rounding
    fits: Tensor | None = None


def split(layer: Followed) -> Split:
    """The branches of a layer, by what its output holds."""
    if layer.output is None:
        return Split([], "it has not run")
    states = layer.held.lineage[::-1] if isinstance(layer.held, State) else []
    factors = (state.factor for state in states)
    if not states or any(isinstance(f, Tensor) and f.numel() > 1 for f in factors):
        return Split([], "its output is not its input plus what its modules return")
    found: dict[str, tuple[State, list[Tensor]]] = {}
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
    return Split(branches, fits=_fits(states, layer.output))


def _turned(added_to: State, read: State | None) -> State:
    """Which state a term turns: the one it is added to; of blocks in parallel the one they read."""
    lineage = added_to.lineage
    common = (state for state in (read.lineage if read else []) if state in lineage)
    read = next(common, added_to)
    between = lineage[: lineage.index(read)]
    return read if any(state.terms for state in between) else added_to


def _fits(states: list[State], h: Tensor) -> Tensor:
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
