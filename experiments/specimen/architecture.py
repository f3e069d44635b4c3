"""Shapes of the three parts: vision encoder, projector, language model. All start at random."""

import math

import torch
from transformers import (
    CLIPVisionConfig,
    CLIPVisionModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

from experiments.specimen.chat import (
    BOS_ID,
    EOS_ID,
    IMAGE_ID,
    MAX_TOKENS,
    PAD_ID,
    PATCH_SIZE,
    VISUAL_TOKENS,
)
from experiments.specimen.scenes import IMAGE_SIZE

HIDDEN_SIZE = 128
LAYERS = 6
HEADS = 4
VISION_FEATURE_LAYER = -2
# Initial standard deviation of the decoder layers and of the output head. The library's 0.02, which
# the token embeddings keep, is far below 1 / sqrt(128) and made attention slow to form.
LAYER_INIT_STD = 0.06


def build_vision_encoder() -> CLIPVisionModel:
    """Build the CLIP vision encoder: pre-norm, 64 patches and one class token."""
    return CLIPVisionModel(
        CLIPVisionConfig(
            hidden_size=HIDDEN_SIZE,
            intermediate_size=4 * HIDDEN_SIZE,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            image_size=IMAGE_SIZE,
            patch_size=PATCH_SIZE,
            projection_dim=HIDDEN_SIZE,
        )
    )


def build_language_model(vocabulary_size: int) -> LlamaForCausalLM:
    """Build the Llama language model: pre-norm, RMSNorm, untied embeddings.

    Args:
        vocabulary_size: Rows of the embedding table.
    """
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary_size,
            hidden_size=HIDDEN_SIZE,
            intermediate_size=352,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            max_position_embeddings=MAX_TOKENS,
            rms_norm_eps=1e-6,
            pad_token_id=PAD_ID,
            bos_token_id=BOS_ID,
            eos_token_id=EOS_ID,
            tie_word_embeddings=False,
        )
    )
    for name, weight in model.model.layers.named_parameters():
        if weight.ndim > 1:
            # As in GPT-2, matrices that write to the residual stream start smaller, so that the
            # stream grows slowly with depth.
            writes = name.endswith(("o_proj.weight", "down_proj.weight"))
            torch.nn.init.normal_(
                weight, std=LAYER_INIT_STD / math.sqrt(2 * LAYERS) if writes else LAYER_INIT_STD
            )
    torch.nn.init.normal_(model.lm_head.weight, std=LAYER_INIT_STD)
    return model


def join(vision: CLIPVisionModel, language: LlamaForCausalLM) -> LlavaForConditionalGeneration:
    """Join two pretrained parts with a fresh projector.

    Args:
        vision: The pretrained vision encoder.
        language: The pretrained language model.

    Returns:
        A LLaVA model whose projector has PyTorch's default initialisation, as in LLaVA.
    """
    model = LlavaForConditionalGeneration(
        LlavaConfig(
            vision_config=vision.config,
            text_config=language.config,
            image_token_index=IMAGE_ID,
            image_seq_length=VISUAL_TOKENS,
            vision_feature_layer=VISION_FEATURE_LAYER,
            vision_feature_select_strategy="default",
            tie_word_embeddings=False,
        )
    )
    model.model.vision_tower.load_state_dict(vision.state_dict())
    model.model.language_model.load_state_dict(language.model.state_dict())
    model.lm_head.load_state_dict(language.lm_head.state_dict())
    for layer in model.model.multi_modal_projector.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.reset_parameters()
    model.generation_config.pad_token_id = PAD_ID
    model.generation_config.bos_token_id = BOS_ID
    model.generation_config.eos_token_id = EOS_ID
    return model
