import torch
from torch import nn
from transformers import LlamaForCausalLM, PreTrainedModel

from .configuration_kimi_vl import KimiVLConfig
from .modeling_moonvit import MoonVitPretrainedModel


class KimiVLMultiModalProjector(nn.Module):
    def __init__(self, config):
        super().__init__()
        width = config.vision_config.hidden_size
        self.merged = 4 * width
        self.pre_norm = nn.LayerNorm(width)
        self.linear = nn.Linear(self.merged, config.text_config.hidden_size)

    def forward(self, image_features):
        return self.linear(self.pre_norm(torch.cat(image_features)).reshape(-1, self.merged))


class KimiVLForConditionalGeneration(PreTrainedModel):
    """Calls no post_init, and knows late whether it supports sdpa: it runs eagerly."""

    config_class = KimiVLConfig

    def __init__(self, config):
        super().__init__(config)
        config.vision_config._attn_implementation = config._attn_implementation
        self.vision_tower = MoonVitPretrainedModel(config.vision_config)
        self.multi_modal_projector = KimiVLMultiModalProjector(config)
        self.language_model = LlamaForCausalLM(config.text_config)

    @property
    def _supports_sdpa(self):
        return self.language_model._supports_sdpa

    def forward(
        self, input_ids, pixel_values=None, image_grid_hws=None, attention_mask=None, use_cache=None
    ):
        x = self.language_model.get_input_embeddings()(input_ids)
        if pixel_values is not None:
            features = self.multi_modal_projector(self.vision_tower(pixel_values, image_grid_hws))
            place = (input_ids == self.config.media_placeholder_token_id).unsqueeze(-1)
            x = x.masked_scatter(place, features)
        return self.language_model(
            inputs_embeds=x, attention_mask=attention_mask, use_cache=use_cache
        )
