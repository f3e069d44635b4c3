"""Kimi-VL: its processor is called as its README does, ``processor(text=, images=)``.

Every ``<|media_pad|>`` holds pixels: no row is structural. Its vision encoder is MoonViT, which
runs eagerly unless asked otherwise, and then lets the images of a batch see each other.
"""

from typing import Any

from normprobe.inputs.families.moonvit import keep_images_apart

parts = {
    "vision_encoder": "vision_tower",
    "projector": "multi_modal_projector",
    "text_embedding": "language_model.model.embed_tokens",
    "decoder_layers": "language_model.model.layers",
    "image_token_ids": "media_placeholder_token_id",
}


def prepare(model: Any, processor: Any) -> list[str]:
    """Keep the images of a batch apart."""
    del processor
    return keep_images_apart(getattr(model, "vision_tower", None))
