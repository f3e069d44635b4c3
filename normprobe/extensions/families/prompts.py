"""Families whose processor takes whole prompts, with a placeholder of their own for each image.

MiniCPM-V 2.6, as its method ``chat`` makes its inputs. Its processor has no chat template: that of
its tokenizer is rendered with a placeholder a line for each image, and the processor writes the
slices of the image there. The model takes everything but the attention mask as one dict.

- ``image_bound`` marks the positions of an image, no id does: ``<unk>`` may stand elsewhere.
- The marks around slices are words of the vocabulary; no row is structural.
- The processor takes id 0 for padding, which is ``!`` in this vocabulary: an ``!`` in a prompt is
  masked, so it is in no group, and positions do not count it. Generation does the same.

Phi-3-vision and Phi-3.5-vision: the published examples write ``<|image_1|>`` and a line break
before the question and apply the chat template of the tokenizer. In ``input_ids`` stand the
negative number of the image, once for each of its rows.

Phi-4-multimodal: the published examples write the roles by hand, without line breaks. The processor
pads on the left and says by ``input_mode`` whether there are images: only then do the decoder
layers run with the adapter for vision, so a prompt without an image goes through other weights.

Of both Phis every line of visual tokens ends in a learned separator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isqrt
from typing import TYPE_CHECKING, Any

from normprobe.data.sample import Sample
from normprobe.inputs.chat import NO_SYSTEM, refuse_placeholder, render_chat, with_placeholder
from normprobe.inputs.inputs_file import InputsFile
from normprobe.schema import STRUCTURAL_MASK, VISUAL_MASK

if TYPE_CHECKING:
    from transformers import BatchFeature

_PLACEHOLDER = "(<image>./</image>)"
#: MiniCPM-V's processor would take the positions between two of these for a slice.
_MARKS = ("<image>", "</image>", "<slice>", "</slice>")

_PHI4_IMAGE, _PHI4_AUDIO = 200010, 200011  # constants of its code, in no config


def _build_minicpm(
    model: Any, processor: Any, samples: Sequence[Sample], system: str | None
) -> BatchFeature:
    """``data`` and ``attention_mask``, padded on the left; one list of images a prompt."""
    from transformers import BatchFeature

    for mark in _MARKS:
        refuse_placeholder(samples, mark)
    texts = render_chat(processor.tokenizer, [_as_text(sample) for sample in samples], system)
    images = [list(sample.images) for sample in samples]
    made = processor(texts, images, return_tensors="pt")
    mask = made["attention_mask"].long()
    taken = ("input_ids", "pixel_values", "tgt_sizes", "image_bound")
    data = {name: made[name] for name in taken}
    data["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    return BatchFeature({"data": data, "attention_mask": mask})


def _as_text(sample: Sample) -> Sample:
    """Texts and placeholders, one a line."""
    lines = [piece if isinstance(piece, str) else _PLACEHOLDER for piece in sample.pieces]
    return replace(sample, prompt="\n".join(lines), images=())


def _build_phi3(
    model: Any, processor: Any, samples: Sequence[Sample], system: str | None
) -> dict[str, Any]:
    """One batch, padded on the right; crops are padded by the processor, all to one number."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    placed = with_placeholder(samples, "<|image_{}|>\n")
    texts = render_chat(processor.tokenizer, placed, system)
    made = [
        processor(text, images=list(sample.images) or None, return_tensors="pt")
        for text, sample in zip(texts, samples, strict=True)
    ]
    prompts = [one["input_ids"][0] for one in made]
    batch = {
        "input_ids": pad_sequence(prompts, batch_first=True),
        "attention_mask": pad_sequence([torch.ones_like(ids) for ids in prompts], batch_first=True),
    }
    seen = [one for one in made if "pixel_values" in one]
    if not seen:
        return batch
    pixels = torch.cat([one["pixel_values"] for one in seen])
    sizes = torch.cat([torch.as_tensor(one["image_sizes"]) for one in seen])
    order = model.config.embd_layer.get("hd_transform_order", "glb_sub")
    side = isqrt(processor.num_img_tokens)  # of a crop, in tokens
    crops = (sizes // pixels.shape[-1]).tolist()
    images = [_of_image(high * side, wide * side, side, order) for high, wide in crops]
    return {
        **batch,
        "pixel_values": pixels,
        "image_sizes": sizes,
        **_masks(batch["input_ids"] < 0, images),
    }


def _build_phi4(
    model: Any, processor: Any, samples: Sequence[Sample], system: str | None
) -> dict[str, Any]:
    """One batch, without the empty inputs for what the prompts do not hold."""
    images = [image for sample in samples for image in sample.images]
    if images and not all(sample.images for sample in samples):
        raise ValueError("samples with and without an image run with different weights")
    opening = "" if system in (None, NO_SYSTEM) else f"<|system|>{system}<|end|>"
    texts = [
        f"{opening}<|user|>{sample.prompt}<|end|><|assistant|>"
        for sample in with_placeholder(samples, "<|image_{}|>")
    ]
    made = processor(text=texts, images=images or None, return_tensors="pt")
    batch = {name: value for name, value in made.items() if not _is_empty(value)}
    # Padding stands on the left: positions count from the first token of the prompt.
    batch["position_ids"] = (batch["attention_mask"].long().cumsum(-1) - 1).clamp(min=0)
    if images:
        order = model.config.embd_layer["image_embd_layer"].get("hd_transform_order", "glb_sub")
        crop = made["input_image_embeds"].shape[-1]
        grids = zip(made["image_sizes"].tolist(), made["image_attention_mask"], strict=True)
        rows = [
            _of_image(*_grid(kept, high // crop, wide // crop), len(kept[0]) // 2, order)
            for (high, wide), kept in grids
        ]
        batch |= _masks(batch["input_ids"] == _PHI4_IMAGE, rows)
    return batch


def _is_empty(value: Any) -> bool:
    return value is None or getattr(value, "numel", lambda: len(value))() == 0


def _grid(kept: Any, high: int, wide: int) -> tuple[int, int]:
    """Rows and columns of visual tokens of an image, without those of padding.

    Args:
        kept: ``[1 + crops, patches, patches]``, the thumbnail first: 0 at padding. Two by two
            patches make a token.
        high: crops of the image from top to bottom.
        wide: from left to right.
    """
    tokens = kept[1 : 1 + high * wide, ::2, ::2]
    crops = tokens.reshape(high, wide, *tokens.shape[1:])
    return int(crops[:, 0, :, 0].sum()), int(crops[0, :, 0, :].sum())


def _of_image(rows: int, columns: int, thumbnail: int, order: str) -> list[bool]:
    """Which rows of an image at the decoder input are separators.

    One follows each line of tokens, and one stands between the image and its thumbnail.
    """
    image = ([False] * columns + [True]) * rows
    small = ([False] * thumbnail + [True]) * thumbnail
    return [*image, True, *small] if order == "sub_glb" else [*small, True, *image]


def _masks(visual: Any, images: Sequence[Sequence[bool]]) -> dict[str, Any]:
    """The two masks of an inputs file.

    Args:
        visual: ``[batch, seq]`` bool: the rows of all images.
        images: ``of_image`` of each, in the order of the batch.
    """
    import torch

    structural = torch.zeros_like(visual)
    structural[visual] = torch.tensor([row for image in images for row in image])
    return {VISUAL_MASK: visual, STRUCTURAL_MASK: structural}


MINICPMV = InputsFile(
    build=_build_minicpm,
    parts={
        "vision_encoder": "vpm",
        "projector": "resampler",
        "text_embedding": "llm.model.embed_tokens",
        "decoder_layers": "llm.model.layers",
        "positions": "perturbation",  # `image_bound` marks them
    },
)
PHI3_V = InputsFile(
    build=_build_phi3,
    parts={
        "vision_encoder": "model.vision_embed_tokens.img_processor",
        "projector": "model.vision_embed_tokens.img_projection",
        "text_embedding": "model.embed_tokens",
        "decoder_layers": "model.layers",
        "positions": "perturbation",  # `visual_mask` marks them
    },
)
PHI4MM = InputsFile(
    build=_build_phi4,
    parts={
        "vision_encoder": "model.embed_tokens_extend.image_embed.img_processor",
        "projector": "model.embed_tokens_extend.image_embed.img_projection",
        "text_embedding": "model.embed_tokens",
        "decoder_layers": "model.layers",
        "image_token_ids": (_PHI4_IMAGE,),
        "audio_token_ids": (_PHI4_AUDIO,),
    },
)
