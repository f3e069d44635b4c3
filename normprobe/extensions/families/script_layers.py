"""Decoder layers that code runs in other ways than one call each, shown as if it did.

Some code reads a prompt in pieces, with keys and values kept between (BAGEL), some calls layers in
halves (LingBot-VLA), some what is inside of them alone (openpi); some rows have no batch. No hook
on a layer sees the whole prompt there. So its states are taken while the layers run past their
hooks; then each layer is called once more, to take and return what it took and returned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from normprobe import hooks
from normprobe.errors import FixedStates, NormprobeError
from normprobe.hooks import attached, hidden_state_of, with_changed_input

Run = Callable[[], Any]


class Enough(BaseException):  # code of a model passes over any Exception
    """Ends a forward: its layers have run."""


@dataclass(frozen=True)
class HowLayersRun:
    """How layers read one prompt.

    Attributes:
        layers: in their order.
        pieces: which passes through all of them read the prompt, from 0, each more rows of it.
        called: once each in a pass; else what is inside of them is.
        after: what takes the state that leaves the last one, such as the final norm.
    """

    layers: Sequence[nn.Module]
    pieces: Sequence[int]
    called: bool
    after: nn.Module | None


@dataclass
class _Pass:
    """The states of one pass, by the number of a layer; ``after`` has the number behind them."""

    calls: Counter[int] = field(default_factory=Counter)
    taken: dict[int, Tensor] = field(default_factory=dict)
    inside: dict[int, Tensor] = field(default_factory=dict)  # taken by what runs in it first
    opens: dict[int, nn.Module] = field(default_factory=dict)  # which that is
    left: dict[int, Tensor] = field(default_factory=dict)


def how_layers_run(layers: Sequence[nn.Module], run: Run) -> HowLayersRun | None:
    """See how a prompt is read.

    A pass belongs to the prompt if it has several rows that depend on those of its last piece,
    which no layer is given again: other rows there change what leaves the last layer. Others,
    such as of a prompt beside it for guidance, are passed over.

    Returns:
        None: each layer is called once with the whole prompt, in a batch, or its states cannot be
        told.
    """
    if len({*layers}) < max(2, len(layers)):  # shared layers; nothing tells where a pass begins
        return None
    reader, count = _Reader(layers, most=2), len(layers)
    with attached(register_module_forward_pre_hook(reader.beyond)):
        seen = reader.read(run)
    if not seen:
        return None
    first, after = seen[0], reader.after
    if any(first.calls[number] != 1 or number not in first.left for number in range(count)):
        states = [first.inside.get(number) for number in range(count)]
        shapes = {None if state is None else state.shape for state in states}
        told = len(shapes) == 1 and None not in shapes
        # What a matrix takes may have been normed by a function: that is no state of the stream.
        normed = after is not None and not any(map(_has_matrix, (*first.opens.values(), after)))
        return HowLayersRun(layers, [0], called=False, after=after) if told and normed else None
    pieces, place = [0], 1
    while len(seen) > place and seen[place].left.get(count - 1) is not None:
        given = dict(enumerate(each.taken[0] for each in seen))
        given[pieces[-1]] = given[pieces[-1]].flip(-1)
        others = _Reader(layers, most=place + 1, given=given).read(run)
        if not torch.equal(others[place].left[count - 1], seen[place].left[count - 1]):
            pieces.append(place)
        elif place - pieces[-1] == _BESIDE:
            break
        place += 1
        seen = _Reader(layers, most=place + 1).read(run)
    as_it_is = pieces == [0] and first.taken[0].dim() > 2
    return None if as_it_is else HowLayersRun(layers, pieces, called=True, after=after)


def _has_matrix(module: nn.Module) -> bool:
    return any(weight.dim() > 1 for weight in module.parameters())


def run_as_called(how: HowLayersRun, run: Run) -> None:
    """Run what makes layers run, and call each of them once with the whole prompt.

    The states of all layers are held until then.

    Raises:
        NormprobeError: what looks on would change a state, or puts forwards of its own there.
    """
    forwards = [vars(layer).get("forward") for layer in how.layers]
    if any(getattr(each, "__globals__", None) is vars(hooks) for each in forwards):
        raise NormprobeError(
            f"{_SHOWN}: no second way leads to their states",
            "leave out --verify",
        )
    most = how.pieces[-1] + 1
    reader = _Reader(how.layers, most, after=how.after)
    passes = reader.read(run)
    seen = [passes[place] for place in how.pieces]

    def of(states: Sequence[Mapping[int, Tensor]], number: int) -> Tensor:
        rows = torch.cat([each[number] for each in states], -2)
        return rows if rows.dim() > 2 else rows[None]  # a batch of one

    original = how.layers[0].forward

    def hand_on(number: int, taken: Tensor, state: Tensor) -> Tensor:
        """In place of a layer's forward, which has run; with another state it runs again."""
        nonlocal reader, seen
        if state is not taken and not torch.equal(state, taken):
            if number or not how.called:
                raise FixedStates(
                    f"{_SHOWN}: nothing can be changed on the way",
                    "measure them as they are",
                )
            rows = state.view(*seen[0].taken[0].shape[:-2], *state.shape[-2:])
            parts = torch.split(rows, [each.taken[0].shape[-2] for each in seen], -2)
            given = dict(zip(how.pieces, parts, strict=True))
            reader = _Reader(how.layers, most, given=given, after=how.after)
            with patch.object(how.layers[0], "forward", original):
                passes = reader.read(run)
            seen = [passes[place] for place in how.pieces]
        if how.called:
            return of([each.left for each in seen], number)
        return of([each.inside for each in seen], number + 1)

    for number, layer in enumerate(how.layers):
        taken = of([each.taken if how.called else each.inside for each in seen], number)
        with patch.object(layer, "forward", partial(hand_on, number, taken)):
            left = layer(taken)
    if how.after is not None and reader.after_given is not None:
        args, kwargs = with_changed_input(lambda _: left, *reader.after_given)
        how.after(*args, **kwargs)


#: Passes in a row that are no pieces of a prompt, and show that it has ended.
_BESIDE = 3

#: Of layers whose states are shown by a call of their own.
_SHOWN = "code runs decoder layers in pieces, or what is inside of them alone"


@contextmanager
def passing_once(owner: nn.Module, first: nn.Module) -> Iterator[None]:
    """End the block where an answer begins.

    Either the module that holds the layers begins again, or the first layer does, with one row:
    code may loop over layers by itself (UFO).
    """
    begun = Counter[nn.Module]()

    def count(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        begun[module] += 1
        state = _state_in((kwargs.get("hidden_states"), args, kwargs))
        one = state is not None and state.shape[-2] == 1
        if begun[module] > 1 and (module is owner or one):
            raise Enough

    how: dict[str, Any] = {"prepend": True, "with_kwargs": True}  # before all who look on
    handles = [module.register_forward_pre_hook(count, **how) for module in {owner, first}]
    with attached(*handles), suppress(Enough):
        yield


class _Reader:
    """Takes the states of layers, past all hooks, until so many passes have ended.

    Args:
        layers: in their order.
        most: passes.
        given: what the first layer takes instead of its state, by the number of a pass.
        after: as of ``HowLayersRun``; None: not known yet.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        most: int,
        given: Mapping[int, Tensor] = MappingProxyType({}),
        after: nn.Module | None = None,
    ) -> None:
        self._layers, self._most, self._given = layers, most, given
        self._last = -1  # number of what ran last
        self._passes: list[_Pass] = []
        self.after = after
        self.after_given: tuple[Any, Any] | None = None  # to it

    def read(self, run: Run) -> list[_Pass]:
        """The passes of a forward; it ends there."""
        numbered = {each: n for n, layer in enumerate(self._layers) for each in layer.modules()}
        if self.after is not None:
            numbered |= dict.fromkeys(self.after.modules(), len(self._layers))
        with _past_hooks(numbered, self._see), torch.no_grad():
            try:
                run()
            except Enough:
                pass
            except Exception:  # behind the layers it may be anything
                if self._last < len(self._layers) - 1:
                    raise
        return self._passes

    def beyond(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """A hook of all modules: the first behind the last layer that takes its state."""
        if self.after is None and self._last == len(self._layers) - 1:
            now, state = self._passes[-1], _state_in(args)
            before = now.left.get(self._last, now.inside.get(self._last))
            if state is not None and before is not None and state.shape == before.shape:
                self.after = module

    def _see(self, number: int, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        state = _state_in((kwargs.get("hidden_states"), args, kwargs))
        if number == 0 and (self._last > 0 or not self._passes):
            self._begin(state)
        self._last = number
        now = self._passes[-1] if self._passes else _Pass()  # a layer amid others ran before
        if module is not (*self._layers, self.after)[number]:
            if state is not None and number not in now.inside:
                now.inside[number], now.opens[number] = state.detach().clone(), module
            return module.forward(*args, **kwargs)
        if number == len(self._layers):
            return self._see_after(now, state, args, kwargs)
        now.calls[number] += 1
        given = self._given.get(len(self._passes) - 1)
        if number == 0 and given is not None:
            args, kwargs = with_changed_input(lambda _: given, args, kwargs)
        if state is not None:
            now.taken.setdefault(number, state.detach().clone())
        returned = module.forward(*args, **kwargs)
        left = _state_in(returned)
        if left is not None:
            now.left[number] = left.detach().clone()
        return returned

    def _see_after(self, now: _Pass, state: Tensor | None, args: Any, kwargs: Any) -> Any:
        assert self.after is not None
        if state is not None:
            now.inside[len(self._layers)], self.after_given = state.detach().clone(), (args, kwargs)
            if len(self._passes) == self._most:
                raise Enough
        return self.after.forward(*args, **kwargs)

    def _begin(self, state: Tensor | None) -> None:
        """A pass begins, unless it is the answer's: one row, or rows of another kind."""
        if self._passes:
            first = self._passes[0].taken.get(0)
            alike = first is not None and state is not None and state.dim() == first.dim()
            if not alike or len(self._passes) == self._most:
                raise Enough
            assert state is not None and first is not None
            kinds = [(*each.shape[:-2], each.shape[-1]) for each in (state, first)]
            if kinds[0] != kinds[1] or state.shape[-2] == 1:
                raise Enough
        self._passes.append(_Pass())


@contextmanager
def _past_hooks(numbered: Mapping[nn.Module, int], see: Callable[..., Any]) -> Iterator[None]:
    """Inside the block a call of such a module is one of ``see``, and none of its hooks."""
    with ExitStack() as stack:
        for module, number in numbered.items():  # what is compiled is called in place of all that
            put = {"_compiled_call_impl": partial(see, number, module)}
            stack.enter_context(patch.dict(vars(module), put))
        yield


def _state_in(value: Any) -> Tensor | None:
    with suppress(NormprobeError):
        return hidden_state_of(value)
    return None
