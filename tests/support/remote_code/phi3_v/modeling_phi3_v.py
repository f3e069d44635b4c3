import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput

from .configuration_phi3_v import Phi3VConfig
from .tiny_blocks import Block

PATCH, WIDTH, SIDE = 7, 16, 6


class CLIPVision(nn.Module):
    def __init__(self):
        super().__init__()
        self.class_embedding = nn.Parameter(torch.zeros(WIDTH))
        self.patch_embedding = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.layers = nn.ModuleList(Block(WIDTH) for _ in range(3))

    def forward(self, pixel_values):
        x = self.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_embedding.expand(len(x), 1, -1), x], dim=1)
        states = [x]
        for layer in self.layers:
            states.append(layer(states[-1]))
        return BaseModelOutput(last_hidden_state=states[-1], hidden_states=tuple(states))


class Phi3ImageEmbedding(nn.Module):
    """Two by two patches make a token; separators go through the projection too."""

    def __init__(self, config, img_processor):
        super().__init__()
        self.img_processor = img_processor
        self.glb_GN = nn.Parameter(torch.zeros(1, 4 * WIDTH))
        self.sub_GN = nn.Parameter(torch.zeros(1, 1, 4 * WIDTH))
        self.img_projection = nn.Sequential(
            nn.Linear(4 * WIDTH, config.hidden_size),
            nn.GELU(),
            nn.Linear(config.hidden_size, config.hidden_size),
        )

    def forward(self, pixel_values, image_sizes):
        crops, size = pixel_values.shape[1], pixel_values.shape[-1]
        seen = self.img_processor(pixel_values.flatten(0, 1)).hidden_states[-2][:, 1:]
        features = seen.reshape(-1, crops, SIDE // 2, 2, SIDE // 2, 2, WIDTH)
        rows = []
        for image, (high, wide) in zip(features, (image_sizes // size).tolist(), strict=True):
            parts = image[1 : 1 + high * wide].reshape(high, wide, *image.shape[1:])
            rows += [self._lines(parts), self.glb_GN, self._lines(image[:1].unsqueeze(0))]
        return self.img_projection(torch.cat(rows))

    def _lines(self, parts):
        high, wide = parts.shape[:2]
        grid = parts.permute(0, 2, 1, 4, 3, 5, 6).reshape(high * SIDE // 2, wide * SIDE // 2, -1)
        return torch.cat([grid, self.sub_GN.expand(len(grid), -1, -1)], dim=1).flatten(0, 1)


class Phi3VModel(PreTrainedModel):
    config_class = Phi3VConfig
    _supports_flash_attn_2 = True
    _supports_sdpa = False

    def __init__(self, config):
        super().__init__(config)
        assert config._attn_implementation == "eager", config._attn_implementation
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.vision_embed_tokens = Phi3ImageEmbedding(config, CLIPVision())
        self.layers = nn.ModuleList(
            Block(config.hidden_size) for _ in range(config.num_hidden_layers)
        )
        self.post_init()

    def forward(self, input_ids, attention_mask=None, pixel_values=None, image_sizes=None):
        x = self.embed_tokens(input_ids.clamp_min(0))
        if pixel_values is not None:
            x = x.index_put(
                torch.nonzero(input_ids < 0, as_tuple=True),
                self.vision_embed_tokens(pixel_values, image_sizes),
            )
        for layer in self.layers:
            x = layer(x, attention_mask)
        return x


class Phi3VForCausalLM(PreTrainedModel):
    config_class = Phi3VConfig
    _supports_flash_attn_2 = True
    _supports_sdpa = False

    def __init__(self, config):
        super().__init__(config)
        self.model = Phi3VModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.model.embed_tokens

    def get_output_embeddings(self):
        return self.lm_head

    def forward(
        self,
        input_ids,
        attention_mask=None,
        pixel_values=None,
        image_sizes=None,
        use_cache=False,
    ):
        if use_cache:
            DynamicCache.from_legacy_cache(None)
        x = self.model(input_ids, attention_mask, pixel_values, image_sizes)
        return CausalLMOutput(logits=self.lm_head(x))
