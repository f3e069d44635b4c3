from torch import nn
from transformers import PreTrainedModel

from .configuration_moonvit import MoonViTConfig
from .tiny_blocks import Block


class MoonVitPretrainedModel(PreTrainedModel):
    """Packed patches of several images in, one tensor [merged, 4, hidden] an image out."""

    config_class = MoonViTConfig

    def __init__(self, config):
        super().__init__(config)
        self.patch_embed = nn.Linear(3 * config.patch_size**2, config.hidden_size)
        self.blocks = nn.ModuleList(
            Block(config.hidden_size) for _ in range(config.num_hidden_layers)
        )
        self.post_init()

    def forward(self, pixel_values, grid_hws):
        outputs = []
        sizes = grid_hws.prod(dim=-1).tolist()
        for patches, (height, width) in zip(
            pixel_values.split(sizes), grid_hws.tolist(), strict=True
        ):
            x = self.patch_embed(patches.flatten(1))
            for block in self.blocks:
                x = block(x)
            down, right = self.config.merge_kernel_size
            x = x.reshape(height // down, down, width // right, right, -1)
            outputs.append(x.transpose(1, 2).reshape(-1, down * right, x.shape[-1]))
        return outputs
