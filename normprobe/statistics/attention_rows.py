"""What text attends to, and what lies inside and outside a region. Pure functions of tensors."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from normprobe.statistics.token_metrics import token_norms


class VisualAttention(NamedTuple):
    """How some query rows of one layer attend to visual keys."""

    share: Tensor  # ``[heads, rows]``, sum of the weights on visual keys
    # ``[heads, rows]``, that sum if the row spread evenly over the keys it may see
    even_share: Tensor
    # ``[heads, rows]``, nats, of the weights on visual keys renormalised to sum 1; NaN where a row
    # gives them nothing
    entropy: Tensor
    by_key: Tensor  # ``[heads, rows, visual keys]``, the weights


def attention_scores(
    query: Tensor,
    key: Tensor,
    rows: Tensor,
    *,
    scaling: float | None,
    mask: Tensor | None,
    bias: Tensor | None,
    causal: bool,
) -> Tensor:
    """Rows of q k^T scaling + bias + mask of one sample: what SDPA gives to the softmax.

    Args:
        query: ``[heads, queries, width]``.
        key: ``[key heads, keys, width]``; each key head serves heads / key heads in a row (GQA).
        rows: ``[rows]`` query positions.
        scaling: of the scores; None: 1 / sqrt(width).
        mask: ``[1 or heads, queries, keys]``, bool (True: may attend) or added to the scores.
        bias: ``[1 or heads, queries, keys]``, added to the scores.
        causal: a query sees no later key.

    Returns:
        ``[heads, rows, keys]`` float32; -inf where a row may not attend.
    """
    key = key.repeat_interleave(len(query) // len(key), dim=0)
    scores = query[:, rows].float() @ key.float().transpose(1, 2)
    scores *= query.shape[-1] ** -0.5 if scaling is None else scaling
    for added in (bias, mask):
        if added is None:
            continue
        chosen = added[:, rows, : scores.shape[-1]]
        if chosen.dtype == torch.bool:
            scores = scores.masked_fill(~chosen, -torch.inf)
        else:
            scores = scores + chosen.float()
    if causal:
        later = torch.arange(scores.shape[-1], device=rows.device) > rows.unsqueeze(-1)
        scores = scores.masked_fill(later, -torch.inf)
    return scores


def visual_attention(weights: Tensor, visual: Tensor) -> VisualAttention:
    """Reduce attention rows to what they give to visual keys.

    Args:
        weights: ``[heads, rows, keys]``, the softmax of ``attention_scores``, or what a model
            returns.
        visual: ``[keys]`` bool.

    Returns:
        The reduced rows, float32.
    """
    weights = weights.float()
    on_visual = weights[..., visual]
    share = on_visual.sum(-1)
    seen = (weights > 0).sum(-1)  # a masked key has weight zero
    renormalised = on_visual / share.unsqueeze(-1)
    return VisualAttention(
        share=share,
        even_share=(on_visual > 0).sum(-1) / seen,
        entropy=torch.special.entr(renormalised).sum(-1),
        by_key=on_visual,
    )


def signal_to_noise(by_key: Tensor, inside: Tensor) -> float:
    """Attention that a visual token draws inside a region, over what one outside draws.

    In the spirit of Eq. 21 of the paper, which sets the scores of relevant visual tokens (signal)
    against those of irrelevant ones (noise): here after the softmax, as a ratio, and relevance is
    to lie in the region. ``score_gap`` is before the softmax.

    Args:
        by_key: ``[visual keys]`` attention weights.
        inside: ``[visual keys]`` share of each token's place that lies in the region, 0 to 1.

    Returns:
        Weighted mean inside / weighted mean outside: 1 for even attention. NaN where the region
        holds no token, or every one.
    """
    signal, noise = region_means(by_key, inside)
    return signal / noise if noise else math.nan


def score_gap(by_key: Tensor, inside: Tensor) -> float:
    """How much higher attention scores are inside a region than outside (Eq. 21).

    Args:
        by_key: ``[visual keys]`` mean scores before the softmax.
        inside: as in ``signal_to_noise``.

    Returns:
        Weighted mean inside - weighted mean outside: 0 for even attention; the logarithm of a ratio
        of weights. NaN where the region holds no token or every one, or a token cannot be seen.
    """
    signal, noise = region_means(by_key, inside)
    gap = signal - noise
    return gap if math.isfinite(gap) else math.nan


def region_means(by_token: Tensor, inside: Tensor) -> tuple[float, float]:
    """Means inside and outside a region, weighted by how much of each token's place lies there.

    Args:
        by_token: ``[visual tokens]``.
        inside: ``[visual tokens]`` share of each token's place that lies in the region, 0 to 1.

    Returns:
        Both means; NaN where the region holds no token, or every one.
    """
    by_token, inside = by_token.double(), inside.double()
    signal, noise = ((by_token * part).sum() / part.sum() for part in (inside, 1.0 - inside))
    return float(signal), float(noise)


def cosines_to_word(states: Tensor, word: Tensor, visual: Tensor) -> Tensor:
    """The cosine of each visual token with the tokens of a word, averaged over these.

    Args:
        states: ``[positions, hidden]``.
        word: ``[word tokens]`` positions.
        visual: ``[visual tokens]`` positions.

    Returns:
        ``[visual tokens]`` float32; NaN where a state is zero or not finite.
    """
    of_word, of_image = (states[chosen].float() for chosen in (word, visual))
    unit = of_word / token_norms(of_word).unsqueeze(-1)
    # The mean of products is the product with the mean: no pair is formed.
    cosines: Tensor = of_image @ unit.mean(dim=0) / token_norms(of_image)
    return torch.where(torch.isfinite(cosines), cosines, torch.nan)
