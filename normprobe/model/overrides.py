"""What static discovery cannot see, as data: one entry a model type.

Keys (a missing key is left to discovery, None says that there is no such part):

- ``vision_encoder``, ``projector``, ``text_embedding``, ``decoder_layers``, ``visual_embedding``:
  dotted names in the model
- ``fusion``: how visual states meet text, a key of ``FUSIONS``
- ``image_token_ids``: a tuple of ids, or the config field that names one
- ``positions``: ``PERTURBATION`` where no token id tells which rows are visual
- ``channels_first``: the vision encoder returns maps ``[..., hidden, height, width]``
- ``class_rows``: how many class and register rows precede the patches it returns
- ``stream``: which residual stream is reported, a key of ``residual_stream.STREAMS``
"""

from typing import Any

IN_SEQUENCE = "in-sequence"
PREPENDED = "prepended"
DISCRETE = "discrete tokens"
ADDED = "added features"
CROSS_ATTENTION = "cross-attention"
PERTURBATION = "perturbation"

#: How visual states meet text, and what that means for the output.
FUSIONS = {
    IN_SEQUENCE: "visual rows take the place of image tokens in the prompt",
    PREPENDED: "visual rows stand before the prompt, without image tokens",
    DISCRETE: "visual rows are rows of the text table, chosen by an image tokenizer; no projector",
    ADDED: "visual features are added to the rows of image tokens",
    CROSS_ATTENTION: "no visual positions in the sequence: text attends to visual states, "
    "which no decoder layer changes; layer 0 holds their norms",
}

_Q_FORMER = {"projector": "language_projection"}

_IMAGE_TOKENIZER = {
    "vision_encoder": "model.vqmodel.encoder",
    "projector": None,
    "fusion": DISCRETE,
    "channels_first": True,
}

OVERRIDES: dict[str, dict[str, Any]] = {
    # Encoder-decoders whose text decoder attends to the vision encoder.
    "blip": {
        "text_embedding": "text_decoder.bert.embeddings.word_embeddings",
        "decoder_layers": "text_decoder.bert.encoder.layer",
        "projector": None,
        "fusion": CROSS_ATTENTION,
    },
    "pix2struct": {
        "vision_encoder": "encoder",
        "projector": None,
        "decoder_layers": "decoder.layer",
        "fusion": CROSS_ATTENTION,
    },
    "pp_formulanet": {
        "vision_encoder": "model.encoder",
        "projector": "model.encoder.multi_modal_projector",
        "text_embedding": "model.decoder.embed_tokens",
        "decoder_layers": "model.decoder.layers",
        "fusion": CROSS_ATTENTION,
        "channels_first": True,
    },
    "vision-encoder-decoder": {
        "vision_encoder": "encoder",
        "fusion": CROSS_ATTENTION,
    },
    # Decoders with cross-attention to visual states.
    "idefics": {"projector": "model.perceiver_resampler", "fusion": CROSS_ATTENTION},
    "mllama": {"fusion": CROSS_ATTENTION},
    # Encoder-decoders whose encoder stack reads visual and text tokens together.
    "florence2": {
        "decoder_layers": "model.language_model.encoder.layers",
        "channels_first": True,
    },
    "t5gemma2": {
        "vision_encoder": "model.encoder.vision_tower",
        "projector": "model.encoder.multi_modal_projector",
        "decoder_layers": "model.encoder.text_model.layers",
    },
    "diffusion_gemma": {
        "vision_encoder": "model.encoder.vision_tower",
        "projector": "model.encoder.embed_vision",
        "text_embedding": "model.encoder.language_model.embed_tokens",
        "decoder_layers": "model.encoder.language_model.layers",
    },
    "udop": {
        "vision_encoder": None,
        "projector": "encoder.embed_patches",
        "decoder_layers": "encoder.block",
        "fusion": ADDED,
        "positions": PERTURBATION,
    },
    # Image tokenizers: visual rows come from the text table.
    "chameleon": _IMAGE_TOKENIZER,
    "emu3": _IMAGE_TOKENIZER,
    # No vision encoder: patches are projected as they are.
    "fuyu": {"vision_encoder": None, "projector": "model.vision_embed_tokens"},
    "gemma4_unified": {"vision_encoder": None, "projector": "model.embed_vision"},
    # The visual rows stand before the text, or where a position mask says.
    "git": {
        "vision_encoder": "git.image_encoder",
        "projector": "git.visual_projection",
        "fusion": PREPENDED,
    },
    "kosmos-2": {"projector": "image_to_text_projection", "positions": PERTURBATION},
    "kosmos-2.5": {"projector": "image_to_text_projection", "positions": PERTURBATION},
    # Features are added to the rows of the image tokens.
    "molmo2": {"fusion": ADDED},
    # Several modules in a row, or names of their own.
    "blip-2": _Q_FORMER,
    "instructblip": _Q_FORMER,
    "instructblipvideo": _Q_FORMER,
    "gemma4": {"vision_encoder": "model.vision_tower", "projector": "model.embed_vision"},
    "janus": {"projector": "model.aligner"},
    "deepseek_vl_hybrid": {"projector": "model.aligner"},
    "pi0": {
        "vision_encoder": "model.vlm.vision_tower",
        "projector": "model.vlm.multi_modal_projector",
        "text_embedding": "model.vlm.language_model.embed_tokens",
        "decoder_layers": "model.vlm.language_model.layers",
    },
    "granite4_vision": {"projector": "model.layerwise_projectors.0"},
    # The vision encoder returns other rows than its parameters suggest.
    "got_ocr2": {"channels_first": True},
    "pp_chart2table": {"channels_first": True},
    "fast_vlm": {"channels_first": True},
    "llama4": {"class_rows": 0},
    "unlimited_ocr": {"class_rows": 0},
    # The residual is not [batch, seq, hidden].
    "gemma3n": {"stream": "altup", "projector": "model.embed_vision", "channels_first": True},
    "glm5_next": {"stream": "mean of stacked streams"},
    "qwen4_exp": {"stream": "mean of joined streams"},
}
