import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from torch import nn
from transformers import LlamaForCausalLM, LlamaModel
from transformers.modeling_outputs import BaseModelOutput

from .configuration_phi4mm import Phi4MMConfig
from .tiny_blocks import Block

_IMAGE_SPECIAL_TOKEN_ID = 200010
PATCH, WIDTH = 7, 24


class SiglipVisionTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch_embedding = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.layers = nn.ModuleList(Block(WIDTH) for _ in range(3))

    def forward(self, pixel_values, patch_attention_mask=None):
        x = self.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
        states = [x]
        for layer in self.layers:
            states.append(layer(states[-1], patch_attention_mask.flatten(1)))
        return BaseModelOutput(last_hidden_state=states[-1], hidden_states=tuple(states))


class Phi4MMImageEmbedding(nn.Module):
    """Separator rows go through the projection too."""

    def __init__(self, hidden):
        super().__init__()
        self.img_processor = SiglipVisionTransformer()
        self.glb_GN = nn.Parameter(torch.zeros(1, WIDTH))
        self.sub_GN = nn.Parameter(torch.zeros(1, WIDTH))
        self.img_projection = nn.Sequential(
            nn.Linear(WIDTH, hidden), nn.GELU(), nn.Linear(hidden, hidden)
        )

    def forward(self, pixels, mask):
        rows = []
        for crops, kept in zip(pixels, mask, strict=True):
            states = self.img_processor(crops, patch_attention_mask=kept).hidden_states[-2]
            grids = states.reshape(-1, 2, 2, 2, 2, WIDTH).mean(dim=(2, 4))
            overview, detail = (self._with_newlines(grid) for grid in grids)
            rows.append(self.img_projection(torch.cat([detail, self.glb_GN, overview])))
        return torch.cat(rows)

    def _with_newlines(self, grid):
        return torch.cat([grid, self.sub_GN.expand(2, 1, -1)], dim=1).flatten(0, 1)


class SpeechEncoder(nn.Module):
    """Computes the size of a layer with a tensor."""

    def __init__(self):
        super().__init__()
        length = torch.tensor(80.0)
        for _ in range(3):
            length = torch.floor(length / 2)
        self.out = nn.Linear(int(length), 4)


class Phi4MMImageAudioEmbedding(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.image_embed = Phi4MMImageEmbedding(hidden)
        self.audio_embed = SpeechEncoder()


class Phi4MMModel(LlamaModel):
    config_class = Phi4MMConfig

    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens_extend = Phi4MMImageAudioEmbedding(config.hidden_size)
        self.post_init()


class Phi4MMForCausalLM(LlamaForCausalLM):
    """Its decoder layers have an adapter, which only prompts with an image go through."""

    config_class = Phi4MMConfig
    _tied_weights_keys = ["lm_head.weight"]  # noqa: RUF012

    def __init__(self, config):
        super().__init__(config)
        self.model = Phi4MMModel(config)
        self.post_init()
        adapter = LoraConfig(
            **config.vision_lora, target_modules=r"layers.*self_attn.o_proj", task_type="CAUSAL_LM"
        )
        get_peft_model(self.model, adapter, adapter_name="vision")

    def forward(
        self,
        input_ids,
        attention_mask=None,
        position_ids=None,
        input_image_embeds=None,
        image_sizes=None,
        image_attention_mask=None,
        input_audio_embeds=None,
        input_mode=None,
        num_img_tokens=None,
        use_cache=None,
    ):
        assert len(num_img_tokens or []) == (0 if image_sizes is None else len(image_sizes))
        with_image = int(input_mode) == 1
        for module in self.modules():
            if isinstance(module, LoraLayer):
                module._disable_adapters = not with_image
        x = self.model.embed_tokens(input_ids)
        if with_image:
            rows = self.model.embed_tokens_extend.image_embed(
                input_image_embeds, image_attention_mask
            )
            x = x.masked_scatter((input_ids == _IMAGE_SPECIAL_TOKEN_ID).unsqueeze(-1), rows)
        return super().forward(
            inputs_embeds=x,
            attention_mask=attention_mask,
            position_ids=position_ids,
            use_cache=use_cache,
        )
