import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput
from transformers.modeling_utils import is_flash_attn_2_available
from transformers.models.llama.modeling_llama import LlamaFlashAttention2

from .configuration_deepseek import DeepseekV2Config

ATTENTION = {"flash_attention_2": LlamaFlashAttention2} if is_flash_attn_2_available() else {}


class Rotary(nn.Module):
    """Its tables are in no checkpoint. The first call replaces two of them by shorter ones."""

    def __init__(self, config):
        super().__init__()
        if config.rope_scaling is not None:
            raise ValueError(f"unknown scaling {config.rope_scaling['type']}")
        powers = torch.linspace(0, 1, config.hidden_size)
        self.register_buffer("inv_freq", config.rope_theta**-powers, persistent=False)
        self.make_tables(64)
        self.longest = None

    def make_tables(self, length):
        angles = torch.outer(torch.arange(length, device=self.inv_freq.device), self.inv_freq)
        self.register_buffer("cos_cached", angles.cos(), persistent=False)
        self.register_buffer("sin_cached", angles.sin(), persistent=False)
        self.longest = length

    def forward(self, length):
        if self.longest is None or length > self.longest:
            self.make_tables(length)
        return self.cos_cached[:length], self.sin_cached[:length]


class Experts(nn.Module):
    """Counts the tokens of each expert outside PyTorch, as no meta device can."""

    def __init__(self, width):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, x):
        chosen = (x[..., 0] > 0).long()
        counts = torch.bincount(chosen.flatten(), minlength=len(self.experts)).cpu().numpy()
        y = torch.zeros_like(x)
        for number, count in enumerate(counts):
            if count:
                y[chosen == number] = self.experts[number](x[chosen == number])
        return y


class DeepseekV2DecoderLayer(nn.Module):
    """Each row sees the mean of all rows, turned by how far they are away."""

    def __init__(self, config, number):
        super().__init__()
        width = config.hidden_size
        self.rotary_emb = Rotary(config)
        self.norm = nn.LayerNorm(width)
        self.linear = Experts(width) if number else nn.Linear(width, width)

    def forward(self, hidden_states, attention_mask=None):
        x = self.norm(hidden_states)
        weight = (
            torch.ones_like(x[..., :1]) if attention_mask is None else attention_mask[..., None]
        )
        weight = weight.to(x) / weight.sum(1, keepdim=True)
        seen = sum(
            table.to(x) * (weight * table.to(x) * x).sum(1, keepdim=True)
            for table in self.rotary_emb(x.shape[1])
        )
        return (hidden_states + nn.functional.gelu(self.linear(x + seen)),)


class DeepseekV2PreTrainedModel(PreTrainedModel):
    config_class = DeepseekV2Config


class DeepseekV2Model(DeepseekV2PreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            DeepseekV2DecoderLayer(config, number) for number in range(config.num_hidden_layers)
        )
        self.post_init()


class DeepseekV2ForCausalLM(DeepseekV2PreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.model = DeepseekV2Model(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.model.embed_tokens

    def forward(self, inputs_embeds, attention_mask=None, use_cache=None):
        x = inputs_embeds
        for layer in self.model.layers:
            (x,) = layer(x, attention_mask)
        return CausalLMOutput(logits=self.lm_head(x))
