"""Kimi-VL: its processor is called as those of transformers are."""

parts = {
    "vision_encoder": "vision_tower",
    "projector": "multi_modal_projector",
    "text_embedding": "language_model.model.embed_tokens",
    "decoder_layers": "language_model.model.layers",
    "image_token_ids": "media_placeholder_token_id",
}
