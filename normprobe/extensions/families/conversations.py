"""Families that take conversations: DeepSeek-VL2 by its processor, Ovis2.5 by the model itself.

DeepSeek-VL2, as its ``inference.py`` makes its inputs. The code is no part of a checkpoint but an
installed package, ``deepseek_vl2``: importing it registers the classes. It has no chat template:
its processor writes the roles, and takes a system prompt as the first message; the argument
``system_prompt`` reaches no token. One id stands for all rows of an image, and ``images_seq_mask``
marks them. At the end of each line of patches a learned newline is among them, and a learned
separator between the overview and the tiles: these rows are structural. More than two images in a
sample are not cut into tiles.

Ovis2.5 prepares its inputs itself (``preprocess_inputs``), of one conversation.

- Ids below 0 stand for an image: -300 for each visual token, -301 and -302 for its start and end,
  which are rows of the visual table that no pixel changes: structural.
- The image processor that its folder names knows nothing of prompts, and the model deletes
  ``<image>`` from texts: images are parts of a message.
- The default conversation ends in an empty thinking block, and has no system prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError
from normprobe.inputs.chat import NO_SYSTEM, content_of, refuse_placeholder, with_placeholder
from normprobe.inputs.inputs_file import InputsFile

if TYPE_CHECKING:
    from transformers import BatchFeature


def _import_deepseek() -> None:
    """Import the package, which registers its classes."""
    try:
        import deepseek_vl2.models  # type: ignore[import-not-found]  # noqa: F401
    except ModuleNotFoundError as error:
        # It names old versions of torch and transformers as its dependencies.
        raise NormprobeError(
            f"DeepSeek-VL2 runs with code of its own, and the package {error.name} is missing",
            "pip install --no-deps git+https://github.com/deepseek-ai/DeepSeek-VL2, and "
            "pip install attrdict einops timm torchvision xformers",
        ) from error


def _deepseek_processor(path: str) -> Any:
    """The package's: AutoProcessor finds a tokenizer alone."""
    from deepseek_vl2.models import DeepseekVLV2Processor

    return DeepseekVLV2Processor.from_pretrained(path)


def _build_deepseek(
    model: Any, processor: Any, samples: Sequence[Sample], system: str | None
) -> BatchFeature:
    """One batch, padded on the left by the processor's own ``batchify``."""
    from transformers import BatchFeature

    opening = [] if system in (None, NO_SYSTEM) else [{"role": "system", "content": system}]
    prepared = [
        processor(
            conversations=[
                *opening,
                {"role": "<|User|>", "content": placed.prompt},
                {"role": "<|Assistant|>", "content": ""},
            ],
            images=list(sample.images),
            force_batchify=False,
        )
        for sample, placed in zip(samples, with_placeholder(samples, "<image>\n"), strict=True)
    ]
    batch = processor.batchify(prepared)
    inputs = BatchFeature({name: batch[name] for name in ("input_ids", "attention_mask")})
    if any(sample.images for sample in samples):  # for text alone it makes up an empty tile
        inputs |= {name: batch[name] for name in ("images", "images_spatial_crop")}
        # Where it pads, the mask comes out as numbers, which the model does not take.
        inputs["images_seq_mask"] = batch["images_seq_mask"].bool()
    return inputs


def _ovis_tokenizer(path: str) -> Any:
    """The tokenizer: the folder names an image processor, which knows nothing of prompts."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path, trust_remote_code=True)


def _build_ovis(
    model: Any, processor: Any, samples: Sequence[Sample], system: str | None
) -> dict[str, Any]:
    """One batch, padded on the right; the patches of all images follow each other."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    refuse_placeholder(samples, "<image>")  # the model deletes it from texts
    opening = [] if system in (None, NO_SYSTEM) else [{"role": "system", "content": system}]
    prompts, pixels, grids = [], [], []
    for sample in samples:
        user = {"role": "user", "content": content_of(sample)}
        ids, values, grid = model.preprocess_inputs([*opening, user], add_generation_prompt=True)
        prompts.append(ids[0])
        if values is not None:
            pixels.append(values)
            grids.append(grid)
    return {
        "input_ids": pad_sequence(prompts, batch_first=True),
        "attention_mask": pad_sequence([torch.ones_like(ids) for ids in prompts], batch_first=True),
        "pixel_values": torch.cat(pixels) if pixels else None,
        "grid_thws": torch.cat(grids) if grids else None,
    }


DEEPSEEK_VL_V2 = InputsFile(
    setup=_import_deepseek,
    load_processor=_deepseek_processor,
    build=_build_deepseek,
    parts={
        "vision_encoder": "vision",
        "projector": "projector",
        "text_embedding": "language.model.embed_tokens",
        "decoder_layers": "language.model.layers",
        "positions": "perturbation",  # `images_seq_mask` marks them
    },
)
OVIS2_5 = InputsFile(
    load_processor=_ovis_tokenizer,
    build=_build_ovis,
    parts={
        # What the head reads; nothing reads the norm that follows.
        "vision_encoder": "visual_tokenizer.vit.vision_model.encoder",
        # The table turns the probabilities that `visual_tokenizer.head` gives into visual tokens.
        "projector": "vte",
        "text_embedding": "llm.model.embed_tokens",
        "decoder_layers": "llm.model.layers",
        # Visual tokens; then start and end of an image and of a video.
        "image_token_ids": (-300, -301, -302, -303, -304),
    },
)
