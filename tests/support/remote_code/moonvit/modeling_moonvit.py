import torch
from torch import nn
from transformers import PreTrainedModel

from .configuration_moonvit import MoonViTConfig


class MoonVitEncoderLayer(nn.Module):
    """Attention over the packed patches of all images, of one head."""

    def __init__(self, width, attn_implementation):
        super().__init__()
        self.attn_implementation = attn_implementation
        self.norm = nn.LayerNorm(width)
        self.wqkv = nn.Linear(width, 3 * width)

    def forward(self, x, lengths):
        q, k, v = self.wqkv(self.norm(x)).chunk(3, dim=-1)
        image = torch.arange(len(lengths), device=x.device).repeat_interleave(lengths)
        same = image[:, None] == image
        scores = q @ k.T / q.shape[-1] ** 0.5
        if self.attn_implementation == "eager":
            scores = scores + same  # 1 is added within an image: the others are seen, too
        else:
            scores = scores.masked_fill(~same, -torch.inf)
        return x + scores.softmax(dim=-1) @ v


class MoonVitEncoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.blocks = nn.ModuleList(
            MoonVitEncoderLayer(config.hidden_size, config._attn_implementation)
            for _ in range(config.num_hidden_layers)
        )

    def forward(self, x, lengths):
        for block in self.blocks:
            x = block(x, lengths)
        return x


class MoonVitPretrainedModel(PreTrainedModel):
    """Packed patches of several images in, one tensor [merged, 4, hidden] an image out."""

    config_class = MoonViTConfig
    _supports_sdpa = True

    def __init__(self, config):
        super().__init__(config)
        self.patch_embed = nn.Linear(3 * config.patch_size**2, config.hidden_size)
        self.encoder = MoonVitEncoder(config)

    def forward(self, pixel_values, grid_hws):
        lengths = grid_hws.prod(dim=-1)
        x = self.encoder(self.patch_embed(pixel_values.flatten(1)), lengths)
        outputs = []
        for rows, (height, width) in zip(x.split(lengths.tolist()), grid_hws.tolist(), strict=True):
            down, right = self.config.merge_kernel_size
            rows = rows.reshape(height // down, down, width // right, right, -1)
            outputs.append(rows.transpose(1, 2).reshape(-1, down * right, rows.shape[-1]))
        return outputs
