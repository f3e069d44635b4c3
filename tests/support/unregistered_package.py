"""As a package of its authors that registers no class and makes its models by name."""

from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import CLIPVisionModel, PretrainedConfig, PreTrainedModel

from support.plain_modules import Plain

#: As Yi-VL: the package is told where its tower lies.
FOLDER: dict[str, Path] = {}


class UnregisteredConfig(PretrainedConfig):
    model_type = "llava"  # of another class of transformers


class Tower(nn.Module):
    def __init__(self, folder: str) -> None:
        super().__init__()
        self.clip = CLIPVisionModel.from_pretrained(folder)

    def forward(self, image: Tensor) -> Tensor:
        kind = self.clip.vision_model.embeddings.patch_embedding.weight.dtype
        return self.clip(image.to(kind)).last_hidden_state[:, 1:]


class UnregisteredForCausalLM(PreTrainedModel):
    config_class = UnregisteredConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        config.mm_vision_tower = f"{FOLDER['root'].name}/{config.mm_vision_tower}"  # twice: nowhere
        self.body = Plain()
        self.body.vision = Tower(str(FOLDER["root"].parent / config.mm_vision_tower))
        self.init_weights()

    def forward(self, input_ids: Tensor, images: Any = None, attention_mask: Any = None) -> Tensor:
        out: Tensor = self.body(input_ids, images, attention_mask)
        return out
