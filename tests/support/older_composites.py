"""Models as code of before 4.52 derives them from those of transformers."""

from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    LlavaForConditionalGeneration,
    LlavaPreTrainedModel,
    PreTrainedModel,
    Qwen2VLForConditionalGeneration,
)
from transformers.models.llava.modeling_llava import LlavaMultiModalProjector
from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen2_vl
from transformers.models.qwen2_vl.modeling_qwen2_vl import (
    Qwen2VisionTransformerPretrainedModel,
    Qwen2VLModel,
)


class OwnProjectorOfSomebody(LlavaForConditionalGeneration):
    """Its projector takes the place of the one that it derives."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.multi_modal_projector = LlavaMultiModalProjector(config)
        self.post_init()


class OwnPartsOfSomebody(LlavaForConditionalGeneration):
    """It makes its parts and a way to its features by itself, and derives its forward."""

    def __init__(self, config: Any) -> None:
        super(LlavaPreTrainedModel, self).__init__(config)
        self.vision_tower = AutoModel.from_config(config.vision_config)
        self.multi_modal_projector = LlavaMultiModalProjector(config)
        self.language_model = AutoModelForCausalLM.from_config(config.text_config)
        self.post_init()

    def get_image_features(
        self, pixel_values: Any, vision_feature_layer: int, vision_feature_select_strategy: str
    ) -> torch.Tensor:
        states = self.vision_tower(pixel_values, output_hidden_states=True).hidden_states
        rows = self.multi_modal_projector(states[vision_feature_layer][:, 1:])
        return rows


class OwnForwardOfSomebody(LlavaForConditionalGeneration):
    """Its forward is that of before: the language model has its head."""

    def forward(self, input_ids: Any, pixel_values: Any, attention_mask: Any = None) -> Any:
        states = self.vision_tower(pixel_values, output_hidden_states=True).hidden_states
        rows = self.multi_modal_projector(states[self.config.vision_feature_layer][:, 1:])
        embedded = self.language_model.get_input_embeddings()(input_ids)
        here = (input_ids == self.config.image_token_index)[..., None].expand_as(embedded)
        embedded = embedded.masked_scatter(here, rows)
        left = self.language_model(inputs_embeds=embedded, attention_mask=attention_mask)
        return (left.logits,)


class OwnPartsAndForwardOfSomebody(LlavaForConditionalGeneration):
    """It makes its parts by itself, and has a forward of its own, too (CXRMate-ED)."""

    __init__ = OwnPartsOfSomebody.__init__
    forward = OwnForwardOfSomebody.forward


class OwnPartsOfSomebodysQwen(Qwen2VLForConditionalGeneration):
    """It makes tower, language model and head, and finds places as before."""

    def __init__(self, config: Any) -> None:
        super(Qwen2VLForConditionalGeneration, self).__init__(config)
        self.visual = Qwen2VisionTransformerPretrainedModel._from_config(config.vision_config)
        self.model = Qwen2VLModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Any,
        pixel_values: Any,
        image_grid_thw: Any,
        attention_mask: Any = None,
        mm_token_type_ids: Any = None,
    ) -> Any:
        embedded = self.model.embed_tokens(input_ids)
        rows = self.visual(pixel_values, grid_thw=image_grid_thw)
        here = (input_ids == self.config.image_token_id)[..., None].expand_as(embedded)
        embedded = embedded.masked_scatter(here, rows.to(embedded.dtype))
        places, _ = self.get_rope_index(input_ids, image_grid_thw, None, attention_mask)
        left = self.model(
            inputs_embeds=embedded, position_ids=places, attention_mask=attention_mask
        )
        return (self.lm_head(left[0]),)


class LooksIntoSomebodysQwen(Qwen2VLForConditionalGeneration):
    """It derives its parts, and finds the table where the language model's was (LamRA)."""

    def forward(self, input_ids: Any, pixel_values: Any, image_grid_thw: Any, **named: Any) -> Any:
        embedded = self.model.embed_tokens(input_ids)
        rows = self.visual(pixel_values, grid_thw=image_grid_thw)
        here = (input_ids == self.config.image_token_id)[..., None].expand_as(embedded)
        embedded = embedded.masked_scatter(here, rows.to(embedded.dtype))
        mask = named.get("attention_mask")
        places, deltas = self.get_rope_index(input_ids, image_grid_thw, None, mask)
        left = self.model(inputs_embeds=embedded, position_ids=places, attention_mask=mask)
        made = qwen2_vl.Qwen2VLCausalLMOutputWithPast
        return made(logits=self.lm_head(left[0]), rope_deltas=deltas)


class AroundSomebodysQwen(Qwen2VLForConditionalGeneration):
    """It derives its parts, and its forward asks the tower for rows."""

    def forward(self, input_ids: Any, pixel_values: Any, image_grid_thw: Any, **named: Any) -> Any:
        embedded = self.get_input_embeddings()(input_ids)
        rows = self.visual(pixel_values, grid_thw=image_grid_thw)
        here = (input_ids == self.config.image_token_id)[..., None].expand_as(embedded)
        embedded = embedded.masked_scatter(here, rows.to(embedded.dtype))
        mask = named.get("attention_mask")
        places, _ = self.get_rope_index(input_ids, image_grid_thw, None, mask)
        left = self.model(inputs_embeds=embedded, position_ids=places, attention_mask=mask)
        return (self.lm_head(left[0]),)


class BesideSomebodysQwen(PreTrainedModel):
    """It derives from no model, and has no head: it compares (GME)."""

    config_class = qwen2_vl.Qwen2VLConfig
    base_model_prefix = "model"

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.visual = Qwen2VisionTransformerPretrainedModel._from_config(config.vision_config)
        self.model = Qwen2VLModel(config)
        self.post_init()

    def forward(self, input_ids: Any, pixel_values: Any, image_grid_thw: Any, **named: Any) -> Any:
        embedded = self.model.get_input_embeddings()(input_ids)
        rows = self.visual(pixel_values, grid_thw=image_grid_thw).to(embedded.device)
        embedded[input_ids == self.config.image_token_id] = rows
        left = self.model(inputs_embeds=embedded, attention_mask=named.get("attention_mask"))
        return (left.last_hidden_state,)


class LanguageOfSomebodysQwen(Qwen2VLModel):
    """The language model alone, as it was."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)


class DerivedBesideSomebodysQwen(BesideSomebodysQwen):
    """It makes a class of its own beside the tower (UniWorld-V1)."""

    def __init__(self, config: Any) -> None:
        super(BesideSomebodysQwen, self).__init__(config)
        self.visual = Qwen2VisionTransformerPretrainedModel._from_config(config.vision_config)
        self.model = LanguageOfSomebodysQwen(config)
        self.post_init()


class OwnTextOfSomebodysQwen(Qwen2VLForConditionalGeneration):
    """It sets a tower, then a language model of its own in place of the model inside (WALL-OSS)."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.visual = Qwen2VisionTransformerPretrainedModel._from_config(config.vision_config)
        self.model = qwen2_vl.Qwen2VLTextModel(config.text_config)
        self.post_init()

    def forward(self, input_ids: Any, pixel_values: Any, image_grid_thw: Any, **named: Any) -> Any:
        embedded = self.model.embed_tokens(input_ids)
        rows = self.visual(pixel_values, grid_thw=image_grid_thw)
        embedded[input_ids == self.config.image_token_id] = getattr(rows, "pooler_output", rows)
        left = self.model(inputs_embeds=embedded, attention_mask=named.get("attention_mask"))
        return (left.last_hidden_state,)
