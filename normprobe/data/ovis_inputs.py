"""Inputs of Ovis2.5, which has no processor: its model prepares them, with its tokenizer.

Read from published excerpts, not executed. Only the steps for one still image a prompt are here,
and the empty thinking block that its own code lets the chat template add is left out.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from normprobe.data.sample import Sample

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import BatchFeature

#: No rows of the text table: the model puts visual rows in the place of these ids.
PATCH, IMAGE_START, IMAGE_END = -300, -301, -302

#: The model's own default range of image sizes, in pixels.
MIN_PIXELS, MAX_PIXELS = 448 * 448, 1344 * 1792


def build_ovis2_5(
    tokenizer: Any, samples: Sequence[Sample], texts: Sequence[str]
) -> "BatchFeature":
    """One batch, padded on the right.

    Args:
        tokenizer: of the checkpoint; its folder also names the image processor and patch sizes.
        samples: of ``texts``.
        texts: rendered prompts, ``<image>`` where the image belongs.

    Returns:
        ``input_ids``, ``attention_mask``, and ``pixel_values`` [patches, values] with ``grid_thws``
        [images, 3], both None without images.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence
    from transformers import BatchFeature

    patches = _Patches(tokenizer.name_or_path)
    pixels: list[Tensor] = []
    grids: list[Tensor] = []
    rows = []
    for sample, text in zip(samples, texts, strict=True):
        before, *after = (
            tokenizer(piece, add_special_tokens=False)["input_ids"]
            for piece in (text.split("<image>", 1) if sample.image is not None else [text])
        )
        if sample.image is not None:
            flat, grid = patches(sample.image)
            pixels.append(flat)
            grids.append(grid)
            before += [IMAGE_START, *[PATCH] * patches.rows_of(grid), IMAGE_END]
        rows.append(torch.tensor([*before, *(after[0] if after else [])]))
    masks = [torch.ones_like(row) for row in rows]
    return BatchFeature(
        {
            "input_ids": pad_sequence(rows, batch_first=True),
            "attention_mask": pad_sequence(masks, batch_first=True),
            "pixel_values": torch.cat(pixels) if pixels else None,
            "grid_thws": torch.stack(grids) if grids else None,
        }
    )


class _Patches:
    """An image to flat patches, in blocks of ``stride`` x ``stride`` that become one row."""

    def __init__(self, source: str) -> None:
        from transformers import AutoImageProcessor, PreTrainedConfig

        vision = PreTrainedConfig.get_config_dict(source)[0]["vit_config"]
        self._size: int = vision["patch_size"]
        self._stride: int = vision["hidden_stride"]
        self._frames: int = vision["temporal_patch_size"]
        auto: Any = AutoImageProcessor
        self._processor = auto.from_pretrained(source, do_center_crop=False)

    def __call__(self, image: Any) -> tuple["Tensor", "Tensor"]:
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
        # Row, column and place in a block first; then what one patch holds.
        flat = blocks.permute(2, 5, 3, 6, 1, 0, 4, 7).reshape(high * wide, -1)
        return flat, torch.tensor([1, high, wide])

    def rows_of(self, grid: "Tensor") -> int:
        """How many rows of the sequence a grid of patches becomes."""
        return int(grid.prod()) // self._stride**2
