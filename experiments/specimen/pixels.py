"""Pictures to model input, exactly as the processor does it for 64 x 64 pixel images."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

# Channel means and deviations of the CLIP image processor, shape (3, 1, 1).
_MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073])[:, None, None]
_STD = torch.tensor([0.26862954, 0.26130258, 0.27577711])[:, None, None]


def to_pixel_values(pictures: Sequence[NDArray[np.uint8]]) -> torch.Tensor:
    """Normalise pictures; the full processor is too slow for a training loop.

    Args:
        pictures: B pictures of shape (64, 64, 3).

    Returns:
        Pixel values of shape (B, 3, 64, 64).
    """
    stacked = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)
    return (stacked.float() / 255 - _MEAN) / _STD
