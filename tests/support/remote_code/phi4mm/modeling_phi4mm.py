import torch
from torch import nn
from transformers import LlamaForCausalLM, LlamaModel
from transformers.modeling_outputs import BaseModelOutput

from .configuration_phi4mm import Phi4MMConfig
from .tiny_blocks import Block

_IMAGE_SPECIAL_TOKEN_ID = 200010
PATCH, WIDTH = 14, 24


class SiglipVisionTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch_embedding = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.layers = nn.ModuleList(Block(WIDTH) for _ in range(3))

    def forward(self, pixel_values, patch_attention_mask=None):
        x = self.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
        states = [x]
        for layer in self.layers:
            states.append(layer(states[-1], patch_attention_mask.flatten(1)))
        return BaseModelOutput(last_hidden_state=states[-1], hidden_states=tuple(states))


class Phi4MMImageEmbedding(nn.Module):
    """Separator rows go through the projection too."""

    def __init__(self, hidden):
        super().__init__()
        self.img_processor = SiglipVisionTransformer()
        self.glb_GN = nn.Parameter(torch.zeros(1, WIDTH))
        self.sub_GN = nn.Parameter(torch.zeros(1, WIDTH))
        self.img_projection = nn.Sequential(
            nn.Linear(WIDTH, hidden), nn.GELU(), nn.Linear(hidden, hidden)
        )

    def forward(self, pixels, mask):
        rows = []
        for crops, kept in zip(pixels, mask, strict=True):
            states = self.img_processor(crops, patch_attention_mask=kept).hidden_states[-2]
            overview, detail = (self._with_newlines(state) for state in states)
            rows.append(self.img_projection(torch.cat([detail, self.glb_GN, overview])))
        return torch.cat(rows)

    def _with_newlines(self, state):
        grid = state.reshape(2, 2, WIDTH)
        return torch.cat([grid, self.sub_GN.expand(2, 1, -1)], dim=1).flatten(0, 1)


class Phi4MMImageAudioEmbedding(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.image_embed = Phi4MMImageEmbedding(hidden)


class Phi4MMModel(LlamaModel):
    config_class = Phi4MMConfig

    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens_extend = Phi4MMImageAudioEmbedding(config.hidden_size)
        self.post_init()


class Phi4MMForCausalLM(LlamaForCausalLM):
    config_class = Phi4MMConfig

    def __init__(self, config):
        super().__init__(config)
        self.model = Phi4MMModel(config)
        self.post_init()

    def forward(
        self,
        input_ids,
        attention_mask=None,
        input_image_embeds=None,
        image_sizes=None,
        image_attention_mask=None,
        input_mode=None,
        use_cache=None,
    ):
        x = self.model.embed_tokens(input_ids)
        if int(input_mode) == 1:
            rows = self.model.embed_tokens_extend.image_embed(
                input_image_embeds, image_attention_mask
            )
            x = x.masked_scatter((input_ids == _IMAGE_SPECIAL_TOKEN_ID).unsqueeze(-1), rows)
        return super().forward(inputs_embeds=x, attention_mask=attention_mask, use_cache=use_cache)
