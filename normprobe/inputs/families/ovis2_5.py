"""Inputs of Ovis2.5: the model prepares them itself (``preprocess_inputs``), of one conversation.

- Ids below 0 stand for an image: -300 for each visual token, -301 and -302 for its start and end,
  which are rows of the visual table that no pixel changes: structural.
- The image processor that its folder names knows nothing of prompts, and the model deletes
  ``<image>`` from texts: images are parts of a message.
- The default conversation ends in an empty thinking block, and has no system prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from normprobe.data.sample import Sample
from normprobe.inputs.chat import NO_SYSTEM, content_of
from normprobe.inputs.families.layouts import refuse_placeholder

parts = {
    # What the head reads; nothing reads the norm that follows.
    "vision_encoder": "visual_tokenizer.vit.vision_model.encoder",
    # The table turns the probabilities that `visual_tokenizer.head` gives into visual tokens.
    "projector": "vte",
    "text_embedding": "llm.model.embed_tokens",
    "decoder_layers": "llm.model.layers",
    # Visual tokens; then start and end of an image and of a video.
    "image_token_ids": (-300, -301, -302, -303, -304),
}


def load_processor(path: str) -> Any:
    """The tokenizer: the folder names an image processor, which knows nothing of prompts."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path, trust_remote_code=True)


def build(
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
