"""Where each type keeps its parts: written down from the sources of transformers, not computed."""

from dataclasses import dataclass, field

from support.tiny_models import IMAGE, INDICATORS


@dataclass(frozen=True)
class ExpectedParts:
    """Dotted names; ``None`` where the model has no such part, empty for the model itself."""

    vision_encoder: str | None = None
    projector: str | None = None
    text_embedding: str | None = None
    decoder_layers: str | None = None
    image_token_ids: tuple[int, ...] = ()
    #: Class rows that the encoder puts before the patches of an image.
    class_rows: int = field(default=0, compare=False)


def _vlm(
    vision_encoder: str,
    projector: str,
    text_model: str = "model.language_model",
    image_token_ids: tuple[int, ...] = (IMAGE,),
    class_rows: int = 0,
) -> ExpectedParts:
    return ExpectedParts(
        vision_encoder,
        projector,
        f"{text_model}.embed_tokens",
        f"{text_model}.layers",
        image_token_ids,
        class_rows,
    )


_LANGUAGE_MODEL = ExpectedParts(text_embedding="model.embed_tokens", decoder_layers="model.layers")

PARTS: dict[str, ExpectedParts] = {
    "llava": _vlm("model.vision_tower", "model.multi_modal_projector", class_rows=1),
    "llava_next": _vlm("model.vision_tower", "model.multi_modal_projector", class_rows=1),
    "llava_onevision": _vlm("model.vision_tower", "model.multi_modal_projector"),
    "qwen2_vl": _vlm("model.visual", "model.visual.merger"),
    "qwen2_5_vl": _vlm("model.visual", "model.visual.merger"),
    "qwen3_vl": _vlm("model.visual", "model.visual.merger"),
    "internvl": _vlm("model.vision_tower", "model.multi_modal_projector", class_rows=1),
    "idefics3": _vlm("model.vision_model", "model.connector", "model.text_model"),
    "smolvlm": _vlm("model.vision_model", "model.connector", "model.text_model"),
    "gemma3": _vlm("model.vision_tower", "model.multi_modal_projector"),
    "paligemma": _vlm("model.vision_tower", "model.multi_modal_projector"),
    "mistral3": _vlm("model.vision_tower", "model.multi_modal_projector"),
    "glm4v": _vlm("model.visual", "model.visual.merger"),
    "ovis2": _vlm(
        "model.vision_tower",
        "model.visual_embeddings_table",
        image_token_ids=(IMAGE, *INDICATORS),
    ),
    "llava_gptj": ExpectedParts(
        "model.vision_tower",
        "model.multi_modal_projector",
        "model.language_model.wte",
        "model.language_model.h",
        (IMAGE,),
        class_rows=1,
    ),
    "clip": ExpectedParts("vision_model", class_rows=1),
    "clip_vision_model": ExpectedParts("", class_rows=1),
    "siglip": ExpectedParts("vision_model"),
    "siglip_vision_model": ExpectedParts(""),
    "siglip2": ExpectedParts("vision_model"),
    "siglip2_vision_model": ExpectedParts(""),
    "llama": _LANGUAGE_MODEL,
    "qwen2": _LANGUAGE_MODEL,
    "qwen3": _LANGUAGE_MODEL,
}
