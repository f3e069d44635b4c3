"""Where each miniature keeps its parts, and which ids hold places of an image."""

from support.expected_parts import ExpectedParts

PARTS = {
    "kimi_vl": ExpectedParts(
        "vision_tower",
        "multi_modal_projector",
        "language_model.model.embed_tokens",
        "language_model.model.layers",
    ),
    "ovis2_5": ExpectedParts(
        "visual_tokenizer.vit.vision_model.encoder",
        "vte",
        "llm.model.embed_tokens",
        "llm.model.layers",
    ),
    "minicpmv": ExpectedParts("vpm", "resampler", "llm.model.embed_tokens", "llm.model.layers"),
    "molmo": ExpectedParts(
        "model.vision_backbone.image_vit.transformer.resblocks",
        "model.vision_backbone.image_projector",
        "model.transformer.wte",
        "model.transformer.blocks",
    ),
    "deepseek_vl_v2": ExpectedParts(
        "vision", "projector", "language.model.embed_tokens", "language.model.layers"
    ),
    "phi4mm": ExpectedParts(
        "model.embed_tokens_extend.image_embed.img_processor",
        "model.embed_tokens_extend.image_embed.img_projection",
        "model.embed_tokens",
        "model.layers",
    ),
    "phi3_v": ExpectedParts(
        "model.vision_embed_tokens.img_processor",
        "model.vision_embed_tokens.img_projection",
        "model.embed_tokens",
        "model.layers",
        class_rows=1,
    ),
    "internvl_chat": ExpectedParts(
        "vision_model",
        "mlp1",
        "language_model.model.embed_tokens",
        "language_model.model.layers",
        class_rows=1,
    ),
}

#: Tokens whose rows belong to an image, as text or as an id of the code alone.
PLACEHOLDERS: dict[str, tuple[str | int, ...]] = {
    "kimi_vl": ("<|media_pad|>",),
    "ovis2_5": (-300, -301, -302),
    "minicpmv": ("<unk>",),
    "molmo": ("<im_patch>",),
    "deepseek_vl_v2": ("<image>",),
    "phi4mm": (200010,),
    "phi3_v": (-1,),
    "internvl_chat": ("<IMG_CONTEXT>",),
}

#: Rows of the image of one sample that pixels do not change: indicators, newlines, separators.
STRUCTURAL_ROWS = {
    "ovis2_5": 2,
    "deepseek_vl_v2": 2 + 1 + 2,
    "phi4mm": 2 + 1 + 2,
    "phi3_v": 3 + 1 + 3,
}
