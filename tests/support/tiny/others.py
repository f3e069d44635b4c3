"""Everything that is not encoder, projector, language model in a row."""

from support.tiny.fragments import (
    BOS,
    EOS,
    EXPERTS,
    FIXED_VISION,
    HEADED,
    IMAGE,
    LATENT,
    OTHER,
    PAD,
    PATCH,
    SAM,
    TEXT,
    VIDEO,
    VISION_WIDTH,
    VOCABULARY,
    WIDTH,
    Tiny,
)

OPT = TEXT | {
    "model_type": "opt",
    "ffn_dim": 96,
    "word_embed_proj_dim": WIDTH,
}
QFORMER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "encoder_hidden_size": VISION_WIDTH,
}
BLIP2 = {
    "text_config": OPT,
    "vision_config": FIXED_VISION,
    "qformer_config": QFORMER,
    "num_query_tokens": 4,
}

#: What image tokenizers write: one id a code of their table.
CODES = range(VOCABULARY, VOCABULARY + 64)
VQ = {
    "embed_dim": 16,
    "base_channels": 32,
    "num_res_blocks": 1,
    "attn_resolutions": [],
    "channel_multiplier": [1, 1, 2],
}

BART = {
    "model_type": "bart",
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "max_position_embeddings": 512,
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}
T5 = {
    "vocab_size": VOCABULARY,
    "d_kv": 16,
    "d_ff": 96,
    "num_layers": 3,
    "num_heads": 4,
    "pad_token_id": PAD,
    "eos_token_id": EOS,
}

OTHERS: dict[str, Tiny] = {
    # --- queries that attend to the image become visual tokens ------------------------------------
    "blip-2": Tiny(
        "Blip2ForConditionalGeneration",
        BLIP2 | {"image_token_index": IMAGE},
    ),
    "instructblip": Tiny(
        "InstructBlipForConditionalGeneration",
        BLIP2 | {"image_token_index": IMAGE},
    ),
    "instructblipvideo": Tiny(
        "InstructBlipVideoForConditionalGeneration",
        BLIP2 | {"video_token_index": VIDEO},
    ),
    # --- an image tokenizer: visual tokens are rows of the text table -----------------------------
    "chameleon": Tiny(
        "ChameleonForConditionalGeneration",
        TEXT
        | {
            "vocab_size": CODES.stop,
            "vq_config": VQ | {"num_embeddings": 64, "latent_channels": 32, "resolution": 16},
            # The names spell the code in letters.
            "vocabulary_map": {"<image>": IMAGE}
            | {f"IMGIMG{chr(65 + i // 8)}{chr(65 + i % 8)}Z": code for i, code in enumerate(CODES)},
            "image_token_id": IMAGE,
        },
    ),
    "emu3": Tiny(
        "Emu3ForConditionalGeneration",
        {
            "text_config": TEXT | {"vocab_size": CODES.stop},
            "vq_config": VQ
            | {
                "embed_dim": 4,
                "latent_channels": 4,
                "codebook_size": 64,
                "hidden_size": 32,
                "num_attention_heads": 1,
                "channel_multiplier": [1, 1],
            },
            "vocabulary_map": {"<image>": IMAGE, "<|extra_200|>": OTHER}
            | {f"<|visual token {i:06d}|>": code for i, code in enumerate(CODES)},
            "image_token_id": IMAGE,
        },
    ),
    # --- no encoder -------------------------------------------------------------------------------
    "fuyu": Tiny(
        "FuyuForCausalLM",
        {
            "text_config": TEXT | {"model_type": "persimmon"},
            "patch_size": PATCH,
            "image_token_id": IMAGE,
        },
    ),
    # --- text that attends to the image -----------------------------------------------------------
    "idefics": Tiny(
        "IdeficsForVisionText2Text",
        TEXT
        | {
            "num_hidden_layers": 4,
            "vision_config": FIXED_VISION | {"embed_dim": VISION_WIDTH},
            "perceiver_config": {
                "resampler_n_latents": 4,
                "resampler_depth": 2,
                "resampler_n_heads": 2,
                "resampler_head_dim": 16,
            },
            "use_resampler": True,
            "cross_layer_interval": 2,
            "additional_vocab_size": 0,
        },
    ),
    "mllama": Tiny(
        "MllamaForConditionalGeneration",
        {
            "text_config": TEXT | {"cross_attention_layers": [1]},
            "vision_config": FIXED_VISION
            | {
                "attention_heads": 2,
                "num_global_layers": 2,
                "intermediate_layers_indices": [0, 1],
                "vision_output_dim": 3 * VISION_WIDTH,
            },
            "image_token_index": IMAGE,
        },
    ),
    "blip": Tiny(
        "BlipForConditionalGeneration",
        {
            "text_config": TEXT
            | {"sep_token_id": EOS, "encoder_hidden_size": VISION_WIDTH, "projection_dim": WIDTH},
            "vision_config": FIXED_VISION,
        },
    ),
    "pix2struct": Tiny(
        "Pix2StructForConditionalGeneration",
        {
            "text_config": T5 | {"hidden_size": WIDTH},
            "vision_config": {
                "hidden_size": WIDTH,
                "patch_embed_hidden_size": 3 * PATCH**2,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "d_ff": 64,
                "d_kv": 16,
                "seq_len": 64,
            },
        },
    ),
    "pp_formulanet": Tiny(
        "PPFormulaNetForConditionalGeneration",
        {
            "text_config": BART,
            "vision_config": SAM
            | {
                "post_conv_in_channels": 16,
                "post_conv_mid_channels": 32,
                "post_conv_out_channels": WIDTH,
                "decoder_hidden_size": WIDTH,
            },
        },
    ),
    "vision-encoder-decoder": Tiny(
        "VisionEncoderDecoderModel",
        {
            "encoder": FIXED_VISION | {"model_type": "vit"},
            "decoder": TEXT
            | {"model_type": "bert", "is_decoder": True, "add_cross_attention": True},
        },
    ),
    # --- an encoder stack that reads image and text, and a decoder --------------------------------
    "florence2": Tiny(
        "Florence2ForConditionalGeneration",
        {
            "text_config": BART,
            "vision_config": {
                "depths": [1, 1],
                "embed_dim": [16, 32],
                "num_heads": [2, 2],
                "num_groups": [2, 2],
                "patch_size": [7, 3],
                "patch_stride": [4, 2],
                "patch_padding": [3, 1],
                "patch_prenorm": [False, True],
                "window_size": 4,
                "projection_dim": WIDTH,
            },
            "image_token_id": IMAGE,
        },
    ),
    "udop": Tiny(
        "UdopForConditionalGeneration",
        T5 | {"d_model": WIDTH, "patch_size": PATCH, "image_size": 16},
    ),
    # --- no images --------------------------------------------------------------------------------
    "evolla": Tiny(
        "EvollaForProteinText2Text",
        TEXT
        | {
            "protein_encoder_config": {
                "vocab_size": 32,
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "intermediate_size": 64,
                "pad_token_id": PAD,
                "mask_token_id": OTHER,
            },
            "resampler_depth": 2,
            "resampler_dim_head": 16,
            "resampler_heads": 2,
            "resampler_num_latents": 4,
        },
    ),
    "mistral4": Tiny("Mistral4ForCausalLM", HEADED | LATENT | EXPERTS),
}
