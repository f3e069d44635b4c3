import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from .config_molmo import MolmoConfig
from .tiny_blocks import Block

PATCH_VALUES, WIDTH, USED_LAYERS = 3 * 14 * 14, 24, (-1, -2)
NEW_TOKENS = 8


class Embedding(nn.Module):
    """A table, and a second one for the tokens that images added."""

    def __init__(self, rows, new_rows, width):
        super().__init__()
        self.embedding = nn.Parameter(torch.zeros(rows, width))
        self.new_embedding = nn.Parameter(torch.zeros(new_rows, width))

    def forward(self, ids):
        return nn.functional.embedding(ids, torch.cat([self.embedding, self.new_embedding]))


class ResidualAttentionBlocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.resblocks = nn.ModuleList(Block(WIDTH) for _ in range(3))

    def forward(self, x):
        states = []
        for block in self.resblocks:
            x = block(x)
            states.append(x)
        return states


class VisionTransformer(nn.Module):
    """Gives the states of all layers, a class row before the patches."""

    def __init__(self):
        super().__init__()
        self.class_embedding = nn.Parameter(torch.zeros(1, WIDTH))
        self.patch_embedding = nn.Linear(PATCH_VALUES, WIDTH, bias=False)
        self.transformer = ResidualAttentionBlocks()

    def forward(self, patches):
        x = self.patch_embedding(patches)
        return self.transformer(torch.cat([self.class_embedding.expand(len(x), 1, -1), x], dim=1))


class VisionBackbone(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.image_vit = VisionTransformer()
        self.image_projector = nn.Linear(WIDTH * len(USED_LAYERS), hidden)

    def forward(self, images, image_masks):
        batch, crops, patches, values = images.shape
        states = self.image_vit(images.reshape(-1, patches, values))
        x = torch.cat([states[layer][:, 1:] for layer in USED_LAYERS], dim=-1)
        x = x * (image_masks.reshape(-1, patches, 1) > 0)
        pooled = x.reshape(batch, crops, patches // 4, 4, -1).mean(dim=3)
        return self.image_projector(pooled), None


class MolmoBlock(nn.Module):
    """Each row sees the mean of those before it."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, x, attention_bias=None):
        normed = self.norm(x)
        weight = attention_bias.to(x).unsqueeze(-1)
        before = (normed * weight).cumsum(1) / weight.cumsum(1).clamp(min=1)
        return x + nn.functional.gelu(self.linear(normed + before)), None


class Molmo(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": Embedding(config.embedding_size, NEW_TOKENS, config.hidden_size),
                "blocks": nn.ModuleList(
                    MolmoBlock(config.hidden_size) for _ in range(config.num_hidden_layers)
                ),
                "ln_f": nn.LayerNorm(config.hidden_size),
                "ff_out": nn.Linear(config.hidden_size, config.vocab_size, bias=False),
            }
        )
        self.vision_backbone = VisionBackbone(config.hidden_size)


class MolmoForCausalLM(PreTrainedModel):
    """Calls no post_init, takes no keywords to tie its weights, and can generate."""

    config_class = MolmoConfig

    def __init__(self, config):
        super().__init__(config)
        self.model = Molmo(config)

    def prepare_inputs_for_generation(self, input_ids, **kwargs):
        raise NotImplementedError

    def get_input_embeddings(self):
        return self.model.transformer.wte

    def tie_weights(self):
        """There is nothing to tie."""

    def forward(
        self,
        input_ids,
        attention_mask=None,
        images=None,
        image_masks=None,
        image_input_idx=None,
        use_cache=None,
    ):
        x = self.model.transformer.wte(input_ids * (input_ids != -1))
        if images is not None:
            features, _ = self.model.vision_backbone(images, image_masks)
            features, places = features.flatten(1, 2), image_input_idx.flatten(1)
            sample, feature = (places >= 0).nonzero(as_tuple=True)
            x[sample, places[sample, feature]] += features[sample, feature]
        for block in self.model.transformer.blocks:
            x, _ = block(x, attention_mask)
        return CausalLMOutput(logits=self.model.transformer.ff_out(self.model.transformer.ln_f(x)))


AutoModelForCausalLM.register(MolmoConfig, MolmoForCausalLM)
