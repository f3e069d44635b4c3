import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from .configuration_inplace import InplaceConfig
from .tiny_blocks import Block


class Tower(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(3 * 8 * 8, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(2))

    def forward(self, patches):
        x = self.first(patches)
        for layer in self.layers:
            x = layer(x)
        return x


class Picture(nn.Module):
    """Patch features and, behind each line of two, a separator; both are projected."""

    def __init__(self, config):
        super().__init__()
        width = config.img_processor["image_dim_out"]
        self.tower = Tower(width)
        self.separator = nn.Parameter(torch.zeros(1, 1, 1, width))
        self.projection = nn.Sequential(nn.Linear(width, config.hidden_size), nn.GELU())

    def forward(self, pixels):
        features = self.tower(pixels.flatten(2)).unflatten(1, (2, 2))
        lines = torch.cat([features, self.separator.expand(len(features), 2, 1, -1)], dim=2)
        return self.projection(lines.flatten(1, 2))


class Layer(nn.Module):
    """A decoder layer returns a tuple."""

    def __init__(self, width):
        super().__init__()
        self.block = Block(width)

    def forward(self, hidden_states, mask=None):
        return self.block(hidden_states, mask), None


class InplaceForCausalLM(PreTrainedModel):
    """Marks an image by negative ids, and clamps them where they are."""

    config_class = InplaceConfig

    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.picture = Picture(config)
        self.layers = nn.ModuleList(
            Layer(config.hidden_size) for _ in range(config.num_hidden_layers)
        )
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_input_embeddings(self):
        return self.embed_tokens

    def get_output_embeddings(self):
        return self.lm_head

    def forward(self, input_ids, pixel_values=None, attention_mask=None):
        print("a message on stdout while the model runs")  # noqa: T201
        place = (input_ids < 0).unsqueeze(-1)
        x = self.embed_tokens(input_ids.clamp_(0))
        if pixel_values is not None:
            x = x.masked_scatter(place, self.picture(pixel_values))
        for layer in self.layers:
            x = layer(x, attention_mask)[0]
        return CausalLMOutput(logits=self.lm_head(x))
