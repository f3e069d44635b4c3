import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.image_utils import VideoInput
from transformers.modeling_outputs import CausalLMOutput
from transformers.utils.import_utils import is_torch_fx_available

from .configuration_older import OlderConfig
from .tiny_blocks import Block

print("a message on stdout while the code is imported")  # noqa: T201
assert is_torch_fx_available()
assert VideoInput is not None


class Rotary(nn.Module):
    """A table that no checkpoint holds and no ``_init_weights`` restores."""

    def __init__(self, config):
        super().__init__()
        if config.rope_scaling is not None:
            raise ValueError(f"unknown scaling {config.rope_scaling['type']}")
        powers = torch.arange(0, config.hidden_size, 2) / config.hidden_size
        self.register_buffer("inv_freq", config.rope_theta**-powers, persistent=False)
        self.offset = torch.linspace(0.1, 0.4, 4)  # no buffer at all
        self.scale = torch.linspace(0.5, 1.5, 2)[-1].item()

    def forward(self, x):
        place = torch.arange(x.shape[1], device=x.device)[:, None] * self.inv_freq
        table = torch.cat([place.sin(), place.cos()], dim=-1) * self.scale
        return x + 0.3 * table.to(x) + self.offset.mean().to(x)


class Eye(PreTrainedModel):
    config_class = OlderConfig

    def __init__(self, config):
        super().__init__(config)
        width = config.vision_config["hidden_size"]
        self.first = nn.Linear(3 * 8 * 8, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(2))

    def forward(self, pixels):
        x = self.first(pixels.flatten(2))
        for layer in self.layers:
            x = layer(x)
        return x


class OlderForCausalLM(PreTrainedModel):
    """Does not call post_init, ties its weights without keywords, tells sdpa by a property.

    AutoModel derives a class from it that can also ``generate``.
    """

    config_class = OlderConfig
    _tied_weights_keys = ["lm_head.weight"]  # noqa: RUF012
    _supports_flash_attn_2 = True

    def __init__(self, config):
        super().__init__(config)
        print("another one while the model is built")  # noqa: T201
        self.vision_model = Eye(config)
        self.projector = nn.Linear(config.vision_config["hidden_size"], config.hidden_size)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.rotary = Rotary(config)
        self.layers = nn.ModuleList(Block(config.hidden_size) for _ in range(3))
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    @property
    def _supports_sdpa(self):
        return self.embed_tokens._supports_sdpa

    def get_input_embeddings(self):
        return self.embed_tokens

    def get_output_embeddings(self):
        return self.lm_head

    def tie_weights(self):
        self.lm_head.weight = self.embed_tokens.weight

    def prepare_inputs_for_generation(self, input_ids, **kwargs):
        return {"input_ids": input_ids, **kwargs}

    def forward(self, input_ids, pixel_values=None, attention_mask=None):
        x = self.embed_tokens(input_ids)
        if pixel_values is not None:
            place = (input_ids == self.config.image_token_id).unsqueeze(-1)
            x = x.masked_scatter(place, self.projector(self.vision_model(pixel_values)))
        x = self.rotary(x)
        for layer in self.layers:
            x = layer(x, attention_mask)
        return CausalLMOutput(logits=self.lm_head(x))
