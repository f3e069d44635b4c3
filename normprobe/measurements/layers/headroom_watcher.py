"""Looks for the largest numbers of each layer, in its state and inside of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normprobe.hooks import after_call, attached
from normprobe.measurements.layers.headroom import FLOAT16_END
from normprobe.statistics.token_metrics import POOLED_GROUPS, largest_magnitudes

#: What a layer returns, and what enters the first.
_STATE = "its output"


class HeadroomWatcher:
    """The largest magnitude of each token, in the state and inside of the layer.

    Args:
        spread: from a number a row, ``[rows]``, to ``[batch, seq]``; None: as they lie.
    """

    metrics: tuple[str, ...] = ("state_peak", "inner_peak", "inner_place")

    def __init__(self, spread: Callable[[Tensor], Tensor | None] | None = None) -> None:
        self._spread = spread
        self._names: list[str] = []  # of what was looked at inside, in the order it ran
        # Of the layer at work, by number of rows: the largest so far, and where it was.
        self._found: dict[int, tuple[Tensor, Tensor]] = {}
        self._last: tuple[Any, Any] = None, None  # what a module took and returned last

    @contextmanager
    def watching(self, layers: Sequence[nn.Module]) -> Iterator[None]:
        """Hooks on every module inside the layers that has none inside itself."""
        with ExitStack() as stack:
            for layer in layers:
                for name, module in layer.named_modules():
                    if name and next(module.children(), None) is None:
                        hook = after_call(module, partial(self._see_inside, name))
                        stack.enter_context(attached(hook))
            yield

    def see(self, number: int, x: Tensor, h: Tensor) -> Tensor:
        """``state_peak`` of what left the layer; what was largest inside it, and where."""
        state = largest_magnitudes(h)
        found, self._found, self._last = self._found, {}, (None, None)
        for of_rows in found.values() if number else ():
            inner, place = (self._rows(values, state) for values in of_rows)
            if inner is not None and place is not None:
                return torch.stack([state, inner, place])
        return torch.stack([state, *(torch.full_like(state, torch.nan),) * 2])

    def _place(self, name: str) -> int:
        if name not in self._names:
            self._names.append(name)
        return self._names.index(name)

    def _see_inside(self, name: str, _: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        given = args[0] if args else next(iter(kwargs.values()), None)
        for place, tensor in ((f"input of {name}", given), (name, output)):
            if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
                continue
            if tensor.dim() < 2 or any(tensor is last for last in self._last):
                continue
            peaks = largest_magnitudes(tensor).flatten()
            nowhere = torch.zeros_like(peaks)
            values, where = self._found.get(peaks.numel(), (nowhere, nowhere))
            # What is over the end first counts: all that follows is lost.
            larger = (peaks > values) & (values <= FLOAT16_END)
            where = torch.where(larger, float(self._place(place)), where)
            self._found[peaks.numel()] = torch.fmax(values, peaks), where
        self._last = given, output

    def _rows(self, values: Tensor, state: Tensor) -> Tensor | None:
        """A number a row where the state has it; None: these are other rows."""
        if self._spread is not None:
            spread = self._spread(values)
            return None if spread is None else spread.to(state)
        fits = values.numel() == state.numel()
        return values.reshape(state.shape).to(state) if fits else None

    def see_groups(self, number: int, h: Tensor, masks: Tensor) -> Tensor:
        """Nothing but of tokens."""
        return h.new_empty((len(h), len(POOLED_GROUPS), 0), dtype=torch.float32)

    def columns(
        self, tokens: Mapping[str, NDArray[np.float32]], group: NDArray[np.float32]
    ) -> Mapping[str, Sequence[Any]]:
        """The largest of the group in each layer, where it is, and of which token.

        Where some are beyond float16 that is the place that runs first, and ``peak_order`` tells
        which of several groups and samples has it.
        """
        state, inner, place = (tokens[name] for name in self.metrics)
        larger = np.fmax(state, inner)
        within = inner > FLOAT16_END
        beyond = larger > FLOAT16_END
        order = np.where(within, place, np.where(beyond, np.inf, np.nan))
        first = np.fmin.reduce(order, axis=1)
        chosen = np.where(beyond.any(axis=1, keepdims=True), order == first[:, None], True)
        token = np.where(chosen & ~np.isnan(larger), larger, -1.0).argmax(axis=1)[:, None]
        inside, at, position = (
            np.take_along_axis(values, token, axis=1)[:, 0]
            for values in (within | (~beyond & (inner > state)), place, tokens["position"])
        )
        return {
            "state_peak_max": np.fmax.reduce(state, axis=1).tolist(),
            "inner_peak_max": np.fmax.reduce(inner, axis=1).tolist(),
            "peak_at": [
                self._names[int(number)] if is_inside else _STATE
                for is_inside, number in zip(inside, at, strict=True)
            ],
            "peak_position": position.tolist(),
            "peak_order": first.tolist(),
        }
