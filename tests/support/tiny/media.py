"""Prompts with a video and a sound beside the image, for the types that take them.

Videos are laid out as the type's images are, under the names of videos; those of encoders with a
fixed image size have two frames.
"""

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
import transformers
from packaging.version import Version
from transformers import PreTrainedModel

from support.tiny.fragments import (
    AUDIO,
    BOS,
    FIRST_TEXT,
    IMAGE,
    IMAGE_END,
    IMAGE_START,
    MEDIA_END,
    MEDIA_START,
    PATCH,
    TILE,
    VIDEO,
    VOCABULARY,
)
from support.tiny.pixels import PIXELS, Inputs, Size

#: Types that write a video with the placeholders of an image; the second take one of the two alone.
VIDEOS_AS_IMAGES = ("glm5_next",)
EITHER = ("glm4v", "glm46v", "glm4v_moe", "glm_ocr", "glmga", "molmo2")

#: Begins and ends a video with tokens of its own, and merges two frames.
SPANNED = ("ernie4_5_vl_moe",)

#: Encoders with a fixed image size take frames ``[1, frames, 3, height, width]``.
FRAMES = ("llava_next_video", "llava_onevision", "video_llava", "perception_lm")

#: Settings that some accessors of transformers 4 want to be told.
FEATURES = ("vision_feature_layer", "vision_feature_select_strategy")

#: What an input of images is called for videos.
NAMES = {
    "pixel_values": "pixel_values_videos",
    "image_grid_thw": "video_grid_thw",
    "image_merge_sizes": "video_merge_sizes",
    "image_position_ids": "video_position_ids",
    "target_sizes": "target_sizes_videos",
}


#: Takes no video in transformers 5.23: it joins one tensor as if it were several.
WITHOUT_VIDEO = ("nemotron_h_omni",)


def media_of(model: PreTrainedModel) -> set[str]:
    """Which of video and audio a tiny model takes."""
    kind, fields = model.config.model_type, signature(model.forward).parameters
    sees = "pixel_values_videos" in fields and kind not in WITHOUT_VIDEO
    hears = kind in SOUNDS and (kind not in EARS or model.config.audio_config is not None)
    return {name for name, held in (("video", sees), ("audio", hears)) if held}


def media_sample(
    model: PreTrainedModel,
    size: Size,
    words: int,
    random: torch.Generator,
    count_image_tokens: Callable[[PreTrainedModel, Inputs], int],
) -> Inputs:
    """A batch of one: text, then an image, a video and a sound, each with text behind it."""
    kind, taken = model.config.model_type, media_of(model)
    video_id = IMAGE if kind in (*VIDEOS_AS_IMAGES, *EITHER) else VIDEO
    segments, types, sample = [BOS, *_text(words, random)], [0] * (1 + words), {}

    def add(start: int, token: int, rows: int, end: int, said: int) -> None:
        following = _text(words, random)
        segments.extend([start, *[token] * rows, end, *following])
        types.extend([0, *[said] * rows, 0, *[0] * len(following)])

    if kind not in EITHER:
        pixels = PIXELS[kind](size, random)
        sample |= pixels
        add(IMAGE_START, IMAGE, count_image_tokens(model, pixels), IMAGE_END, 1)
    if "video" in taken:
        video = _video(kind, size, random)
        sample |= video
        spans = kind in SPANNED or video_id == IMAGE
        start, end = (MEDIA_START, MEDIA_END) if spans else (IMAGE_START, IMAGE_END)
        add(start, video_id, _rows(model, "video", video), end, 2)
    if "audio" in taken:
        sound = SOUNDS[kind](random)
        sample |= sound
        add(MEDIA_START, AUDIO, _rows(model, "audio", sound), MEDIA_END, 3)
    ids = torch.tensor([segments])
    sample |= {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    for name in ("mm_token_type_ids", "moe_mm_token_type_ids"):
        if name in signature(model.forward).parameters:
            sample[name] = torch.tensor([types])
    return sample


def _video(kind: str, size: Size, random: torch.Generator) -> Inputs:
    if kind in FRAMES:
        return {"pixel_values_videos": torch.randn(1, 2, 3, TILE, TILE, generator=random)}
    if kind == "molmo2":
        side = TILE // PATCH
        pooled = torch.arange(side**2).view(side // 2, 2, side // 2, 2).transpose(1, 2)
        return {
            "pixel_values_videos": torch.randn(1, side**2, 3 * PATCH**2, generator=random),
            "video_token_pooling": pooled.reshape(-1, 4),
            "video_grids": torch.tensor([[1, side // 2, side // 2]]),
        }
    video = {NAMES[name]: tensor for name, tensor in PIXELS[kind](size, random).items()}
    if kind in SPANNED:
        other = PIXELS[kind](size, random)["pixel_values"]
        video["pixel_values_videos"] = torch.cat([video["pixel_values_videos"], other])
        video["video_grid_thw"][:, 0] = 2
    if kind in ("qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"):
        video["video_second_per_grid"] = torch.ones(1)
    if "video_position_ids" in video:
        video["num_frames_per_video"] = torch.tensor([1])
    return video


def _features(random: torch.Generator, frames: int, width: int) -> Inputs:
    """Of which the last quarter is padding."""
    there = torch.arange(frames) < frames - frames // 4
    spectrum = torch.randn(1, frames, width, generator=random) * there[None, :, None]
    return {"input_features": spectrum, "input_features_mask": there[None]}


def _waveform(random: torch.Generator, samples: int) -> Inputs:
    return {"input_values": torch.randn(1, samples, generator=random)}


def _mel(random: torch.Generator, mask: str) -> Inputs:
    spectrum = torch.randn(1, 16, 16, generator=random)
    return {"input_features": spectrum, mask: torch.ones(1, 16, dtype=torch.long)}


def _chunks(random: torch.Generator) -> Inputs:
    return {
        "input_features": torch.randn(1, 16, 16, generator=random),
        "chunk_sample_lengths": torch.tensor([16 * 160]),
    }


def _codes(random: torch.Generator) -> Inputs:
    return {"audio_input_ids": torch.randint(0, 16, (1, 5, 8), generator=random)}


SOUNDS = {
    "dots3_note": _chunks,
    "gemma4": lambda random: _features(random, 64, 16),
    "gemma4_unified": lambda random: _features(random, 8, 32),
    "inkling_mm_model": _codes,
    "nemotron_h_omni": lambda random: _features(random, 64, 16),
    "muse_spark": lambda random: _waveform(random, 5 * 96),
    "qwen2_5_omni_thinker": lambda random: _mel(random, "feature_attention_mask"),
    "qwen3_omni_moe_thinker": lambda random: _mel(random, "feature_attention_mask"),
}


#: What these types need to hear, which their tiny models are built without.
EARS: dict[str, dict[str, Any]] = {
    "gemma4": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "subsampling_conv_channels": [16, 4],
        "output_proj_dims": 48,
    },
    "gemma4_unified": {"audio_embed_dim": 32, "output_proj_dims": 32},
    "nemotron_h_omni": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "subsampling_conv_channels": 8,
        "num_mel_bins": 16,
        "projection_hidden_size": 48,
        "projection_bias": False,
    },
}


@torch.no_grad()
def features_of(model: PreTrainedModel, modality: str, fields: Inputs) -> Any:
    """What the model itself returns of a video or a sound alone."""
    # PerceptionLM has no accessor of its own for videos.
    for accessor in (f"get_{modality}_features", "get_image_features"):
        owners = [module for module in model.modules() if hasattr(module, accessor)]
        if owners:
            break
    ask = getattr(owners[-1], accessor)
    accepted = signature(ask).parameters
    if modality == "video" and "pixel_values" in accepted:
        fields = fields | {"pixel_values": fields["pixel_values_videos"]}
    chosen = {name: getattr(model.config, name, None) for name in FEATURES}
    return ask(**{name: value for name, value in (chosen | fields).items() if name in accepted})


def _rows(model: PreTrainedModel, modality: str, fields: Inputs) -> int:
    """How many rows the model will write for this video or sound."""
    features = features_of(model, modality, fields)
    if getattr(features, "attention_mask", None) is not None:
        return int(features.attention_mask.sum())  # Gemma's sounds
    if hasattr(features, "last_hidden_state"):
        pooled = getattr(features, "pooler_output", None)
        features = features.last_hidden_state if pooled is None else pooled
    if isinstance(features, tuple) and isinstance(features[0], tuple | list):
        features = features[0]  # DeepStack features stand beside them in transformers 4
    rows = sum(each.shape[:-1].numel() for each in features)
    before_5_18 = Version(transformers.__version__) < Version("5.18")
    newline = model.config.model_type == "llava_onevision" and before_5_18  # added later there
    return rows + newline


def _text(length: int, random: torch.Generator) -> list[int]:
    return torch.randint(FIRST_TEXT, VOCABULARY, (length,), generator=random).tolist()
