"""Which rows text attends to, where it attends to the picture: what the layers are handed.

A part is found by names, structure or a trace, and stands for what text attends to. Between it and
the layers a norm may stand, or a learned prefix may be added (LLaMA-Adapter). So the first tensor
that pixels change once the decoder runs is held against what modules hand over.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from normprobe.errors import NormprobeError
from normprobe.hooks import after_call, attached, before_call, observing, on_input, run_until
from normprobe.inputs.on_device import moved_to, with_other_pixels
from normprobe.model.find.parts import Parts, by_hand
from normprobe.model.handed_rows import SAME_ROW, are_among, cosines
from normprobe.model.tracing.recording import tensors
from normprobe.statistics.token_metrics import token_norms

#: How far the norms of two equal rows may be apart, relative to them: some roundings of bfloat16.
_SAME_NORM = 2**-6


def source_of_attended(
    model: nn.Module, parts: Parts, layers: Sequence[nn.Module], inputs: Mapping[str, Any]
) -> tuple[str, str]:
    """Find the module whose rows text attends to, by two forwards with each of two pictures.

    Args:
        model: that ``inputs`` are for.
        parts: of it, with a vision encoder or a projector.
        layers: its decoder layers.
        inputs: of one batch with a picture.

    Returns:
        Its name, and what is in doubt about it, or "".

    Raises:
        NormprobeError: none does, and no projector was named by hand.
    """
    part = parts.projector or parts.vision_encoder
    assert part is not None
    try:
        both = [moved_to(model, given) for given in (inputs, with_other_pixels(inputs))]
        found = _compared(partial(_Forward, model, parts, layers), *both)
    except NormprobeError:
        if not any(w.is_meta for layer in layers for w in layer.parameters()):
            found = None
        else:  # what measures no more reads no weights behind layer 1
            return part.name, (
                f"whether text attends to the rows of {part.name} was not looked at, for not all "
                "decoder layers are read; `normprobe layers` reads them, and looks"
            )
    if found is None:
        return part.name, (
            f"no call of a module shows which rows text attends to, so nothing tells whether they "
            f"are those of {part.name}"
        )
    norm, exact, added = found
    if part.name in exact:
        return part.name, ""
    by_name = "projector" in parts.named
    encoder = f"{parts.vision_encoder.name}." if parts.vision_encoder is not None else ""
    others = [name for name in (*added, *exact) if not encoder.startswith(f"{name}.")]
    name = others[-1] if others and not by_name else part.name
    if parts.projector is None and name in exact and name not in added:
        return name, ""  # it is found, and nothing is wrong
    doubts = []
    if name not in added or name != part.name:
        doubts = [f"text attends to other rows than {part.name} hands over"]
    if name != part.name:
        doubts[0] += f": to those of {name}"
    elif name not in added and not by_name:
        remedy = "let one module hand them over, and " + by_hand(model, projector="NAME")
        raise NormprobeError(doubts[0], remedy)
    if name in added:
        doubts.append(
            f"text attends to the rows of {name}, scaled or with something added: to a median norm "
            f"of {norm:.3g}, and that of the rows themselves, which are reported, is "
            f"{added[name]:.3g}"
        )
    return name, "; ".join(doubts)


def _compared(
    forward: "Callable[..., _Forward]", inputs: Mapping[str, Any], changed: Mapping[str, Any]
) -> tuple[float, list[str], dict[str, float]] | None:
    """The median norm of the rows that text attends to, and which modules hand them over.

    Then those to whose rows something is added, with their median norm. None: no call shows rows.
    """
    first, second = (forward(given).run() for given in (inputs, changed))
    if [place for place, _ in first.sums] != [place for place, _ in second.sums]:
        return None
    pairs = zip(first.sums, second.sums, strict=True)
    moved = (place for (place, one), (_, other) in pairs if not torch.equal(one, other))
    if (place := next(moved, None)) is None or place in first.words:
        return None
    first, second = (forward(given, place).run() for given in (inputs, changed))
    visual = (first.handed != second.handed).any(-1)
    rows, others = first.handed[visual], second.handed[visual]
    exact, added = [], {}
    for name, state in first.handed_over.items():
        other = second.handed_over.get(name)
        if state.shape[-1] != rows.shape[-1] or other is None or other.shape != state.shape:
            continue
        if are_among(rows, state) and _as_long(rows, state):
            exact.append(name)
        elif state.shape == rows.shape and bool(
            cosines(rows - others, state - other).min() > SAME_ROW
        ):
            added[name] = float(token_norms(state).median())
    return float(token_norms(rows).median()), exact, added


def _as_long(rows: Tensor, state: Tensor) -> bool:
    """Whether no row is longer or shorter than all of a state's."""
    norms = [token_norms(each).double() for each in (rows, state)]
    longest, shortest = ([getattr(each, way)() for each in norms] for way in ("max", "min"))
    longer = longest[0] <= longest[1] * (1 + _SAME_NORM)
    return bool(longer and shortest[0] >= shortest[1] * (1 - _SAME_NORM))


class _Forward:
    """A forward to the last decoder layer, and what modules take and return on the way."""

    def __init__(
        self,
        model: nn.Module,
        parts: Parts,
        layers: Sequence[nn.Module],
        inputs: Mapping[str, Any],
        place: tuple[int, int] | None = None,
    ) -> None:
        self.model, self.layers, self.inputs, self.place = model, layers, inputs, place
        # Of each tensor that a module takes once the decoder runs: which call, which tensor of it.
        self.sums: list[tuple[tuple[int, int], Tensor]] = []
        self.words: set[tuple[int, int]] = set()  # where a tensor has a row a word
        self.handed = torch.empty(0)  # the tensor at ``place``, ``[rows, hidden]``
        self.handed_over: dict[str, Tensor] = {}  # by module, ``[rows, hidden]``
        self._calls = 0
        self._shape: torch.Size | None = None  # of what entered decoder layer 1
        sides = [part for part in (parts.vision_encoder, parts.projector) if part is not None]
        self._sides = {part.name for part in sides}

    def run(self) -> "_Forward":
        inside = set(chain.from_iterable(layer.modules() for layer in self.layers))
        handles = [on_input(self.layers[0], self._begin)]
        for name, module in self.model.named_modules():
            below = any(name.startswith(f"{side}.") for side in self._sides)
            if not name or (below and name not in self._sides):  # a merger in its tower is watched
                continue
            if module not in inside and self.place is not None:
                handles.append(after_call(module, partial(self._hand_over, name)))
            if name not in self._sides:
                handles.append(before_call(module, self._take))
        with observing(self.model), attached(*handles):
            run_until(self.model, self.inputs, leaving=self.layers[-1])
        return self

    def _begin(self, state: Tensor) -> None:
        self._shape = state.shape

    def _take(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        if self._shape is None:
            return
        self._calls += 1
        for number, tensor in enumerate(tensors((args, kwargs))):
            if not tensor.is_floating_point() or tensor.dim() < 2 or tensor.shape[-1] < 2:
                continue
            place = self._calls, number
            if tensor.shape == self._shape:
                self.words.add(place)
            if self.place is None:
                self.sums.append((place, torch.stack([tensor.double().sum(), tensor.abs().sum()])))
            elif place == self.place:
                self.handed = tensor.flatten(0, -2).float().clone()

    def _hand_over(self, name: str, _: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        states = [t for t in tensors(output) if t.is_floating_point() and t.dim() > 1]
        if states and self._shape is None and name not in self.handed_over:
            self.handed_over[name] = states[0].flatten(0, -2).float().clone()
