"""The arithmetic of one decoder layer: how far it moves tokens, and where they point."""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normprobe.schema import (
    IMAGE,
    MODALITIES,
    NON_VISUAL,
    SPECIAL,
    STRUCTURAL,
    TEXT,
    TOKEN_GROUPS,
    VIDEO,
    VISUAL,
)

#: Between these magnitudes no square, and no product of two states, leaves float32.
_SMALL, _LARGE = 1e-12, 1e15


def widened(states: Tensor) -> Tensor:
    """The states in which to compute: float64 stays, all others become float32."""
    return states if states.dtype == torch.float64 else states.float()


def token_norms(states: Tensor) -> Tensor:
    """L2 norm over the hidden axis; infinite only where float32 cannot hold it, NaN of no number.

    Args:
        states: ``[..., hidden]``.

    Returns:
        ``[...]`` in float32; of float64 states in float64.
    """
    peaks = largest_magnitudes(states)
    scale = _scale(peaks)
    if scale is None:
        return _norms(states)
    return torch.where(peaks == torch.inf, peaks, _norms(states * scale.unsqueeze(-1)) / scale)


class ScaledState(NamedTuple):
    """A hidden state in numbers whose squares float32 holds."""

    vectors: Tensor  # ``[..., hidden]``, each token times its scale; zeros where it is not finite
    lengths: Tensor  # ``[...]``, norms of these
    norms: Tensor  # ``[...]``, norms of the tokens, as ``token_norms``
    finite: Tensor  # ``[...]`` bool, where the norm is
    scale: Tensor | None  # ``[...]`` of ``_scaling``; None: 1 for all

    def to(self, device: torch.device) -> "ScaledState":
        """The same on another device."""
        scale = None if self.scale is None else self.scale.to(device)
        return ScaledState(*(part.to(device) for part in self[:-1]), scale)  # type: ignore[call-arg]


def state_of(states: Tensor) -> ScaledState:
    """What the arithmetic of a layer reads of one of its states, ``[..., hidden]``."""
    scale = _scale(largest_magnitudes(states))
    if scale is None:
        vectors = widened(states)
        lengths = _norms(vectors)
        return ScaledState(vectors, lengths, lengths, lengths < torch.inf, None)
    # A token that is not finite becomes zeros, for the same reason as in ``moved``.
    vectors = (states * scale.unsqueeze(-1)).nan_to_num_(nan=0.0)
    lengths = _norms(vectors)
    norms = lengths / scale
    return ScaledState(vectors, lengths, norms, norms < torch.inf, scale)


class Moved(NamedTuple):
    """How a layer moves its tokens, times a scale of each."""

    product: Tensor  # ``[...]``, of the vectors of what enters and of what leaves
    update: Tensor  # ``[...]``, ||D||
    parallel: Tensor  # ``[...]``, D_par
    turn: Tensor  # ``[...]``, ||D_perp||
    perpendicular: Tensor  # ``[..., hidden]``, D_perp; zeros where it has no number
    scale: Tensor  # ``[...]``, of all but the first


def moved(x: ScaledState, h: ScaledState) -> Moved:
    """How far a layer moves each token, for ``metrics_of``.

    D = h - x, D_par = <D, x> / ||x||, and D_perp is the part of D orthogonal to x.

    Args:
        x: what enters the layer.
        h: what leaves it, on the same device.
    """
    if x.scale is None and h.scale is None:
        scale = torch.ones_like(x.lengths)
        update = h.vectors - x.vectors
    else:
        # Both at the scale of the larger; in place, as new memory costs more than arithmetic.
        of_x, of_h = (
            torch.ones_like(each.lengths) if each.scale is None else each.scale for each in (x, h)
        )
        scale = torch.minimum(of_x, of_h)
        update = h.vectors * (scale / of_h).unsqueeze(-1)
        update.addcmul_(x.vectors, (scale / of_x).unsqueeze(-1), value=-1)
    length = _norms(update)
    parallel = torch.linalg.vecdot(update, x.vectors) / x.lengths
    # As a vector: sqrt(||D||^2 - D_par^2) cancels when the update is almost parallel to x.
    perpendicular = update.addcmul_((parallel / x.lengths).unsqueeze(-1), x.vectors, value=-1)
    perpendicular.nan_to_num_(nan=0.0)  # zero times NaN would reach the sums
    product = torch.linalg.vecdot(x.vectors, h.vectors)
    return Moved(product, length, parallel, _norms(perpendicular), perpendicular, scale)


def lengths_of(x: ScaledState, h: ScaledState, moved: Moved) -> Tensor:
    """What ``metrics_of`` needs of a layer, ``[9, ...]``."""
    lengths = x.norms, h.norms, x.lengths, h.lengths
    return torch.stack([*lengths, *moved[:4], moved.scale])


def metrics_of(lengths: Tensor) -> Tensor:
    """How far a layer moves and turns each token.

    - norm: ||h||
    - cosine: cos(x, h), the paper's proxy of the update rate
    - angle: atan2(||D_perp||, ||x|| + D_par), the angular velocity of Eq. 8 and 13 (radians)
    - update_norm: ||D||
    - relative_update: ||D|| / ||x||
    - update_angle: atan2(||D_perp||, D_par), the angle between D and x (radians)

    The angle equals arccos(cosine) in exact arithmetic. It is not computed that way, because
    arccos loses half of the digits near 1.

    A zero vector has no direction: NaN where a cosine, an angle or a share of a norm would need
    one of x, h or D. Every other number of the token is there.

    Args:
        lengths: ``[9, ...]`` of ``lengths_of``, of one layer or of many.

    Returns:
        ``[6, ...]`` in the order of ``schema.TOKEN_METRICS``.
    """
    x_norm, h_norm, x_length, h_length, product = lengths[:5]
    update, parallel, turn = lengths[5:8] / lengths[8]
    return torch.stack(
        [
            h_norm,
            product / (x_length * h_length),
            _where(h_norm, torch.atan2(turn, x_norm + parallel)),
            update,
            _where(x_norm, update / x_norm),
            _where(update, torch.atan2(turn, parallel)),
        ]
    )


def token_metrics(x: Tensor, h: Tensor) -> Tensor:
    """``metrics_of`` what enters and what leaves a layer, each ``[..., hidden]``."""
    entered, left = state_of(x), state_of(h)
    return metrics_of(lengths_of(entered, left, moved(entered, left)))


def _where(norms: Tensor, values: Tensor) -> Tensor:
    """The values of what is no zero vector, else NaN."""
    return torch.where(norms == 0, torch.nan, values)


def squarable(states: Tensor) -> Tensor:
    """The states, each times a number where its squares would overflow or be lost.

    Args:
        states: ``[..., hidden]``.
    """
    scale = _scale(largest_magnitudes(states))
    return states if scale is None else states * scale.unsqueeze(-1)


def _norms(states: Tensor) -> Tensor:
    dtype = torch.float64 if states.dtype == torch.float64 else torch.float32
    norms: Tensor = torch.linalg.vector_norm(states, dim=-1, dtype=dtype)
    return norms


def largest_magnitudes(states: Tensor) -> Tensor:
    """That of each token, ``[...]``, in the precision of ``widened``; NaN where it holds one."""
    if states.device.type == "cpu":  # where the norm takes ten times as long
        return widened(torch.maximum(states.amax(-1), -states.amin(-1)))
    peaks: Tensor = widened(torch.linalg.vector_norm(states, ord=torch.inf, dim=-1))
    return peaks


def _scale(peaks: Tensor) -> Tensor | None:
    """``_scaling``; None: no state needs it.

    An accelerator is not asked, because the host would wait for its answer.
    """
    if peaks.device.type == "cpu":
        extreme = (peaks < _SMALL) & (peaks > 0) | ~(peaks < _LARGE)
        if not extreme.any():
            return None
    return _scaling(peaks)


def _scaling(peaks: Tensor) -> Tensor:
    """By which to multiply each state before it is squared, ``[...]``.

    1 for a state that is neither too large nor too small, 0 or NaN for one that is not finite.

    Args:
        peaks: ``[...]``, the largest magnitude of each state.
    """
    return peaks.clamp(_SMALL, _LARGE) / peaks.clamp_min(torch.finfo(peaks.dtype).tiny)


#: Groups whose mean vectors are compared; ``non_visual`` is text and special tokens together.
POOLED_GROUPS = (VISUAL, STRUCTURAL, SPECIAL, TEXT, NON_VISUAL)

#: Where ``MODALITIES`` stand among them: a slice, for an index list would be copied to the device.
_FIRST, _LAST = (POOLED_GROUPS.index(group) for group in MODALITIES)
_OF_MODALITIES = slice(_FIRST, _LAST + 1, _LAST - _FIRST)


def group_masks(groups: Tensor) -> Tensor:
    """One mask a pooled group.

    Args:
        groups: ``[batch, seq]`` codes of ``schema.TOKEN_GROUPS``, padding negative.

    Returns:
        ``[batch, len(POOLED_GROUPS), seq]`` bool.
    """
    return torch.stack([in_group(group, groups) for group in POOLED_GROUPS], dim=1)


#: Groups that hold tokens of several codes, or are called otherwise.
_CODES_OF = {VISUAL: (VISUAL, VIDEO), IMAGE: (VISUAL,), NON_VISUAL: (TEXT, SPECIAL)}


def in_group(group: str, codes: Any) -> Any:
    """Which tokens are of a group of ``schema.TABLE_GROUPS``.

    Args:
        group: its name.
        codes: a tensor or an array of any shape, of ``schema.TOKEN_GROUPS``.
    """
    first, *others = (codes == TOKEN_GROUPS.index(name) for name in _CODES_OF.get(group, (group,)))
    return first | others[0] if others else first


def masks_of(codes: NDArray[np.int8]) -> dict[str, NDArray[np.bool_]]:
    """Each group of tables that some token is of; ``image`` only beside videos."""
    held = {group: in_group(group, codes) for group in (*TOKEN_GROUPS, NON_VISUAL, IMAGE)}
    if not held[VIDEO].any():
        del held[IMAGE]
    return {group: mask for group, mask in held.items() if mask.any()}


class Directions(NamedTuple):
    """Where the groups of one state point, per sample, over its finite tokens.

    Sums, which become means of several layers at once: ``mean_of``.
    """

    groups: Tensor  # ``[..., batch, len(POOLED_GROUPS), hidden]``, sums of vectors
    # ``[..., batch, 2, hidden]``, sums of unit vectors of each of ``MODALITIES``. A row of zeros
    # has no direction and is left out.
    units: Tensor
    # Likewise, of unit vectors u - c, scaled to length 1, where c is the mean of both modalities'
    # mean unit vectors: a direction that all tokens share tells no modality from the other.
    centered: Tensor
    tokens: Tensor  # ``[..., batch, 2, 1]``, how many tokens the last two are sums of


def directions(state: ScaledState, masks: Tensor) -> Directions:
    """Where the groups of a state point.

    Args:
        state: of ``[batch, seq, hidden]``.
        masks: ``[batch, len(POOLED_GROUPS), seq]`` of ``group_masks``.
    """
    held = masks & state.finite.unsqueeze(1)
    pointing, lengths = _pointing(state, held)
    tokens = pointing.sum(-1, keepdim=True)
    weights = held.to(lengths.dtype)
    if state.scale is not None:
        weights = (weights / state.scale.unsqueeze(1)).nan_to_num_(nan=0.0)  # of the others, 0 / 0
    sums = torch.cat([weights, pointing / lengths], dim=1).bmm(state.vectors)
    groups, units = sums[:, : len(POOLED_GROUPS)], sums[:, len(POOLED_GROUPS) :]
    centered = state.vectors / lengths.mT
    centered -= mean_of(units, tokens).mean(dim=1, keepdim=True)
    weights = pointing / _positive(_norms(centered)).unsqueeze(1)
    return Directions(groups, units, weights.bmm(centered), tokens)


def units_of(state: ScaledState, masks: Tensor) -> tuple[Tensor, Tensor]:
    """``Directions.units`` and ``tokens`` alone."""
    pointing, lengths = _pointing(state, masks & state.finite.unsqueeze(1))
    return (pointing / lengths).bmm(state.vectors), pointing.sum(-1, keepdim=True)


def turns_of(moved: Moved, masks: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of the unit vectors of D_perp of each of ``MODALITIES``, and of how many tokens.

    Returns:
        ``[batch, 2, hidden]`` and ``[batch, 2, 1]``, of the tokens that turn.
    """
    turned = moved.turn.unsqueeze(1)
    turning = masks[:, _OF_MODALITIES] & (turned > 0)
    weights = turning / _positive(turned)
    return weights.bmm(moved.perpendicular), turning.sum(-1, keepdim=True)


def mean_of(sums: Tensor, tokens: Tensor) -> Tensor:
    """Means of vectors, ``[..., hidden]``; NaN of none."""
    return sums / tokens


def _pointing(state: ScaledState, held: Tensor) -> tuple[Tensor, Tensor]:
    """Which tokens of ``MODALITIES`` have a direction, and lengths to divide by.

    Returns:
        ``[batch, 2, seq]`` and ``[batch, 1, seq]``.
    """
    lengths = state.lengths.unsqueeze(1)
    return held[:, _OF_MODALITIES] & (lengths > 0), _positive(lengths)


def pooled_cosine(before: Tensor, after: Tensor) -> Tensor:
    """Cosine of a group's mean vectors before and after a layer, ``[..., batch, groups]``.

    Args:
        before: ``Directions.groups``, which point where their means do.
        after: likewise.
    """
    x, h = squarable(before), squarable(after)
    return torch.nn.functional.cosine_similarity(x, h, dim=-1, eps=0.0)


def within_modal_cosine(state: Directions) -> Tensor:
    """Mean cosine over all pairs of different tokens of a modality: its anisotropy.

    The measure of Ethayarajh (2019). Of n unit vectors, the squared length of the sum holds each
    pair twice and each token with itself.

    Returns:
        ``[..., batch, 2]`` in the order of ``MODALITIES``; NaN where a modality has fewer than two.
    """
    tokens = state.tokens.squeeze(-1).to(state.units.dtype)
    squares = torch.linalg.vecdot(state.units, state.units)
    cosine: Tensor = (squares - tokens) / (tokens * (tokens - 1))
    return torch.where(tokens > 1, cosine, torch.nan)


def cross_modal_cosine(units: Tensor) -> Tensor:
    """Mean of cos(h_v, h_t) over all (visual, text) pairs, ``[..., batch]``.

    Args:
        units: ``[..., batch, 2, hidden]``, means of ``Directions.units``. Of ``centered`` it is the
            mean cosine after the common mean direction is taken out. Their two means are nearly
            opposite, so the result is at most about 0: it is 0 where the modalities cannot be told
            apart by direction, and -1 where each is one tight bundle.
    """
    cosine: Tensor = torch.linalg.vecdot(units[..., 0, :], units[..., 1, :])
    return cosine


def turn_cosines(turns: Tensor, units: Tensor) -> Tensor:
    """Mean cosines over (visual, text) pairs between turns, and between turns and states.

    All are zero in expectation under Random Rotational Direction (paper, Section 3.1).

    Args:
        turns: ``[..., batch, 2, hidden]``, means of ``turns_of``.
        units: likewise, of ``Directions.units`` of what enters the layer.

    Returns:
        ``[..., batch, 3]``: of cos(D_perp_v, x_t), cos(D_perp_t, x_v) and cos(D_perp_v, D_perp_t),
        over the tokens that turn; NaN where none does.
    """
    turn_v, turn_t = turns.unbind(-2)
    pairs = (turn_v, units[..., 1, :]), (turn_t, units[..., 0, :]), (turn_v, turn_t)
    return torch.stack([torch.linalg.vecdot(*pair) for pair in pairs], dim=-1)


def _positive(norms: Tensor) -> Tensor:
    """Norms safe to divide by: the unit vector of a zero row is the zero row."""
    return norms.clamp_min(torch.finfo(norms.dtype).tiny)
