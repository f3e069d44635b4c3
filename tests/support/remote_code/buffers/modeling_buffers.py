import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from .configuration_buffers import BuffersConfig
from .tiny_blocks import Block


class Tables(nn.Module):
    """Tables that no checkpoint holds, each filled in another way."""

    def __init__(self, config):
        super().__init__()
        width = config.hidden_size
        self.register_buffer("of_init", torch.arange(width) / width, persistent=False)
        self.register_buffer("of_init_weights", torch.zeros(width), persistent=False)
        self.attribute = torch.linspace(0.0, 1.0, width)
        self.listed = [torch.linspace(0.0, 2.0, width)]
        self.of_forward = None
        if config.trait == "random":
            self.register_buffer("drawn", torch.randn(width), persistent=False)
        if config.trait == "of weights":
            self.gain = nn.Parameter(torch.ones(width))
            self.register_buffer("norm", self.gain.detach().norm(), persistent=False)

    def forward(self, x):
        if self.of_forward is None or len(self.of_forward) != x.shape[1]:
            self.of_forward = torch.arange(x.shape[1]).to(x)[:, None]
        return x + self.of_init + self.of_init_weights + self.attribute + 0.1 * self.of_forward


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.tables = Tables(config)
        self.block = Block(config.hidden_size)

    def forward(self, hidden_states):
        return self.block(self.tables(hidden_states) + self.tables.listed[0])


class BuffersForCausalLM(PreTrainedModel):
    config_class = BuffersConfig
    _keys_to_ignore_on_load_missing = ["saved_or_not"]  # noqa: RUF012

    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.register_buffer("saved_or_not", torch.arange(4) + 0.5)
        self.post_init()

    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, Tables):
            module.of_init_weights.fill_(3.0)

    def get_input_embeddings(self):
        return self.embed_tokens

    def forward(self, input_ids, attention_mask=None):
        x = self.embed_tokens(input_ids) * self.saved_or_not.sum()
        for layer in self.layers:
            x = layer(x)
        return CausalLMOutput(logits=x)
