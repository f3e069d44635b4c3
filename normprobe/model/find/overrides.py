"""What the structure of a model does not tell, as data: one entry a model type of transformers.

What is known of families with code of their own stands in their files (``inputs.families``).

Keys (a missing key is left to ``find_parts``, None says that there is no such part):

- ``vision_encoder``, ``projector``, ``text_embedding``, ``decoder_layers``, ``audio_encoder``,
  ``audio_projector``: dotted names in the model, or a function of the config where the checkpoint
  decides
- ``family``: two words for the family, where the module tree does not tell it
- ``fusion``: how visual tokens meet text, a key of ``FUSIONS``
- ``image_token_ids``: a tuple of ids, or the config field that names one
- ``video_token_ids``, ``audio_token_ids``: a tuple of ids; not looked for in the config then
- ``positions``: ``PERTURBATION`` where no token id tells which tokens are visual
- ``channels_first``: the vision encoder returns maps ``[..., hidden, height, width]``
- ``class_rows``: how many class and register tokens precede the patches it returns
- ``videos_only``: takes no images
- ``behind``: what the model does to a row between projector and decoder, where it does more than
  scale it
- ``stream``: which residual stream is reported, a key of ``parts.STREAMS``
"""

from typing import Any

from normprobe.inputs.inputs_file import family_file
from normprobe.options import FUSION_WORDS

#: What can be said of a model type, or named by hand.
OVERRIDE_KEYS = (
    "vision_encoder",
    "projector",
    "text_embedding",
    "decoder_layers",
    "audio_encoder",
    "audio_projector",
    "family",
    "fusion",
    "image_token_ids",
    "video_token_ids",
    "audio_token_ids",
    "positions",
    "channels_first",
    "class_rows",
    "videos_only",
    "behind",
    "stream",
)

IN_SEQUENCE, PREPENDED, DISCRETE, ADDED, CROSS_ATTENTION = FUSION_WORDS
PERTURBATION = "perturbation"

#: How visual tokens meet text, and what that means for the output.
FUSIONS = {
    IN_SEQUENCE: "visual tokens take the place of image placeholders in the prompt",
    PREPENDED: "visual tokens stand before the prompt, which has no image placeholders",
    DISCRETE: "visual tokens are rows of the text table, chosen by an image tokenizer; "
    "no projector",
    ADDED: "visual features are added to the embeddings of image placeholders",
    CROSS_ATTENTION: "no visual positions in the sequence: text attends to visual states, "
    "which no decoder layer changes; layer 0 holds their norms",
}

ADDS_POSITIONS = "adds positions"

_Q_FORMER = {
    "projector": "language_projection",
    "family": "Q-Former",
    "behind": ADDS_POSITIONS,
}

_KOSMOS = {
    "projector": "image_to_text_projection",
    "positions": PERTURBATION,
    "behind": ADDS_POSITIONS,
}


def _projector_of_layer_one(config: Any) -> str | None:
    """Granite 4 Vision projects for many layers; the last projector that names layer 0 wins."""
    layerwise = enumerate(layer for _, layer in config.deepstack_layer_map or ())
    spatial = enumerate(config.spatial_target_layers or ())
    names = {layer: f"model.layerwise_projectors.{i}" for i, layer in layerwise}
    names |= {layer: f"model.spatial_projectors.{i}" for i, layer in spatial}
    return names.get(0)


_IMAGE_TOKENIZER = {
    "vision_encoder": "model.vqmodel.encoder",
    "projector": None,
    "fusion": DISCRETE,
    "channels_first": True,
}

_GRANITE_SPEECH = {"audio_encoder": "model.encoder", "audio_projector": "model.projector"}

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
        "behind": ADDS_POSITIONS,
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
        "text_embedding": "encoder.embed_tokens",  # tied to `shared`, which never runs
        "decoder_layers": "encoder.block",
        "fusion": ADDED,
        "positions": PERTURBATION,
    },
    # Image tokenizers: visual tokens come from the text table.
    "chameleon": _IMAGE_TOKENIZER,
    "emu3": _IMAGE_TOKENIZER,
    # No vision encoder: patches are projected as they are.
    "fuyu": {"vision_encoder": None, "projector": "model.vision_embed_tokens"},
    "gemma4_unified": {"vision_encoder": None, "projector": "model.embed_vision"},
    # The visual tokens stand before the text, or where a position mask says.
    "git": {
        "vision_encoder": "git.image_encoder",
        "projector": "git.visual_projection",
        "fusion": PREPENDED,
        "behind": "takes the class row, too",
    },
    "kosmos-2": _KOSMOS,
    "kosmos-2.5": _KOSMOS,
    # Features are added to the embeddings of the image placeholders.
    "molmo2": {"fusion": ADDED},
    # Several modules in a row, or names of their own.
    "blip-2": _Q_FORMER,
    "instructblip": _Q_FORMER,
    "instructblipvideo": _Q_FORMER | {"image_token_ids": "video_token_index", "videos_only": True},
    "gemma4": {"vision_encoder": "model.vision_tower", "projector": "model.embed_vision"},
    "janus": {"projector": "model.aligner"},
    "deepseek_vl_hybrid": {"projector": "model.aligner"},
    "pi0": {
        "vision_encoder": "model.vlm.vision_tower",
        "projector": "model.vlm.multi_modal_projector",
        "text_embedding": "model.vlm.language_model.embed_tokens",
        "decoder_layers": "model.vlm.language_model.layers",
    },
    "granite4_vision": {"projector": _projector_of_layer_one},
    # The vision encoder returns other tokens, or another layout, than its parameters suggest.
    "got_ocr2": {"channels_first": True},
    "pp_chart2table": {"channels_first": True},
    "fast_vlm": {"channels_first": True},
    "llama4": {"class_rows": 0},
    "unlimited_ocr": {"class_rows": 0},
    # The residual is not [batch, seq, hidden].
    "gemma3n": {"stream": "altup", "projector": "model.embed_vision", "channels_first": True},
    "glm5_next": {"stream": "mean of stacked streams"},
    "qwen4_exp": {"stream": "mean of joined streams"},
    # transformers lists it with the language models.
    "phi4_multimodal": {
        "vision_encoder": "model.embed_tokens_extend.image_embed.img_processor",
        "projector": "model.embed_tokens_extend.image_embed.img_projection_down",
        "text_embedding": "model.embed_tokens",
        "decoder_layers": "model.layers",
        "audio_encoder": "model.embed_tokens_extend.audio_embed.encoder",
        # Where a picture stands beside the sound, another one runs.
        "audio_projector": "model.embed_tokens_extend.audio_embed.down_proj_for_speech",
    },
    # Audio encoders that no accessor of theirs gives.
    "granite_speech": _GRANITE_SPEECH,
    "granite_speech_plus": _GRANITE_SPEECH,
    "vibevoice_asr": {  # one of two encoders, which its projector joins
        "audio_encoder": "model.acoustic_tokenizer_encoder",
        "audio_projector": "model.multi_modal_projector",
    },
}


def overrides_of(config: Any) -> dict[str, Any]:
    """What is known of a model beside its structure, that of families with own code included."""
    known = OVERRIDES.get(str(getattr(config, "model_type", None)), {})
    return {**known, **family_file(config).parts}
