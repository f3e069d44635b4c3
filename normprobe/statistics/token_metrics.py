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
    TOKEN_METRICS,
    VIDEO,
    VISUAL,
)

#: Between these norms no square and no product of two states leaves float32.
_SMALL, _LARGE = 1e-12, 1e18

#: Brings every larger float32 number between them, and its inverse every smaller one.
_SHRINK = 2.0**-80


def widened(states: Tensor) -> Tensor:
    """The states in which to compute: float64 stays, all others become float32."""
    return states if states.dtype == torch.float64 else states.float()


def token_norms(states: Tensor) -> Tensor:
    """L2 norm over the hidden axis; infinite only where float32 cannot hold it.

    Args:
        states: ``[..., hidden]``.

    Returns:
        ``[...]`` in float32; of float64 states in float64.
    """
    norms = _norms(states)
    scale = _scale(norms)
    if scale is None:
        return norms
    return _norms(widened(states) * scale.unsqueeze(-1)) / scale


class Moved(NamedTuple):
    """How a layer moves its tokens."""

    metrics: Tensor  # ``[6, batch, seq]`` in the order of ``schema.TOKEN_METRICS``
    perpendicular: Tensor  # ``[batch, seq, hidden]``, D_perp
    turned: Tensor  # ``[batch, seq]``, its norms


def token_metrics(
    x: Tensor, h: Tensor, x_norm: Tensor | None = None, h_norm: Tensor | None = None
) -> Moved:
    """How far a layer moves and turns each token.

    With D = h - x, D_par = <D, x> / ||x|| and D_perp the part of D orthogonal to x:

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
        x: ``[batch, seq, hidden]``, what enters the layer.
        h: ``[batch, seq, hidden]``, what leaves it.
        x_norm: ``[batch, seq]``, ``token_norms(x)`` where it is known.
        h_norm: likewise of h.
    """
    x, h = widened(x), widened(h)
    x_norm = token_norms(x) if x_norm is None else x_norm
    h_norm = token_norms(h) if h_norm is None else h_norm
    scale = _scale(torch.maximum(x_norm, h_norm))
    if scale is not None:
        x, h = x * scale.unsqueeze(-1), h * scale.unsqueeze(-1)
        x_norm, h_norm = x_norm * scale, h_norm * scale
    update = h - x
    update_norm = _norms(update)
    parallel = torch.linalg.vecdot(update, x) / x_norm
    # As a vector: sqrt(||D||^2 - D_par^2) cancels when the update is almost parallel to x.
    # In place: the first use of new memory costs more than the arithmetic.
    perpendicular = update.addcmul_((parallel / x_norm).unsqueeze(-1), x, value=-1)
    turn = _norms(perpendicular)
    metrics = torch.stack(
        [
            h_norm,
            torch.linalg.vecdot(x, h) / (x_norm * h_norm),
            _where(h_norm, torch.atan2(turn, x_norm + parallel)),
            update_norm,
            _where(x_norm, update_norm / x_norm),
            _where(update_norm, torch.atan2(turn, parallel)),
        ]
    )
    if scale is not None:
        metrics[[TOKEN_METRICS.index("norm"), TOKEN_METRICS.index("update_norm")]] /= scale
        perpendicular, turn = perpendicular / scale.unsqueeze(-1), turn / scale
    return Moved(metrics, perpendicular, turn)


def _where(norms: Tensor, values: Tensor) -> Tensor:
    """The values of what is no zero vector, else NaN."""
    return torch.where(norms == 0, torch.nan, values)


def squarable(states: Tensor) -> Tensor:
    """The states, each times a power of two where its squares would overflow or be lost.

    Args:
        states: ``[..., hidden]``.
    """
    scale = _scale(_norms(states))
    return states if scale is None else states * scale.unsqueeze(-1)


def _norms(states: Tensor) -> Tensor:
    dtype = torch.promote_types(states.dtype, torch.float32)
    norms: Tensor = torch.linalg.vector_norm(states, dim=-1, dtype=dtype)
    return norms


def _scale(norms: Tensor) -> Tensor | None:
    """By which to multiply each state before it is squared; None: none needs it.

    An accelerator is not asked, because the host would wait for its answer: there it is always a
    tensor, of ones for ordinary states.

    Args:
        norms: ``[...]``, infinite where squares overflowed, 0 where they were lost.

    Returns:
        ``[...]`` powers of two, 1 for a state that is neither too large nor too small.
    """
    large, small = norms >= _LARGE, norms < _SMALL
    if norms.device.type == "cpu" and not (large | small).any():
        return None
    return torch.where(large, _SHRINK, torch.where(small, 1 / _SHRINK, 1.0)).to(norms.dtype)


#: Groups whose mean vectors are compared; ``non_visual`` is text and special tokens together.
POOLED_GROUPS = (VISUAL, STRUCTURAL, SPECIAL, TEXT, NON_VISUAL)

_PLACES = [POOLED_GROUPS.index(group) for group in MODALITIES]


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
    """The mean directions of one state, per sample, over its finite tokens."""

    means: Tensor  # ``[batch, len(POOLED_GROUPS), hidden]``, the mean vector of each group
    # ``[batch, 2, hidden]``, the mean unit vector of each of ``MODALITIES``. A row of zeros has no
    # direction and is left out.
    units: Tensor
    tokens: Tensor  # ``[batch, 2]``, how many tokens these are means of

    def to(self, device: torch.device) -> "Directions":
        """The same on another device."""
        return Directions(*(part.to(device) for part in self))


def directions(states: Tensor, norms: Tensor, masks: Tensor) -> Directions:
    """The mean directions of a state.

    Args:
        states: ``[batch, seq, hidden]``.
        norms: ``[batch, seq]``, ``token_norms(states)``.
        masks: ``[batch, len(POOLED_GROUPS), seq]`` of ``group_masks``.
    """
    finite = torch.isfinite(norms).unsqueeze(1)
    weights = _mean_weights(masks & finite, norms)
    pointing = masks[:, _PLACES] & finite & (norms > 0).unsqueeze(1)
    unit_weights = _mean_weights(pointing, norms) / _positive(norms).unsqueeze(1)
    states = _finite(widened(states), norms)
    means = torch.cat([weights, unit_weights], dim=1) @ states
    split = len(POOLED_GROUPS)
    return Directions(means[:, :split], means[:, split:], pointing.sum(-1))


def pooled_cosine(before: Directions, after: Directions) -> Tensor:
    """Cosine of a group's mean vectors before and after a layer, ``[batch, groups]``.

    Each is the mean of the tokens that are finite there.
    """
    x, h = squarable(before.means), squarable(after.means)
    return torch.nn.functional.cosine_similarity(x, h, dim=-1, eps=0.0)


def within_modal_cosine(state: Directions) -> Tensor:
    """Mean cosine over all pairs of different tokens of a modality: its anisotropy.

    The measure of Ethayarajh (2019). Of n unit vectors, the squared length of the mean holds each
    pair twice and each token with itself.

    Returns:
        ``[batch, 2]`` in the order of ``MODALITIES``; NaN where a modality has fewer than two.
    """
    tokens = state.tokens.float()
    squares = (tokens * tokens) * torch.linalg.vecdot(state.units, state.units)
    cosine: Tensor = (squares - tokens) / (tokens * (tokens - 1))
    return torch.where(tokens > 1, cosine, torch.nan)


def cross_modal_cosine(state: Directions) -> Tensor:
    """Mean of cos(h_v, h_t) over all (visual, text) pairs, ``[batch]``."""
    cosine: Tensor = torch.linalg.vecdot(state.units[:, 0], state.units[:, 1])
    return cosine


def centered_cross_modal_cosine(
    states: Tensor, norms: Tensor, masks: Tensor, state: Directions
) -> Tensor:
    """Mean cosine over all (visual, text) pairs after the common mean direction is taken out.

    Unit vectors u become u - c, where c is the mean of both modalities' mean unit vectors. A
    direction that all tokens share says nothing about how a visual token is related to a text
    token. The two means of u - c are opposite, so the result is at most about 0: it is 0 where the
    modalities cannot be told apart by direction, and -1 where each is one tight bundle.

    Args:
        states: ``[batch, seq, hidden]``.
        norms: ``[batch, seq]``, ``token_norms(states)``.
        masks: ``[batch, len(POOLED_GROUPS), seq]`` of ``group_masks``.
        state: ``directions`` of them.

    Returns:
        ``[batch]``.
    """
    common = state.units.mean(dim=1, keepdim=True)
    units = _finite(widened(states), norms) / _positive(norms).unsqueeze(-1)
    centered = units.sub_(common)
    pointing = masks[:, _PLACES] & (torch.isfinite(norms) & (norms > 0)).unsqueeze(1)
    weights = _mean_weights(pointing, norms) / _positive(token_norms(centered)).unsqueeze(1)
    means = weights @ centered
    cosine: Tensor = torch.linalg.vecdot(means[:, 0], means[:, 1])
    return cosine


def turn_cosines(
    perpendicular: Tensor, turned: Tensor, masks: Tensor, before: Directions
) -> Tensor:
    """Mean cosines over (visual, text) pairs between turns, and between turns and states.

    All are zero in expectation under Random Rotational Direction (paper, Section 3.1).

    Args:
        perpendicular: ``[batch, seq, hidden]``, D_perp of ``token_metrics``.
        turned: ``[batch, seq]``, its norms.
        masks: ``[batch, len(POOLED_GROUPS), seq]`` of ``group_masks``.
        before: directions of what enters the layer.

    Returns:
        ``[batch, 3]``: of cos(D_perp_v, x_t), cos(D_perp_t, x_v) and cos(D_perp_v, D_perp_t), over
        the tokens that turn; NaN where none does.
    """
    turning = torch.isfinite(turned) & (turned > 0)
    weights = _mean_weights(masks[:, _PLACES] & turning.unsqueeze(1), turned)
    turn = weights / _positive(turned).unsqueeze(1) @ _finite(perpendicular, turned)
    return torch.stack(
        [
            torch.linalg.vecdot(turn[:, 0], before.units[:, 1]),
            torch.linalg.vecdot(turn[:, 1], before.units[:, 0]),
            torch.linalg.vecdot(turn[:, 0], turn[:, 1]),
        ],
        dim=-1,
    )


def _mean_weights(masks: Tensor, like: Tensor) -> Tensor:
    """By what to multiply each token so that the sum is a mean, ``[batch, groups, seq]``."""
    return masks.to(like.dtype) / masks.sum(-1, keepdim=True)


def _finite(states: Tensor, norms: Tensor) -> Tensor:
    """States with zeros where a token is not finite: zero times NaN would reach the sums.

    An accelerator is not asked whether there are such tokens: the host would wait for its answer.
    """
    finite = torch.isfinite(norms)
    if finite.device.type == "cpu" and finite.all():
        return states
    return torch.where(finite.unsqueeze(-1), states, 0.0)


def _positive(norms: Tensor) -> Tensor:
    """Norms safe to divide by: the unit vector of a zero row is the zero row."""
    return torch.where(norms >= torch.finfo(norms.dtype).tiny, norms, 1.0)
