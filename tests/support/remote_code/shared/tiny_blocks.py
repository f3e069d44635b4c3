"""What the miniatures have in common: a block that mixes rows, and an image as numbers."""

import numpy as np
import torch
from torch import nn


class Block(nn.Module):
    """A residual block in which every row also sees the mean of the rows that count."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, hidden_states, mask=None):
        x = self.norm(hidden_states)
        if mask is None:
            mean = x.mean(dim=-2, keepdim=True)
        else:
            weight = mask.to(x).unsqueeze(-1)
            mean = (x * weight).sum(-2, keepdim=True) / weight.sum(-2, keepdim=True)
        return hidden_states + nn.functional.gelu(self.linear(x + mean))


def pixels_of(image, width, height):
    """[3, height, width], from -1 to 1."""
    values = np.asarray(image.convert("RGB").resize((width, height)), dtype=np.float32)
    return torch.from_numpy(values / 127.5 - 1).permute(2, 0, 1)


def patches_of(pixels, size):
    """[3, height, width] to [rows, columns, 3, size, size]."""
    channels, height, width = pixels.shape
    grid = pixels.reshape(channels, height // size, size, width // size, size)
    return grid.permute(1, 3, 0, 2, 4)
