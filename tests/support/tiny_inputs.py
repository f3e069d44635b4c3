"""Inputs for the tiny models, as a processor would return them, without a processor.

A sample is built as a batch of one. A batch is its samples padded and concatenated, so a batch
of four and four batches of one hold the same tokens and the same pixels.
"""

from collections.abc import Sequence
from copy import deepcopy
from inspect import signature
from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from normprobe.versions import is_line_5
from support.tiny.media import EARS, media_sample
from support.tiny.pixels import PIXELS, Inputs, Size
from support.tiny_models import (
    BEFORE_5_22,
    BOS,
    FIRST_TEXT,
    IMAGE,
    IMAGE_END,
    IMAGE_START,
    INDICATORS,
    LANGUAGE_MODELS,
    MEDIA_OTHERWISE,
    PAD,
    VIDEO,
    VISION_ENCODERS,
    VOCABULARY,
    WITHOUT_IMAGES,
    tiny_model,
)

#: Height and width in pixels, taken in turn. Types with one fixed image size ignore them.
SIZES: tuple[Size, ...] = ((16, 16), (16, 32), (24, 40), (32, 16))

#: Inputs with one value a token.
TOKEN_FIELDS = (
    "input_ids",
    "attention_mask",
    "mm_token_type_ids",
    "moe_mm_token_type_ids",
    "token_type_ids",
    "image_embeds_position_mask",
    "image_attention_mask",
    "cross_attention_mask",
    "bbox",
)
#: Inputs that hold pixels.
PIXEL_FIELDS = ("pixel_values", "high_res_pixel_values", "image_patches", "flattened_patches")
#: Where a type packs its patches, one strip for all samples.
ONE_STRIP = ("pixel_values", "pixel_values_videos")
POOLINGS = {
    "image_token_pooling": "pixel_values",
    "video_token_pooling": "pixel_values_videos",
}
#: What surrounds the image tokens.
WRAPPERS = {"ovis2": (INDICATORS[0], INDICATORS[1])}
#: Tokens that a tokenizer would call special. The image token is one, and stays visual.
SPECIAL_IDS = (PAD, BOS, IMAGE, IMAGE_START, IMAGE_END)

#: How many image tokens the prompt has, where the features of the image do not tell.
IMAGE_TOKENS = {
    "blip": 0,
    "git": 0,
    "idefics": 1,
    "mllama": 1,
    "udop": 0,
    "kosmos-2": 4,
    "kosmos-2.5": 4,
    "instructblip": 4,
    "instructblipvideo": 8,
    "pi0": 16,
}
#: Types whose output for a sample depends on its batch, and why.
UNBATCHABLE = {
    "diffusion_gemma": "its decoder needs a mask over the padded prompt, which generation makes",
    "hunyuan_vl": "positions count the images of the whole batch",
    "udop": "image patches come after the padding",
}
_ABSOLUTE = "positions are counted from the left, padding included"
RIGHT_PADDED = {
    "blip": _ABSOLUTE,
    "florence2": _ABSOLUTE,
    "git": _ABSOLUTE,
    "mistral_large4": _ABSOLUTE,
}
#: Decoders that read the image alone.
PROMPTLESS = ("pix2struct", "pp_formulanet", "vision-encoder-decoder")


def tiny_inputs(
    model: PreTrainedModel,
    batch_size: int = 1,
    padding: Literal["right", "left"] = "right",
    sizes: Sequence[Size] = SIZES,
    seed: int = 0,
) -> Inputs:
    """A batch of one image and some text a sample, of different lengths."""
    return collate(tiny_samples(model, batch_size, sizes, seed), padding)


def tiny_samples(
    model: PreTrainedModel,
    count: int,
    sizes: Sequence[Size] = SIZES,
    seed: int = 0,
) -> list[Inputs]:
    """Batches of one; sample i is the same whatever the count."""
    model_type = model.config.model_type
    samples = []
    for index in range(count):
        random = torch.Generator().manual_seed(1000 * seed + index)
        sample: Inputs = {}
        if model_type not in (*LANGUAGE_MODELS, *WITHOUT_IMAGES):
            sample |= PIXELS[model_type](sizes[index % len(sizes)], random)
        if model_type not in VISION_ENCODERS:
            sample |= _prompt(model, model_type, sample, index, random)
        samples.append(sample)
    return samples


def collate(samples: Sequence[Inputs], padding: Literal["right", "left"] = "right") -> Inputs:
    """Pad with zeros to the largest sample, tokens on the chosen side, and concatenate."""
    batch = {}
    for name in samples[0]:
        tensors = [sample[name] for sample in samples]
        if name in ONE_STRIP and "target_sizes" in samples[0]:
            batch[name] = torch.cat(tensors, dim=-1)
            continue
        if name in POOLINGS:  # indices into the patches of the whole batch
            counts = [sample[POOLINGS[name]].shape[:2].numel() for sample in samples]
            tensors = [t + sum(counts[:i]) for i, t in enumerate(tensors)]
        shape = [max(lengths) for lengths in zip(*(t.shape[1:] for t in tensors), strict=True)]
        left = padding == "left" and name in TOKEN_FIELDS and "input_ids" in samples[0]
        value = -1 if name in ("image_position_ids", "video_position_ids") else 0
        batch[name] = torch.cat([_padded(tensor, shape, left, value) for tensor in tensors])
    return batch


def tiny_media(model: PreTrainedModel, batch_size: int = 1, seed: int = 0) -> Inputs:
    """A batch with an image, a video and a sound a sample, as far as the type takes them."""
    samples = []
    for index in range(batch_size):
        random = torch.Generator().manual_seed(1000 * seed + index)
        size = SIZES[index % len(SIZES)]
        samples.append(media_sample(model, size, 2 + index, random, count_image_tokens))
    return collate(samples)


def heard_and_seen(model_type: str, seed: int = 0) -> PreTrainedModel:
    """With the audio side that the tiny model of the type is built without."""
    if BEFORE_5_22 and is_line_5() and model_type in MEDIA_OTHERWISE:
        pytest.skip(f"transformers 5.16 to 5.21: {model_type} {MEDIA_OTHERWISE[model_type]}")
    ears = {"audio_config": deepcopy(EARS[model_type])} if model_type in EARS else {}
    return tiny_model(model_type, seed, **ears)


def _padded(tensor: Tensor, shape: Sequence[int], left: bool, value: int) -> Tensor:
    amounts = []
    for wanted, length in zip(reversed(shape), reversed(tensor.shape[1:]), strict=True):
        amounts += [wanted - length, 0] if left else [0, wanted - length]
    return pad(tensor, amounts, value=value)


def _prompt(
    model: PreTrainedModel, model_type: str, pixels: Inputs, index: int, random: torch.Generator
) -> Inputs:
    """Beginning of sequence, text, image, text; and what else the type reads beside it."""
    before, after = _text(2 + index % 3, random), _text(3 + 5 * index % 7, random)
    accepted = signature(model.forward).parameters
    prompt = {}
    if model_type not in PROMPTLESS:
        token = VIDEO if model_type == "instructblipvideo" else IMAGE
        image = [token] * count_image_tokens(model, pixels) if pixels else []
        start, end = WRAPPERS.get(model_type, (IMAGE_START, IMAGE_END))
        ids = torch.tensor([[BOS, *before, start, *image, end, *after]])
        prompt = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        prompt |= _beside(model_type, ids, (ids == token).long(), accepted)
    if "qformer_input_ids" in accepted:
        ids = torch.tensor([[BOS, *_text(3, random)]])
        prompt |= {"qformer_input_ids": ids, "qformer_attention_mask": torch.ones_like(ids)}
    if model.config.is_encoder_decoder or model_type in (*PROMPTLESS, "diffusion_gemma"):
        prompt["decoder_input_ids"] = torch.tensor([[BOS, *_text(7, random)]])
    return prompt


def _beside(model_type: str, ids: Tensor, is_image: Tensor, accepted: Sequence[str]) -> Inputs:
    """What describes the tokens one by one."""
    fields = {}
    for name in ("mm_token_type_ids", "moe_mm_token_type_ids", "image_embeds_position_mask"):
        if name in accepted or (model_type, name) == ("diffusion_gemma", "mm_token_type_ids"):
            fields[name] = is_image
    if model_type in ("gemma3", "gemma3n", "shieldgemma2"):
        fields["token_type_ids"] = is_image
    elif model_type == "paligemma":
        fields["token_type_ids"] = torch.zeros_like(ids)  # all of it is prefix
    elif model_type == "mllama":
        fields["cross_attention_mask"] = torch.ones(*ids.shape, 1, 4, dtype=torch.long)
        fields["cross_attention_mask"][..., 2:] = 0  # empty tiles
    elif model_type == "idefics":
        fields["image_attention_mask"] = torch.ones(*ids.shape, 2, dtype=torch.long)
    elif model_type == "udop":  # the words stand in one line
        left = torch.arange(ids.shape[1]) / ids.shape[1]
        top = torch.full_like(left, 0.5)
        fields["bbox"] = torch.stack([left, top, left, top], dim=-1)[None]
    return fields


def _text(length: int, random: torch.Generator) -> list[int]:
    return torch.randint(FIRST_TEXT, VOCABULARY, (length,), generator=random).tolist()


@torch.no_grad()
def count_image_tokens(model: PreTrainedModel, pixels: Inputs) -> int:
    """How many rows the model will write for this image."""
    if model.config.model_type in IMAGE_TOKENS:
        return IMAGE_TOKENS[model.config.model_type]
    if "image_patches" in pixels:
        return pixels["image_patches"].shape[1]
    owner = [module for module in model.modules() if hasattr(module, "get_image_features")][-1]
    accepted = signature(owner.get_image_features).parameters
    fields = {name: tensor for name, tensor in pixels.items() if name in accepted}
    if not is_line_5():
        features = owner.get_image_features(**fields)
        if isinstance(features[0], tuple) or model.config.model_type == "ovis2":
            features = features[0]  # DeepStack features or visual indicators stand beside them
        return sum(image.shape[:-1].numel() for image in features)
    outputs = owner.get_image_features(**fields, return_dict=True)
    features = getattr(outputs, "pooler_output", None)  # 5.16 and 5.17 put it beside the fields
    if features is None and "deepstack_features" in outputs:
        features = outputs.deepstack_features[0][1]  # an index, the features of each image
    elif features is None:
        features = outputs.last_hidden_state
    return sum(image.shape[:-1].numel() for image in features)


def perturbed(inputs: Inputs, seed: int = 1) -> Inputs:
    """The same batch with other pixels. Empty tiles and padded pixels stay zero."""
    random = torch.Generator().manual_seed(10**9 + seed)  # samples have smaller seeds
    others = dict(inputs)
    for name in PIXEL_FIELDS:
        if name in inputs:
            pixels = inputs[name]
            noise = torch.randn(pixels.shape, generator=random)
            others[name] = torch.where(pixels != 0, noise, 0.0)
    if "flattened_patches" in inputs:  # the first two values of a patch are its place
        others["flattened_patches"][..., :2] = inputs["flattened_patches"][..., :2]
    return others
