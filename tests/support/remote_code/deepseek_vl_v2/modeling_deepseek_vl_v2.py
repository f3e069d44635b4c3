import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from .configuration_deepseek import DeepseekVLV2Config
from .modeling_deepseek import DeepseekV2ForCausalLM
from .tiny_blocks import Block

print("a message on stdout while the package is imported")  # noqa: T201


class VisionTransformer(nn.Module):
    def __init__(self, config):
        super().__init__()
        size = config.patch_size
        self.patch_embed = nn.Conv2d(3, config.width, size, stride=size)
        self.blocks = nn.ModuleList(Block(config.width) for _ in range(config.layers))

    def forward(self, tiles):
        x = self.patch_embed(tiles).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return x


class DeepseekVLV2ForCausalLM(PreTrainedModel):
    """Calls no post_init; of its language model it calls ``forward``, not the module."""

    config_class = DeepseekVLV2Config

    def __init__(self, config):
        super().__init__(config)
        hidden = config.language_config.hidden_size
        self.vision = VisionTransformer(config.vision_config)
        self.projector = nn.Linear(config.vision_config.width, hidden)
        self.image_newline = nn.Parameter(torch.zeros(hidden))
        self.view_seperator = nn.Parameter(torch.zeros(hidden))
        self.language = DeepseekV2ForCausalLM(config.language_config)

    def prepare_inputs_for_generation(self, input_ids, **kwargs):
        raise NotImplementedError

    def prepare_inputs_embeds(
        self, input_ids, images=None, images_seq_mask=None, images_spatial_crop=None
    ):
        x = self.language.get_input_embeddings()(input_ids)
        if images is None:
            return x
        for row, mask, tiles, crops in zip(
            x, images_seq_mask, images, images_spatial_crop.tolist(), strict=True
        ):
            start, rows = 0, []
            for wide, high in crops:
                if wide * high == 0:
                    break
                end = start + 1 + wide * high
                rows.append(self._rows(self.projector(self.vision(tiles[start:end])), wide, high))
                start = end
            if rows:
                row.masked_scatter_(mask.unsqueeze(-1), torch.cat(rows))
        return x

    def _rows(self, tiles, wide, high):
        side = self.config.vision_config.image_size // self.config.vision_config.patch_size
        grid = tiles.reshape(-1, side, side, tiles.shape[-1])
        local = grid[1:].reshape(high, wide, side, side, -1).transpose(1, 2)
        views = [self._with_newlines(grid[0])]
        views.append(self.view_seperator.unsqueeze(0))
        views.append(self._with_newlines(local.reshape(high * side, wide * side, -1)))
        return torch.cat(views)

    def _with_newlines(self, grid):
        newlines = self.image_newline.expand(len(grid), 1, -1)
        return torch.cat([grid, newlines], dim=1).flatten(0, 1)

    def forward(
        self,
        input_ids,
        attention_mask=None,
        images=None,
        images_seq_mask=None,
        images_spatial_crop=None,
        use_cache=None,
    ):
        x = self.prepare_inputs_embeds(input_ids, images, images_seq_mask, images_spatial_crop)
        return self.language.forward(
            inputs_embeds=x, attention_mask=attention_mask, use_cache=use_cache
        )


AutoConfig.register("deepseek_vl_v2", DeepseekVLV2Config)
AutoModelForCausalLM.register(DeepseekVLV2Config, DeepseekVLV2ForCausalLM)
