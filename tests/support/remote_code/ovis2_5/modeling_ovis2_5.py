import numpy as np
import torch
from torch import nn
from transformers import AutoTokenizer, PreTrainedModel, Qwen3ForCausalLM
from transformers.modeling_outputs import BaseModelOutput

from .configuration_ovis2_5 import Ovis2_5_Config, Siglip2NavitConfig
from .tiny_blocks import Block

PATCH = -300
INDICATORS = [-301, -302, -303, -304]


class Siglip2Encoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layers = nn.ModuleList(
            Block(config.hidden_size) for _ in range(config.num_hidden_layers)
        )

    def forward(self, inputs_embeds, grid_thws):
        images = inputs_embeds.split(grid_thws.prod(dim=-1).tolist())
        states = []
        for layer in self.layers:
            images = [layer(image) for image in images]
            states.append(torch.cat(images))
        return states[-1], tuple(states)


class Siglip2VisionTransformer(nn.Module):
    def __init__(self, config):
        super().__init__()
        values = 3 * config.temporal_patch_size * config.patch_size**2
        self.embeddings = nn.Linear(values, config.hidden_size)
        self.encoder = Siglip2Encoder(config)
        self.post_layernorm = nn.LayerNorm(config.hidden_size)

    def forward(self, pixel_values, grid_thws):
        last, states = self.encoder(self.embeddings(pixel_values), grid_thws)
        return BaseModelOutput(last_hidden_state=self.post_layernorm(last), hidden_states=states)


class Siglip2NavitModel(PreTrainedModel):
    config_class = Siglip2NavitConfig
    main_input_name = "pixel_values"

    def __init__(self, config):
        super().__init__(config)
        self.vision_model = Siglip2VisionTransformer(config)

    def forward(self, pixel_values, grid_thws):
        return self.vision_model(pixel_values, grid_thws)


class VisualTokenizer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.vit = Siglip2NavitModel(config.vit_config)
        self.block = config.vit_config.hidden_stride**2
        words = config.visual_vocab_size - len(INDICATORS)
        self.head = nn.Sequential(
            nn.Linear(config.vit_config.hidden_size * self.block, words, bias=False),
            nn.LayerNorm(words),
        )

    def forward(self, pixel_values, grid_thws):
        # The last state before the norm: last_hidden_state is not what the head reads.
        state = self.vit(pixel_values, grid_thws).hidden_states[-1]
        words = self.head(state.reshape(len(state) // self.block, -1)).softmax(dim=-1)
        return nn.functional.pad(words, (0, len(INDICATORS)))


class VisualEmbedding(nn.Embedding):
    def forward(self, words):
        return words @ self.weight if words.is_floating_point() else super().forward(words)


class Ovis2_5(PreTrainedModel):
    config_class = Ovis2_5_Config

    def __init__(self, config):
        super().__init__(config)
        # Its folder is read while the model is built.
        self.text_tokenizer = AutoTokenizer.from_pretrained(
            config.name_or_path, trust_remote_code=True
        )
        self.llm = Qwen3ForCausalLM(config.llm_config)
        self.visual_tokenizer = VisualTokenizer(config)
        self.vte = VisualEmbedding(config.visual_vocab_size, config.hidden_size)

    def tie_weights(self):
        self.llm.tie_weights()

    def preprocess_inputs(self, messages, add_generation_prompt=True):
        """What the repository offers in place of a processor: one prompt, at most one image."""
        tokenizer = self.text_tokenizer
        images = []
        turns = []
        for message in messages:
            content = message["content"]
            if not isinstance(content, str):
                images += [part["image"] for part in content if part["type"] == "image"]
                # An image mark in a text is deleted: only an image part writes one.
                content = "".join(
                    "<image>\n" if part["type"] == "image" else part["text"].replace("<image>", "")
                    for part in content
                )
            turns.append({"role": message["role"], "content": content})
        text = tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=add_generation_prompt
        )
        ids, values, grids = [], [], []
        for number, piece in enumerate(text.split("<image>")):
            if number:
                flat, grid = self.patches_of(images[number - 1])
                values.append(flat)
                grids.append(grid)
                block = self.config.vit_config.hidden_stride**2
                ids += [INDICATORS[0], *[PATCH] * (grid[1] * grid[2] // block), INDICATORS[1]]
            ids += tokenizer(piece, add_special_tokens=False)["input_ids"]
        if not images:
            return torch.tensor([ids]), None, None
        return torch.tensor([ids]), torch.cat(values), torch.tensor(grids)

    def patches_of(self, image):
        """Flat patches, block of neighbours by block, and the grid: frames, high, wide."""
        size, stride = self.config.vit_config.patch_size, self.config.vit_config.hidden_stride
        unit = size * stride
        wide, high = (max(unit, round(side / unit) * unit) for side in image.size)
        scale = min(1, (16 * unit * unit / (wide * high)) ** 0.5)
        wide, high = (max(unit, int(side * scale) // unit * unit) for side in (wide, high))
        pixels = torch.from_numpy(np.array(image.resize((wide, high), 3), dtype=np.float32))
        pixels = pixels.permute(2, 0, 1) / 127.5 - 1
        rows, columns = high // size, wide // size
        blocks = pixels.reshape(3, rows // stride, stride, size, columns // stride, stride, size)
        flat = blocks.permute(1, 4, 2, 5, 0, 3, 6).reshape(rows * columns, -1)
        return flat, [1, rows, columns]

    def forward(self, input_ids, attention_mask, pixel_values, grid_thws, **kwargs):
        x = self.llm.get_input_embeddings()(input_ids.clamp(min=0))
        if pixel_values is not None:
            rows = self.vte(self.visual_tokenizer(pixel_values, grid_thws))
            x = x.masked_scatter((input_ids == PATCH).unsqueeze(-1), rows)
            for place, token_id in enumerate(INDICATORS, self.vte.num_embeddings - len(INDICATORS)):
                row = self.vte(torch.tensor(place, device=x.device))
                x = torch.where((input_ids == token_id).unsqueeze(-1), row, x)
        return self.llm(inputs_embeds=x, attention_mask=attention_mask, **kwargs)
