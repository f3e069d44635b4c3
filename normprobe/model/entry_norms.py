"""What stands between projector or text table and decoder layer 1: a norm, a factor, or nothing.

A norm there sets how loud rows enter, whatever the projector makes: where visual and text rows pass
one, the ratio at the decoder input is by construction. It is told by what modules return: the rows
that enter layer 1 are those of the norm that ran last, up to one factor.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from normprobe.hooks import (
    PROJECTED_STATE,
    attached,
    hidden_state_of,
    observing,
    on_call,
    on_input,
    run_until,
)
from normprobe.inputs.on_device import moved_to
from normprobe.model.find.overrides import DISCRETE
from normprobe.model.find.residual import norms_of
from normprobe.model.measured_model import MeasuredModel, embedding_scale
from normprobe.model.tower import blocks_of
from normprobe.schema import TEXT, TOKEN_GROUPS, VISUAL
from normprobe.tensors import to_device

#: Rows of a group that are compared, at most.
_ROWS = 32
#: The cosine of a row and of what it was made of by a factor, bfloat16 included.
_SAME_DIRECTION = 0.999
#: Rows whose norms are this near to each other, of as many as that, are made so.
_EQUAL, _SEVERAL = 1e-3, 4
EQUAL = "equal norms"
#: How far the factors of rows may be apart, and a factor from a round number.
_SAME_FACTOR = 0.02


class Entry(NamedTuple):
    """How the rows of a group come to decoder layer 1."""

    # ``LayerNorm`` or ``RMSNorm``, with ``scale-free`` where it has no gain; ``equal norms`` where
    # no such module makes the rows equally long; empty: none
    norm: str
    module: str = ""  # its name in the model
    factor: float | None = None  # behind it, or behind projector or table; None: no one factor
    width: int = 0  # of a row

    def __str__(self) -> str:
        """In words."""
        if self.factor is None:
            return f"{self.norm or 'none'}, other terms are added"
        root = self.width**0.5
        if self.norm == EQUAL:
            return f"{EQUAL}, of {self.factor:.3g}"
        told = f"times {self.factor:.3g}"
        if abs(self.factor / root - 1) < _SAME_FACTOR:
            told = "times sqrt d"
        times = "" if abs(self.factor - 1) < _SAME_FACTOR else f", {told}"
        return f"{self.norm or 'none'}{times}"


class _Ran(NamedTuple):
    """A norm that has run."""

    name: str
    module: nn.Module
    taken: Tensor  # ``[rows, width]``, what it took
    left: Tensor  # likewise, what it returned


def entries_of(model: MeasuredModel, inputs: Mapping[str, Any]) -> dict[str, Entry]:
    """How visual and text rows enter the decoder, by one batch; no group that it does not hold."""
    batch = model.batch(inputs)
    projector, first = model.parts.projector, model.decoder_layers[0]
    ran: list[_Ran] = []
    projected: list[Tensor] = []
    states: list[Tensor] = []

    def see(name: str, module: nn.Module, taken: Tensor, left: Tensor, _: object) -> None:
        rows = (each.detach().reshape(-1, each.shape[-1]).clone() for each in (taken, left))
        ran.append(_Ran(name, module, *rows))

    handles = [on_input(first, states.append)]
    for name, module in _norms_outside(model):
        handles.append(on_call(module, partial(see, name, module)))
    if projector is not None and not isinstance(projector.module, nn.ModuleList):
        left = partial(hidden_state_of, field=PROJECTED_STATE)
        handles.append(on_call(projector.module, lambda _, out, __: projected.append(out), left))
    with observing(model.model), attached(*handles):
        run_until(model.model, moved_to(model.model, inputs), entering=first)
        x = model.read_stream(states[0])
        groups = batch.groups_at(x)
        scale = None
        if batch.ids is not None and batch.ids.shape == groups.shape:
            scale = embedding_scale(model.parts, to_device(batch.ids, x.device), x, groups)
        found = {}
        for group in (VISUAL, TEXT):
            rows = x[groups == TOKEN_GROUPS.index(group)]
            if not len(rows):
                continue
            made = torch.cat([each.reshape(-1, each.shape[-1]) for each in projected or [rows]])
            factor = scale if group == TEXT else _factor(rows, made)
            if model.parts.fusion == DISCRETE:
                factor = scale  # both are rows of the text table
            found[group] = _closing_norm(ran, rows) or Entry("", "", factor, rows.shape[-1])
    return found


def by_construction(found: Mapping[str, Entry]) -> bool:
    """Whether norms, and not what was learned before them, set both sides of the input's ratio."""
    return all(group in found and found[group].norm for group in (VISUAL, TEXT))


def _norms_outside(model: MeasuredModel) -> list[tuple[str, nn.Module]]:
    """The norms that are in no decoder layer and in no block of a tower."""
    parts = model.parts
    blocks = [*model.decoder_layers]
    for encoder in (parts.vision_encoder, parts.audio_encoder):
        found = None if encoder is None else blocks_of(encoder)
        blocks += [] if found is None else [*found.module.children()]
    inside = {norm for block in blocks for norm in norms_of(block)}
    norms = {norm for norm in norms_of(model.model) if _is_of_rows(norm)} - inside
    return [(name, each) for name, each in model.model.named_modules() if each in norms]


def _is_of_rows(norm: nn.Module) -> bool:
    """Whether it reads a row alone: not tokens and width at once (StarVector), nor a batch."""
    over = getattr(norm, "normalized_shape", (0,))
    return len(over) == 1 and not isinstance(norm, _BatchNorm)


def _closing_norm(ran: list[_Ran], rows: Tensor) -> Entry | None:
    """The norm that ran last of those whose rows these are; None: there is none."""
    for name, module, taken, left in reversed(ran):
        factor = _factor(rows, left)
        if factor is not None:
            return Entry(_kind(module, taken), name, factor, rows.shape[-1])
    norms = torch.unique(rows.float(), dim=0).norm(dim=-1)
    if len(norms) >= _SEVERAL and float(norms.std() / norms.mean()) < _EQUAL:
        return Entry(EQUAL, "", float(norms.mean()), rows.shape[-1])
    return None


def _factor(rows: Tensor, made: Tensor) -> float | None:
    """By which number rows are those that were made; None: they are others."""
    if made.shape[-1] != rows.shape[-1] or not len(made):  # a prompt encoder without prompts
        return None
    places = torch.linspace(0, len(rows) - 1, min(len(rows), _ROWS)).long()
    wanted, held = rows[places.to(rows.device)].float(), made.to(rows.device).float()
    cosines = nn.functional.normalize(wanted, dim=-1) @ nn.functional.normalize(held, dim=-1).T
    best, nearest = cosines.max(dim=-1)
    if float(best.min()) < _SAME_DIRECTION:
        return None
    factors = wanted.norm(dim=-1) / held[nearest].norm(dim=-1)
    factor = float(factors.median())
    return factor if float((factors / factor - 1).abs().max()) < _SAME_FACTOR else None


def _kind(module: nn.Module, taken: Tensor) -> str:
    """LayerNorm, which a constant added to a row does not change, or RMSNorm; with gain or not."""
    row = taken[:1]
    spread = row.float().std()
    with torch.no_grad():
        same, other = module(row), module(row + spread.to(row.dtype))
    centred = bool((same - other).float().norm() < 0.05 * same.float().norm())
    gains = any(weight.numel() > 1 for weight in module.parameters())
    return ("LayerNorm" if centred else "RMSNorm") + ("" if gains else ", scale-free")
