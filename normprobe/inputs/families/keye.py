"""Keye-VL: its processor is called as those of transformers are.

The published example loads the model with flash attention. Without it the vision encoder lets all
images of a batch attend to each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError
from normprobe.inputs.standard import build_documented

parts = {
    "vision_encoder": "visual",
    "projector": "mlp_AR",
    "text_embedding": "model.embed_tokens",
    "decoder_layers": "model.layers",
}


def build(
    model: Any, processor: Any, samples: Sequence[Sample], system: str | None
) -> Mapping[str, Any]:
    """One batch."""
    attention = model.visual.config._attn_implementation
    if attention != "flash_attention_2" and sum(len(sample.images) for sample in samples) > 1:
        raise NormprobeError(
            f"the vision encoder of Keye-VL mixes the images of a batch under {attention} "
            "attention",
            "pass --attn-implementation flash_attention_2 and --dtype bfloat16, or --batch-size 1 "
            "and one image a sample",
        )
    return build_documented(processor, samples, system)
