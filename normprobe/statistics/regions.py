"""Visual tokens inside and outside a region of the picture. Pure functions of tensors."""

import torch
from torch import Tensor

from normprobe.statistics.token_metrics import token_norms


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
