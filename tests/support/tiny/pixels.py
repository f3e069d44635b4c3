"""Pixels as the processors lay them out: one function a layout, one row a type.

Each returns the fields of one image, whose first axis is the batch or can be concatenated.
"""

from collections.abc import Callable
from functools import partial
from math import ceil

import torch
from torch import Tensor
from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches

from support.tiny.fragments import PATCH, PINPOINTS, TILE

Inputs = dict[str, Tensor]
Size = tuple[int, int]
Layout = Callable[[Size, torch.Generator], Inputs]

# --- images and tiles of one size -----------------------------------------------------------------


def one_image(size: Size, random: torch.Generator, side: int = TILE) -> Inputs:
    """An encoder with a fixed image size."""
    return {"pixel_values": torch.randn(1, 3, side, side, generator=random)}


def two_resolutions(size: Size, random: torch.Generator) -> Inputs:
    """The same image for each of two encoders."""
    image = one_image(size, random)["pixel_values"]
    return {"pixel_values": image, "high_res_pixel_values": image.clone()}


def short_video(size: Size, random: torch.Generator) -> Inputs:
    """Two frames."""
    return {"pixel_values": torch.randn(1, 2, 3, TILE, TILE, generator=random)}


def flat_tiles(size: Size, random: torch.Generator) -> Inputs:
    """Tiles of all samples on one axis."""
    return {"pixel_values": torch.randn(_tiles(size), 3, TILE, TILE, generator=random)}


def stacked_tiles(size: Size, random: torch.Generator) -> Inputs:
    """Tiles on an axis of their own, always two."""
    return {"pixel_values": torch.randn(1, 2, 3, TILE, TILE, generator=random)}


def padded_tiles(size: Size, random: torch.Generator) -> Inputs:
    """Tiles on an axis of their own, filled up with empty tiles."""
    tiles = torch.randn(1, _tiles(size), 3, TILE, TILE, generator=random)
    return {
        "pixel_values": tiles,
        "pixel_attention_mask": torch.ones(1, _tiles(size), TILE, TILE, dtype=torch.long),
    }


def masked_tiles(size: Size, random: torch.Generator) -> Inputs:
    """As before, with one mask value a tile."""
    tiles = torch.randn(1, _tiles(size), 3, TILE, TILE, generator=random)
    return {
        "pixel_values": tiles,
        "pixel_attention_mask": torch.ones(1, _tiles(size), dtype=torch.bool),
    }


def pinpoint_tiles(size: Size, random: torch.Generator) -> Inputs:
    """An overview, then the tiles of the best pinpoint; the model crops to the image size."""
    tiles = image_size_to_num_patches(size, PINPOINTS, TILE)
    return {
        "pixel_values": torch.randn(1, tiles, 3, TILE, TILE, generator=random),
        "image_sizes": torch.tensor([size]),
    }


def mllama_tiles(size: Size, random: torch.Generator) -> Inputs:
    """Up to four tiles of one image; an id says how they lie."""
    tiles = torch.zeros(1, 1, 4, 3, TILE, TILE)
    tiles[:, :, :2] = torch.randn(2, 3, TILE, TILE, generator=random)
    return {
        "pixel_values": tiles,
        "aspect_ratio_ids": torch.full((1, 1), 2),
        "aspect_ratio_mask": torch.tensor([[[1, 1, 0, 0]]]),
    }


def molmo_crops(size: Size, random: torch.Generator) -> Inputs:
    """Patches of an overview and of one crop, and which four of them make one token."""
    side = TILE // PATCH
    indices = torch.arange(2 * side**2).view(2, side // 2, 2, side // 2, 2)
    return {
        "pixel_values": torch.randn(2, side**2, 3 * PATCH**2, generator=random),
        "image_token_pooling": indices.transpose(2, 3).reshape(-1, 4),
        "image_grids": torch.tensor([[side // 2] * 4]),
        "image_num_crops": torch.tensor([2]),
    }


def robot_camera(size: Size, random: torch.Generator) -> Inputs:
    """One camera, the state of the robot, and the noise that becomes its actions."""
    return {
        "pixel_values": torch.randn(1, 1, 3, TILE, TILE, generator=random),
        "pixel_attention_mask": torch.ones(1, 1, dtype=torch.bool),
        "state": torch.randn(1, 32, generator=random),
        "noise": torch.randn(1, 8, 32, generator=random),
        "timestep": torch.full((1,), 0.5),
    }


# --- images of any size ---------------------------------------------------------------------------


def sized_image(size: Size, random: torch.Generator) -> Inputs:
    """An image of one size, which is given beside it."""
    return one_image(size, random) | {"image_sizes": torch.tensor([[TILE, TILE]])}


def native_image(size: Size, random: torch.Generator) -> Inputs:
    """The image in its own size, padded to the largest of the batch."""
    return {
        "pixel_values": torch.randn(1, 3, *size, generator=random),
        "image_sizes": torch.tensor([size]),
    }


def patches(
    size: Size, random: torch.Generator, shape: tuple[int, ...], grid: str | None = "thw"
) -> Inputs:
    """Patches of all images on one axis, with the grid of each image."""
    height, width = _grid(size)
    inputs = {"pixel_values": torch.randn(height * width, *shape, generator=random)}
    if grid is not None:
        lengths = {"t": 1, "h": height, "w": width}
        inputs[f"image_grid_{grid}"] = torch.tensor([[lengths[axis] for axis in grid]])
    return inputs


#: Flattened patches, two equal frames deep.
double_patches = partial(patches, shape=(3 * 2 * PATCH**2,))
flat_patches = partial(patches, shape=(3 * PATCH**2,))
square_patches = partial(patches, shape=(3, PATCH, PATCH))


def merged_patches(size: Size, random: torch.Generator) -> Inputs:
    """Flattened patches, and how many a side the encoder merges."""
    return flat_patches(size, random) | {"image_merge_sizes": torch.tensor([2])}


def padded_patches(size: Size, random: torch.Generator) -> Inputs:
    """Patches of one image a row, padded to the largest of the batch."""
    height, width = _grid(size)
    return {
        "pixel_values": torch.randn(1, height * width, 3 * PATCH**2, generator=random),
        "pixel_attention_mask": torch.ones(1, height * width, dtype=torch.long),
        "spatial_shapes": torch.tensor([[height, width]]),
    }


def placed_patches(size: Size, random: torch.Generator) -> Inputs:
    """Patches of one image a row, each with its column and row; -1 is padding."""
    height, width = _grid(size)
    return {
        "pixel_values": torch.randn(1, height * width, 3 * PATCH**2, generator=random),
        "image_position_ids": _positions(height, width).flip(-1)[None],
    }


def numbered_patches(size: Size, random: torch.Generator) -> Inputs:
    """Patches that begin with their row and column, from 1."""
    height, width = _grid(size)
    pixels = torch.randn(height * width, 3 * PATCH**2, generator=random)
    return {"flattened_patches": torch.cat([_positions(height, width) + 1, pixels], dim=1)[None]}


def measured_patches(size: Size, random: torch.Generator) -> Inputs:
    """As before, with the grid. The processor fills all images up to one number of patches."""
    side = TILE // PATCH
    grid = {"height": torch.tensor([side]), "width": torch.tensor([side])}
    return numbered_patches((TILE, TILE), random) | grid


def masked_patches(size: Size, random: torch.Generator) -> Inputs:
    """Patches that begin with their row and column, and which of them are no padding."""
    inputs = numbered_patches(size, random)
    mask = torch.ones(inputs["flattened_patches"].shape[:2], dtype=torch.long)
    return inputs | {"attention_mask": mask}


def plain_patches(size: Size, random: torch.Generator) -> Inputs:
    """Patches of one image a row, always of one size."""
    return {"image_patches": torch.randn(1, (TILE // PATCH) ** 2, 3 * PATCH**2, generator=random)}


def packed_strip(size: Size, random: torch.Generator) -> Inputs:
    """The patches of all images in one long row; four by four make a token."""
    height, width = (4 * ceil(length / (4 * PATCH)) for length in size)
    return {
        "pixel_values": torch.randn(1, 3, PATCH, height * width * PATCH, generator=random),
        "target_sizes": torch.tensor([[height, width]], dtype=torch.int32),
    }


def _grid(size: Size) -> Size:
    return size[0] // PATCH, size[1] // PATCH


def _positions(height: int, width: int) -> Tensor:
    return torch.cartesian_prod(torch.arange(height), torch.arange(width))


def _tiles(size: Size) -> int:
    return ceil(size[0] / TILE) * ceil(size[1] / TILE)


#: Which types take their images in which layout.
LAYOUTS: dict[Layout, str] = {
    one_image: """
        llava gemma3 paligemma aria blip blip-2 chameleon deepseek_ocr2 deepseek_vl fast_vlm
        florence2 git got_ocr2 instructblip janus kosmos-2 pp_chart2table pp_formulanet
        shieldgemma2 step3p7 t5gemma2 udop unlimited_ocr video_llava vipllava
        vision-encoder-decoder clip clip_vision_model siglip siglip_vision_model
        """,
    partial(one_image, side=64): "gemma3n",  # its encoder shrinks images by 32
    two_resolutions: "deepseek_vl_hybrid",
    short_video: "instructblipvideo",
    flat_tiles: "internvl ovis2 aya_vision cohere2_vision llama4 qianfan_ocr",
    stacked_tiles: "idefics perception_lm",
    padded_tiles: "idefics2 idefics3 smolvlm",
    masked_tiles: "granite_docling",
    pinpoint_tiles: "llava_next llava_next_video llava_onevision granite4_vision",
    mllama_tiles: "mllama",
    molmo_crops: "molmo2",
    robot_camera: "pi0",
    sized_image: "emu3",
    native_image: "mistral3 lighton_ocr mistral_large4",
    double_patches: """
        qwen2_vl qwen2_5_vl qwen3_vl glm4v cohere_compass cosmos3_omni exaone4_5 glm46v glm4v_moe
        glm5_next glm_ocr glmga hyperclovax_vision_v2 lfm3_vl minimax_m3_vl muse_glimmer
        muse_spark qwen2_5_omni_thinker qwen3_5 qwen3_5_moe qwen3_omni_moe_thinker qwen3_vl_moe
        qwen4_exp
        """,
    flat_patches: "cosmos3_edge dots3_note ernie4_5_vl_moe hunyuan_vl",
    partial(patches, shape=(3 * PATCH**2,), grid="hw"): "nemotron_h_omni",
    square_patches: "kimi_k25 paddleocr_vl",
    partial(patches, shape=(2 * PATCH, 2 * PATCH, 3)): "inkling2",
    partial(patches, shape=(2, PATCH, PATCH, 3), grid=None): "inkling_mm_model",
    merged_patches: "video_llama_3",
    padded_patches: "lfm2_vl siglip2 siglip2_vision_model",
    placed_patches: "gemma4 gemma4_unified diffusion_gemma",
    masked_patches: "pix2struct",
    measured_patches: "kosmos-2.5",
    plain_patches: "fuyu",
    packed_strip: "minicpm_ocr minicpmv4_6 minicpmv4_7",
}
PIXELS = {name: layout for layout, names in LAYOUTS.items() for name in names.split()}
