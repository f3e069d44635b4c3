"""The arithmetic of one decoder layer: x enters it, h leaves it. Pure functions of tensors.

Everything is computed in float32, float64 states in float64: bfloat16 arithmetic errs by 3e-3, and
float16 squared sums overflow on massive activations. Squares of states beyond 1.8e19 overflow
float32, too, and those of states below 1e-19 are lost: such tokens are scaled by a power of two
first, which rounds nothing.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from normprobe.schema import TOKEN_METRICS

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
    """How a layer moves its tokens.

    Attributes:
        metrics: ``[6, batch, seq]`` in the order of ``schema.TOKEN_METRICS``.
        perpendicular: ``[batch, seq, hidden]``, D_perp.
        turned: ``[batch, seq]``, its norms.
    """

    metrics: Tensor
    perpendicular: Tensor
    turned: Tensor


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
