"""Inputs of Ovis2.5, which has no processor: its model prepares them, with its tokenizer.

Only the steps for one still image a prompt are here, and the empty thinking block that its own code
lets the chat template add is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from normprobe.data.sample import Sample
from normprobe.inputs.chat import render_chat
from normprobe.inputs.families.placeholders import with_placeholder

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor
    from transformers import BatchFeature

MODEL_TYPES = ("ovis2_5",)

#: Ids that the text embedding table does not hold: the model puts visual tokens in their place.
PATCH, IMAGE_START, IMAGE_END = -300, -301, -302

#: The model's own default range of image sizes, in pixels.
MIN_PIXELS, MAX_PIXELS = 448 * 448, 1344 * 1792


def build(processor: Any, samples: Sequence[Sample], system: str | None) -> BatchFeature:
    """One batch, padded on the right.

    Args:
        processor: the tokenizer of the checkpoint; its folder also holds the settings of the image
            processor and the patch sizes.
        samples: at least one.
        system: as ``InputBuilder`` takes it.

    Returns:
        ``input_ids``, ``attention_mask``, and ``pixel_values`` [patches, values] with ``grid_thws``
        [images, 3], both None without images.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence
    from transformers import BatchFeature

    placed = with_placeholder(samples, "<image>\n")
    texts = render_chat(processor, placed, system)
    patches = _Patches(processor.name_or_path)
    pixels: list[Tensor] = []
    grids: list[Tensor] = []
    prompts = []
    for sample, text in zip(samples, texts, strict=True):
        before, *after = (
            processor(piece, add_special_tokens=False)["input_ids"]
            for piece in (text.split("<image>", 1) if sample.image is not None else [text])
        )
        if sample.image is not None:
            flat, grid = patches(sample.image)
            pixels.append(flat)
            grids.append(grid)
            before += [IMAGE_START, *[PATCH] * patches.tokens_of(grid), IMAGE_END]
        prompts.append(torch.tensor([*before, *(after[0] if after else [])]))
    masks = [torch.ones_like(ids) for ids in prompts]
    return BatchFeature(
        {
            "input_ids": pad_sequence(prompts, batch_first=True),
            "attention_mask": pad_sequence(masks, batch_first=True),
            "pixel_values": torch.cat(pixels) if pixels else None,
            "grid_thws": torch.stack(grids) if grids else None,
        }
    )


class _Patches:
    """Cuts images into flat patches. Each block of ``stride`` x ``stride`` becomes one token."""

    def __init__(self, source: str) -> None:
        from transformers import AutoImageProcessor, PreTrainedConfig

        vision = PreTrainedConfig.get_config_dict(source)[0]["vit_config"]
        self._size: int = vision["patch_size"]
        self._stride: int = vision["hidden_stride"]
        self._frames: int = vision["temporal_patch_size"]
        auto: Any = AutoImageProcessor
        self._processor = auto.from_pretrained(source, do_center_crop=False)

    def __call__(self, image: Image) -> tuple[Tensor, Tensor]:
        """Return ``[patches, values]``, and the grid: 1 frame, patches high, patches wide."""
        import torch
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        size, stride, frames = self._size, self._stride, self._frames
        height, width = smart_resize(
            image.height, image.width, size * stride, MIN_PIXELS, MAX_PIXELS
        )
        resized = self._processor.preprocess(
            image, size={"height": height, "width": width}, return_tensors="pt"
        )["pixel_values"][0]
        high, wide = height // size, width // size
        blocks = resized.expand(frames, -1, -1, -1).reshape(
            frames, -1, high // stride, stride, size, wide // stride, stride, size
        )
        # Patches go block by block, and within a block row by row; then what one patch holds.
        flat = blocks.permute(2, 5, 3, 6, 1, 0, 4, 7).reshape(high * wide, -1)
        return flat, torch.tensor([1, high, wide])

    def tokens_of(self, grid: Tensor) -> int:
        """How many visual tokens a grid of patches becomes."""
        return int(grid.prod()) // self._stride**2
