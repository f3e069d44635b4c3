import torch
from torch import nn
from transformers import LlamaForCausalLM, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from .configuration_internvl_chat import InternVisionConfig, InternVLChatConfig
from .conversation import get_conv_template
from .tiny_blocks import Block


class InternVisionEmbeddings(nn.Module):
    def __init__(self, config):
        super().__init__()
        size, width = config.patch_size, config.hidden_size
        self.class_embedding = nn.Parameter(torch.randn(1, 1, width))
        self.patch_embedding = nn.Conv2d(3, width, size, stride=size)

    def forward(self, pixel_values):
        x = self.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
        return torch.cat([self.class_embedding.expand(len(x), -1, -1), x], dim=1)


class InternVisionModel(PreTrainedModel):
    main_input_name = "pixel_values"
    config_class = InternVisionConfig

    def __init__(self, config):
        super().__init__(config)
        # Values are read while the model is built, which the meta device has none of.
        drops = [x.item() for x in torch.linspace(0, config.drop, config.num_hidden_layers)]
        self.embeddings = InternVisionEmbeddings(config)
        self.layers = nn.ModuleList(Block(config.hidden_size) for _ in drops)

    def forward(self, pixel_values, output_hidden_states=None, return_dict=None):
        x = self.embeddings(pixel_values)
        for layer in self.layers:
            x = layer(x)
        return BaseModelOutputWithPooling(last_hidden_state=x, pooler_output=x[:, 0])


class InternVLChatModel(PreTrainedModel):
    """Calls no post_init; its ``generate`` never calls ``forward``."""

    config_class = InternVLChatConfig
    main_input_name = "pixel_values"

    def __init__(self, config, vision_model=None, language_model=None):
        super().__init__(config)
        side = (config.force_image_size or config.vision_config.image_size) // 7
        self.num_image_token = int(side**2 * config.downsample_ratio**2)
        self.scale = int(1 / config.downsample_ratio)
        self.vision_model = vision_model or InternVisionModel(config.vision_config)
        self.language_model = language_model or LlamaForCausalLM(config.llm_config)
        merged = config.vision_config.hidden_size * self.scale**2
        hidden = config.llm_config.hidden_size
        self.mlp1 = nn.Sequential(nn.LayerNorm(merged), nn.Linear(merged, hidden))
        self.img_context_token_id = None
        self.conv_template = get_conv_template(config.template)
        self.system_message = self.conv_template.system_message

    def extract_feature(self, pixel_values):
        x = self.vision_model(pixel_values=pixel_values, return_dict=True).last_hidden_state[:, 1:]
        side, scale = int(x.shape[1] ** 0.5), self.scale
        x = x.reshape(len(x), side // scale, scale, side // scale, scale, -1)
        return self.mlp1(x.transpose(2, 3).reshape(len(x), (side // scale) ** 2, -1))

    def forward(
        self,
        pixel_values,
        input_ids=None,
        attention_mask=None,
        image_flags=None,
        use_cache=None,
        output_attentions=None,
    ):
        flags = image_flags.squeeze(-1)
        x = self.language_model.get_input_embeddings()(input_ids).clone()
        features = self.extract_feature(pixel_values)[flags == 1].flatten(0, 1)
        chosen = input_ids == self.img_context_token_id
        try:
            x[chosen] = x[chosen] * 0.0 + features
        except Exception as error:  # goes on without the image
            print(f"warning: {error}")  # noqa: T201
        return self.language_model(
            inputs_embeds=x,
            attention_mask=attention_mask,
            use_cache=use_cache,
            output_attentions=output_attentions,
        )

    def generate(self, pixel_values, input_ids, attention_mask):
        raise NotImplementedError

    def get_input_embeddings(self):
        return self.language_model.get_input_embeddings()

    def get_output_embeddings(self):
        return self.language_model.get_output_embeddings()
