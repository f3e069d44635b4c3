"""Which rows of a vision tower each visual token is made of, told by gradients.

A backward from the visual tokens whose number has a certain bit reaches the rows of these alone.
So a few backward runs of the projector spell, for each row before it, the number of its token:
through mergers, pixel shuffles, tiles, newlines and windows, whatever order they have. A row that
both a bit and its opposite reach belongs to several tokens: a resampler mixes them.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normprobe.errors import NormprobeError
from normprobe.hooks import (
    PROJECTED_STATE,
    attached,
    changing_input,
    hidden_state_of,
    observing,
    on_input,
    on_output,
    on_this_thread,
    run_until,
)
from normprobe.inputs.on_device import moved_to
from normprobe.model.find.overrides import CROSS_ATTENTION, DISCRETE
from normprobe.model.measured_model import MeasuredModel
from normprobe.model.tower import blocks_of
from normprobe.schema import VISUAL
from normprobe.statistics.loud_tokens import LOUDEST, QUIET, loudness_classes
from normprobe.statistics.token_metrics import in_group, token_norms

Array = NDArray[np.float64]


class NotJoined(Exception):
    """Rows of the tower have no place among the visual tokens; the text says why."""


class TowerClasses:
    """Which visual tokens of a sample are the loudest behind the vision tower, and quiet beside.

    Raises:
        NormprobeError: its visual tokens cannot be followed back.
    """

    def __init__(self, model: MeasuredModel) -> None:
        self._model = model
        self._join: Join | None = None

    def of(self, inputs: Mapping[str, Any]) -> dict[str, NDArray[np.int_]]:
        """Their numbers among the visual tokens, by class of ``statistics.loud_tokens``.

        Args:
            inputs: of one sample.
        """
        batch = self._model.batch(inputs)
        at_entry = batch.groups_at(self._model.decoder_input(inputs))
        visual = in_group(VISUAL, at_entry[0].cpu())
        if not visual.any():
            return dict.fromkeys((*LOUDEST, QUIET), np.empty(0, dtype=int))
        try:
            self._join = self._join or Join(self._model)
            norms = self._join.norms(inputs, visual).read
        except NotJoined as why:
            raise NormprobeError(
                f"visual tokens of {self._model} have no class: {why}",
                "leave the class out: --do freeze is done to all visual tokens",
            ) from why
        numbers = batch.images_at(at_entry)
        images = None if numbers is None else numbers[0].cpu().numpy()[visual.numpy()]
        return loudness_classes(norms, images)


@dataclass
class BeforeDecoder:
    """The norms of visual tokens before the decoder: of the loudest row that each is made of."""

    # by block of the tower, 0 what enters the first, up to the one that is read: ``[tokens]``
    tower: dict[int, Array] = field(default_factory=dict)
    projector: Array | None = None  # behind the projector; None: its rows are no tokens'

    @property
    def read(self) -> Array:
        """Behind the block that the projector reads, before any norm that stands there."""
        return self.tower[max(self.tower)]


class Join:
    """Follows the visual tokens of a model back to the blocks of its vision tower.

    Raises:
        NotJoined: it has no blocks, or its visual tokens no rows.
    """

    def __init__(self, model: MeasuredModel) -> None:
        encoder, projector = model.parts.vision_encoder, model.parts.projector
        if model.parts.fusion in (CROSS_ATTENTION, DISCRETE):
            raise NotJoined("the decoder reads no row that the projector returns")
        blocks = blocks_of(encoder, projector) if encoder is not None else None
        if blocks is None:
            raise NotJoined("its vision tower has no transformer blocks")
        self._model = model
        self._blocks = list(blocks.module.children())
        self._projector = projector.module if projector is not None else None
        if isinstance(self._projector, nn.ModuleList):
            self._projector = None
        self._read: int | None = None  # the block that is read, by place; None: not known yet

    def norms(self, inputs: Mapping[str, Any], visual: Tensor) -> BeforeDecoder:
        """Run the vision side once forwards, and what follows its last block some times backwards.

        Args:
            inputs: of one sample.
            visual: ``[positions]`` bool, those of the decoder input that come from pixels.

        Raises:
            NotJoined: rows of the tower belong to several tokens, or to none.
        """
        states: dict[int, list[Tensor]] = {}
        projected: list[Tensor] = []
        entered: list[Tensor] = []
        norms: dict[int, list[Tensor]] = {}
        first = 0 if self._read is None else self._read

        def keep(number: int, state: Tensor) -> None:
            norms.setdefault(number, []).append(token_norms(state.detach()).flatten())

        def block_left(place: int, state: Tensor) -> None:
            keep(place + 1, state)
            states.setdefault(place, []).append(state)

        def projector_left(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            projected.append(hidden_state_of(output, PROJECTED_STATE))

        # What is before the block that is read needs no gradient.
        handles = [
            on_input(self._blocks[0], partial(keep, 0)),
            changing_input(self._blocks[first], lambda t: t.detach().requires_grad_()),
        ]
        handles += [on_output(b, partial(block_left, n)) for n, b in enumerate(self._blocks)]
        if self._projector is not None:
            watch = on_this_thread(projector_left)
            handles.append(self._projector.register_forward_hook(watch, with_kwargs=True))
        layer = self._model.decoder_layers[0]
        handles.append(on_input(layer, entered.append))
        whole = self._model.model
        with observing(whole), _frozen(whole), attached(*handles), torch.enable_grad():
            run_until(whole, moved_to(whole, inputs), entering=layer)
            state = self._model.read_stream(entered[0])[0]
            rows = state[visual.to(state.device)]
            if not rows.requires_grad:
                raise NotJoined("no gradient of its visual tokens reaches its vision tower")
            place = self._place_read(rows, states)
            owners = _owners(rows, states[place])
            after = _owners(rows, projected) if projected else None
        if (owners == _SEVERAL).any():
            raise NotJoined(
                "its projector mixes rows of the tower: they have no token of their own"
            )
        found = BeforeDecoder()
        for number in range(place + 2):
            of_rows = torch.cat(norms.get(number, [rows.new_empty(0)])).double().cpu().numpy()
            if len(of_rows) == len(owners):  # else rows are merged between blocks
                found.tower[number] = _loudest(of_rows, owners, len(rows))
        if np.isnan(found.read).any():
            raise NotJoined("some of its visual tokens come from no row of the tower")
        if after is not None and not (after == _SEVERAL).any():
            left = torch.cat([token_norms(each.detach()).flatten() for each in projected])
            of_tokens = _loudest(left.double().cpu().numpy(), after, len(rows))
            found.projector = None if np.isnan(of_tokens).any() else of_tokens
        return found

    def _place_read(self, rows: Tensor, states: Mapping[int, list[Tensor]]) -> int:
        """The last block that visual tokens come from: many models leave out the last one."""
        if self._read is None:
            for place in sorted(states, reverse=True):
                if (_reached(rows.sum(), states[place])).any():
                    self._read = place
                    break
            else:
                raise NotJoined("no gradient of its visual tokens reaches its vision tower")
        return self._read


#: Of a row of the tower: it belongs to no visual token (CLS, padding), or to several.
_NONE, _SEVERAL = -1, -2


def _owners(rows: Tensor, states: Sequence[Tensor]) -> NDArray[np.int_]:
    """The number of the visual token that each row of some states goes into.

    Args:
        rows: ``[tokens, hidden]`` at the decoder input, with their graph.
        states: ``[..., hidden]``, call by call, that the graph holds.

    Returns:
        ``[rows of states]``, from 0; ``_NONE``, ``_SEVERAL``.
    """
    numbers = torch.arange(len(rows), device=rows.device)
    # Directions by chance: the sum over a norm's output has no gradient.
    made = torch.Generator().manual_seed(0)
    pulls = torch.randn(rows.shape, generator=made).to(rows)
    owners = several = reached = None
    for bit in range(max(1, (len(rows) - 1).bit_length())):
        of_bit = []
        for value in (0, 1):
            chosen = (numbers >> bit & 1) == value
            if chosen.any():
                of_bit.append(_reached((rows[chosen] * pulls[chosen]).sum(), states))
            else:
                of_bit.append(np.zeros_like(of_bit[0]))
        zero, one = of_bit
        if owners is None or several is None or reached is None:
            owners, several, reached = (
                np.zeros(len(zero), dtype=kind) for kind in (int, bool, bool)
            )
        owners = owners + (one.astype(int) << bit)
        several |= zero & one
        reached |= zero | one
    assert owners is not None and several is not None and reached is not None
    found: NDArray[np.int_] = np.where(several, _SEVERAL, np.where(reached, owners, _NONE))
    return found


def _reached(total: Tensor, states: Sequence[Tensor]) -> NDArray[np.bool_]:
    """Which rows of states a number has a gradient to, ``[rows]``."""
    known = [state for state in states if state.requires_grad]
    slopes: Iterator[Tensor | None] = iter(())
    if known:
        slopes = iter(torch.autograd.grad(total, known, retain_graph=True, allow_unused=True))
    found = []
    for state in states:
        slope = next(slopes) if state.requires_grad else None
        none = torch.zeros(state.shape[:-1], dtype=torch.bool, device=state.device)
        found.append((none if slope is None else (slope != 0).any(-1)).flatten())
    return torch.cat(found).cpu().numpy()


def _loudest(norms: Array, owners: NDArray[np.int_], tokens: int) -> Array:
    """``[tokens]``: the largest norm of the rows of each; NaN of a token without one."""
    found = np.full(tokens, -np.inf)
    np.maximum.at(found, owners[owners >= 0], norms[owners >= 0])
    return np.where(np.isfinite(found), found, np.nan)


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """No weight asks for a gradient inside the block."""
    asking = [weight for weight in model.parameters() if weight.requires_grad]
    for weight in asking:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in asking:
            weight.requires_grad_(True)
