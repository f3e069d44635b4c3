import torch
from torch import nn
from torch.nn.functional import List  # which torch took along until it did not
from torch.nn.utils.rnn import pad_sequence
from transformers import Qwen2ForCausalLM, Qwen2PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from .configuration_minicpm import MiniCPMVConfig
from .tiny_blocks import Block


class VisionTransformer(nn.Module):
    """Slices of different sizes: padded, with a mask."""

    def __init__(self, config):
        super().__init__()
        size = config.patch_size
        self.patch_embedding = nn.Conv2d(3, config.hidden_size, size, stride=size)
        self.layers = nn.ModuleList(
            Block(config.hidden_size) for _ in range(config.num_hidden_layers)
        )

    def forward(self, pixel_values, patch_attention_mask=None, tgt_sizes=None):
        x = self.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x, patch_attention_mask.squeeze(1))
        return BaseModelOutput(last_hidden_state=x)


class Resampler(nn.Module):
    """Its table of places is in no checkpoint."""

    def __init__(self, queries, width, hidden, longest=32):
        super().__init__()
        self.query = nn.Parameter(torch.zeros(queries, hidden))
        self.key = nn.Linear(width, hidden)
        places = torch.linspace(0, 3, longest)[:, None] * torch.linspace(0.5, 1.5, hidden)
        self.register_buffer("pos_embed", places.sin(), persistent=False)

    def forward(self, x, tgt_sizes):
        keys = self.key(x) + self.pos_embed[: x.shape[1]]
        lengths = tgt_sizes.prod(dim=-1)
        padding = torch.arange(x.shape[1], device=x.device) >= lengths.unsqueeze(-1)
        scores = (self.query @ keys.transpose(1, 2)).masked_fill(padding.unsqueeze(1), -torch.inf)
        return scores.softmax(dim=-1) @ keys


class MiniCPMVPreTrainedModel(Qwen2PreTrainedModel):
    config_class = MiniCPMVConfig


class MiniCPMV(MiniCPMVPreTrainedModel):
    """Calls no post_init. It has a ``generate``, so AutoModel makes another class of it."""

    def __init__(self, config):
        super().__init__(config)
        self.llm = Qwen2ForCausalLM(config)
        self.vpm = VisionTransformer(config.vision_config)
        width = config.vision_config.hidden_size
        self.resampler = Resampler(config.query_num, width, config.hidden_size)

    def generate(self, **inputs):
        raise NotImplementedError

    def get_input_embeddings(self):
        return self.llm.get_input_embeddings()

    def forward(self, data, **kwargs):
        x = self.llm.get_input_embeddings()(data["input_ids"])
        slices: List = [values for of_sample in data["pixel_values"] for values in of_sample]
        if slices:
            features = iter(self._visual_rows(slices, torch.cat(data["tgt_sizes"])))
            for row, bounds in zip(x, data["image_bound"], strict=True):
                for start, end in bounds.tolist():
                    row[start:end] = next(features)  # in place
        return self.llm(inputs_embeds=x, position_ids=data["position_ids"], **kwargs)

    def _visual_rows(self, slices, sizes):
        size = self.config.vision_config.patch_size
        lengths = sizes.prod(dim=-1)
        # Slices come as [3, size, patches * size]: padding adds patches at the right.
        longest = pad_sequence([s.permute(2, 0, 1) for s in slices], batch_first=True)
        pixels = longest.permute(0, 2, 3, 1)
        mask = torch.arange(pixels.shape[-1] // size, device=sizes.device) < lengths[:, None]
        states = self.vpm(pixels, patch_attention_mask=mask.unsqueeze(1), tgt_sizes=sizes)
        return self.resampler(states.last_hidden_state, sizes)
