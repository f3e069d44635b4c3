from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from .configuration_unseen import UnseenConfig
from .tiny_blocks import Block


class Eye(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(3 * 8 * 8, width)
        self.rings = nn.ModuleList(Block(width) for _ in range(2))

    def forward(self, pixels):
        x = self.first(pixels.flatten(2))
        for ring in self.rings:
            x = ring(x)
        return x


class UnseenForCausalLM(PreTrainedModel):
    config_class = UnseenConfig

    def __init__(self, config):
        super().__init__(config)
        seen = config.vision_config["span"]
        self.eye = Eye(seen)
        self.bridge = nn.Linear(seen, config.span)
        self.lexicon = nn.Embedding(config.words, config.span)
        self.tower = nn.ModuleList(Block(config.span) for _ in range(config.floors))
        self.mouth = nn.Linear(config.span, config.words)
        self.post_init()

    def forward(self, input_ids, pixel_values=None, attention_mask=None):
        x = self.lexicon(input_ids)
        if pixel_values is not None:
            place = (input_ids == self.config.picture_mark).unsqueeze(-1)
            x = x.masked_scatter(place, self.bridge(self.eye(pixel_values)))
        for floor in self.tower:
            x = floor(x, attention_mask)
        return CausalLMOutput(logits=self.mouth(x))
