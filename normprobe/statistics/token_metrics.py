"""The arithmetic of one decoder layer: x enters it, h leaves it. Pure functions of tensors.

Everything is computed in float32, whatever the dtype of the states: bfloat16 arithmetic errs by
3e-3, and float16 squared sums overflow on massive activations. Squares of states beyond 1.8e19
overflow float32, too: such tokens are scaled by a power of two first, which rounds nothing.
"""

import torch
from torch import Tensor

from normprobe.schema import NON_VISUAL, SPECIAL, TEXT, TOKEN_GROUPS, TOKEN_METRICS, VISUAL

#: Groups whose mean vectors are compared; ``non_visual`` is text and special tokens together.
POOLED_GROUPS = (*TOKEN_GROUPS, NON_VISUAL)


#: Below this norm no square, and no product of two states, overflows float32.
_LARGE = 1e18
#: Brings every float32 number to where its squares do not overflow.
_SHRINK = 2.0**-80


def token_norms(states: Tensor) -> Tensor:
    """L2 norm over the hidden axis, in float32; infinite only where float32 cannot hold it.

    Args:
        states: ``[..., hidden]``.

    Returns:
        ``[...]``.
    """
    norms = _norms(states)
    scale = _scale(norms)
    if scale is None:
        return norms
    return _norms(states.float() * scale.unsqueeze(-1)) / scale


def token_metrics(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
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

    Args:
        x: ``[batch, seq, hidden]``, what enters the layer.
        h: ``[batch, seq, hidden]``, what leaves it.

    Returns:
        The metrics ``[6, batch, seq]`` in the order of ``schema.TOKEN_METRICS``, and D_perp
        ``[batch, seq, hidden]``.
    """
    x, h = x.float(), h.float()
    x_norm, h_norm = _norms(x), _norms(h)
    scale = _scale(torch.maximum(x_norm, h_norm))
    if scale is not None:
        x, h = x * scale.unsqueeze(-1), h * scale.unsqueeze(-1)
        x_norm, h_norm = _norms(x), _norms(h)
    update = h - x
    parallel = torch.linalg.vecdot(update, x) / x_norm
    # As a vector: sqrt(||D||^2 - D_par^2) cancels when the update is almost parallel to x.
    perpendicular = update - (parallel / x_norm).unsqueeze(-1) * x
    update_norm, turn = _norms(update), _norms(perpendicular)
    metrics = torch.stack(
        [
            h_norm,
            torch.linalg.vecdot(x, h) / (x_norm * h_norm),
            torch.atan2(turn, x_norm + parallel),
            update_norm,
            update_norm / x_norm,
            torch.atan2(turn, parallel),
        ]
    )
    if scale is not None:
        metrics[[TOKEN_METRICS.index("norm"), TOKEN_METRICS.index("update_norm")]] /= scale
        perpendicular = perpendicular / scale.unsqueeze(-1)
    return metrics, perpendicular


def _norms(states: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(states, dim=-1, dtype=torch.float32)
    return norms


def _scale(norms: Tensor) -> Tensor | None:
    """By which to multiply each state before it is squared; None: none needs it.

    An accelerator is not asked, because the host would wait for its answer: there it is always a
    tensor, of ones for ordinary states.

    Args:
        norms: ``[...]``, infinite where squares overflowed.

    Returns:
        ``[...]`` powers of two, 1 for a state that is not too large.
    """
    large = norms >= _LARGE
    if large.device.type == "cpu" and not large.any():
        return None
    return torch.where(large, _SHRINK, 1.0)


def group_masks(groups: Tensor) -> Tensor:
    """One mask a pooled group.

    Args:
        groups: ``[batch, seq]`` codes of ``schema.TOKEN_GROUPS``, padding negative.

    Returns:
        ``[batch, len(POOLED_GROUPS), seq]`` bool.
    """
    masks = [groups == code for code in range(len(TOKEN_GROUPS))]
    masks.append(masks[TOKEN_GROUPS.index(TEXT)] | masks[TOKEN_GROUPS.index(SPECIAL)])
    return torch.stack(masks, dim=1)


def pooled_metrics(x: Tensor, h: Tensor, perpendicular: Tensor, masks: Tensor) -> Tensor:
    """Per sample: cosines of mean vectors within a group, and across visual and text tokens.

    - pooled_cosine of a group: cosine of its mean vectors before and after the layer
    - cross_modal_cosine: mean of cos(h_v, h_t) over all (visual, text) pairs
    - visual_turn_to_text: mean of cos(D_perp_v, x_t) over the pairs, zero in expectation under
      Random Rotational Direction (paper, Section 3.1); text_turn_to_visual: the reverse
    - turn_to_turn: mean of cos(D_perp_v, D_perp_t) over the pairs, zero likewise

    The mean over pairs equals the dot product of the two mean unit vectors, so no pair is formed.
    A group without tokens gives NaN.

    Args:
        x: ``[batch, seq, hidden]``, what enters the layer.
        h: ``[batch, seq, hidden]``, what leaves it.
        perpendicular: ``[batch, seq, hidden]``, D_perp of ``token_metrics``.
        masks: ``[batch, len(POOLED_GROUPS), seq]`` of ``group_masks``.

    Returns:
        ``[batch, len(POOLED_GROUPS) + 4]``: pooled_cosine of each group, then
        ``schema.PAIR_METRICS``.
    """
    x, h = x.float(), h.float()
    # Zero times NaN is NaN: padded rows and overflowed states must not reach the sums.
    usable = torch.isfinite(token_norms(h) + token_norms(x)) & masks.any(1)
    masks = masks & usable.unsqueeze(1)
    keep = usable.unsqueeze(-1)
    x, h, perpendicular = (torch.where(keep, state, 0.0) for state in (x, h, perpendicular))
    weights = masks / masks.sum(-1, keepdim=True)
    pair = [POOLED_GROUPS.index(VISUAL), POOLED_GROUPS.index(TEXT)]
    unit_weights = weights[:, pair]

    mean_x, unit_x = _means(x, weights, unit_weights)
    mean_h, unit_h = _means(h, weights, unit_weights)
    turn = unit_weights / _positive(token_norms(perpendicular)).unsqueeze(1) @ perpendicular
    mean_x, mean_h = _squarable(mean_x), _squarable(mean_h)
    pooled = torch.linalg.vecdot(mean_x, mean_h) / (_norms(mean_x) * _norms(mean_h))
    crossed = torch.stack(
        [
            torch.linalg.vecdot(unit_h[:, 0], unit_h[:, 1]),
            torch.linalg.vecdot(turn[:, 0], unit_x[:, 1]),
            torch.linalg.vecdot(turn[:, 1], unit_x[:, 0]),
            torch.linalg.vecdot(turn[:, 0], turn[:, 1]),
        ],
        dim=-1,
    )
    return torch.cat([pooled, crossed], dim=-1)


def cross_modal_cosine(states: Tensor, masks: Tensor) -> Tensor:
    """Mean of cos(h_v, h_t) over all (visual, text) pairs of each sample.

    Args:
        states: ``[batch, seq, hidden]``.
        masks: ``[batch, len(POOLED_GROUPS), seq]`` of ``group_masks``.

    Returns:
        ``[batch]``; NaN where a sample lacks one of the two.
    """
    states = states.float()
    masks = masks[:, [POOLED_GROUPS.index(VISUAL), POOLED_GROUPS.index(TEXT)]]
    usable = torch.isfinite(token_norms(states)) & masks.any(1)
    masks = masks & usable.unsqueeze(1)
    states = torch.where(usable.unsqueeze(-1), states, 0.0)
    weights = masks / masks.sum(-1, keepdim=True)
    _, unit = _means(states, weights, weights)
    cosine: Tensor = torch.linalg.vecdot(unit[:, 0], unit[:, 1])
    return cosine


def _means(states: Tensor, weights: Tensor, unit_weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted means of the states, and of the states scaled to unit length, in one product."""
    norms = _positive(token_norms(states)).unsqueeze(1)
    means = torch.cat([weights, unit_weights / norms], dim=1) @ states
    split = weights.shape[1]
    return means[:, :split], means[:, split:]


def _squarable(states: Tensor) -> Tensor:
    """The states, each divided by a power of two where its squares would overflow."""
    scale = _scale(_norms(states))
    return states if scale is None else states * scale.unsqueeze(-1)


def _positive(norms: Tensor) -> Tensor:
    """Norms safe to divide by: the unit vector of a zero row is the zero row."""
    return torch.where(norms > 0, norms, 1.0)
