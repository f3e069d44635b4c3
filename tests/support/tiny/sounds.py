"""Types that read sounds, of some with pictures, and are not in the list of images and text."""

from support.tiny.fragments import (
    AUDIO,
    BOS,
    EOS,
    IMAGE,
    MEDIA_END,
    MEDIA_START,
    PAD,
    QWEN2,
    TEXT,
    WIDTH,
    Tiny,
)

QWEN3, LLAMA = ({**TEXT, "model_type": name} for name in ("qwen3", "llama"))
EAR = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "num_mel_bins": 16,
}
WHISPER = EAR | {
    "d_model": 32,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "max_source_positions": 100,
}
MARKS = {"audio_bos_token_id": MEDIA_START, "audio_eos_token_id": MEDIA_END}
GRANITE = {
    "text_config": TEXT | {"model_type": "granite"},
    "encoder_config": {
        "num_layers": 2,
        "hidden_dim": 32,
        "num_heads": 2,
        "dim_head": 16,
        "output_dim": 8,
        "context_size": 20,
        "max_pos_emb": 32,
    },
    "projector_config": {
        "model_type": "blip_2_qformer",
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "encoder_hidden_size": 32,
    },
    "audio_token_index": AUDIO,
    "has_lora_adapter": False,
}
ACOUSTIC = {
    "model_type": "vibevoice_acoustic_tokenizer_encoder",
    "hidden_size": 16,
    "num_filters": 4,
    "depths": [1] * 7,
}


def _hearing(name: str, ears: object, text: object = QWEN2, **more: object) -> Tiny:
    settings = {"audio_config": ears, "text_config": text, "audio_token_id": AUDIO, **more}
    return Tiny(f"{name}ForConditionalGeneration", settings)


SOUNDS_ALONE: dict[str, Tiny] = {
    "audioflamingo3": _hearing("AudioFlamingo3", WHISPER),
    "fun_asr_nano": _hearing(
        "FunAsrNano",
        EAR | {"num_timestamp_prediction_layers": 1},
        QWEN3,
        adaptor_config={
            "hidden_size": WIDTH,
            "num_attention_heads": 2,
            "intermediate_size": WIDTH // 4,
            "num_hidden_layers": 1,
            "projector_hidden_size": 48,
        },
    ),
    "glmasr": _hearing("GlmAsr", EAR | {"intermediate_size": 128}, LLAMA),
    "granite_speech": Tiny("GraniteSpeechForConditionalGeneration", GRANITE),
    "granite_speech_plus": Tiny("GraniteSpeechPlusForConditionalGeneration", GRANITE),
    "moss_transcribe_diarize": _hearing("MossTranscribeDiarize", EAR, QWEN3),
    "musicflamingo": _hearing(
        "MusicFlamingo", WHISPER | {"model_type": "audioflamingo3_encoder"}, **MARKS
    ),
    "nemo_speechlm": _hearing(
        "Nemotron3_5Transcribe",
        {
            "asr_config": EAR,
            "diarization_config": {
                "model_type": "nemotron3_diarization",
                "audio_config": EAR,
                "head_config": {"hidden_size": 16, "audio_hidden_size": 32},
            },
        },
        QWEN3,
        word_timestamp_config=EAR | {"vocab_size": 40, "blank_token_id": 39},
    ),
    "phi4_multimodal": Tiny(
        "Phi4MultimodalForCausalLM",
        TEXT
        | {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
        | {
            "vision_config": EAR | {"image_token_id": IMAGE},
            "audio_config": EAR
            | {
                "num_blocks": 2,
                "ext_pw_out_channel": 32,
                "depthwise_separable_out_channel": 32,
                "nemo_conv_channels": 8,
                "audio_token_id": AUDIO,
            },
        },
    ),
    "qwen2_audio": _hearing("Qwen2Audio", WHISPER, audio_token_index=AUDIO),
    "qwen3_asr": _hearing(
        "Qwen3ASR", WHISPER | {"output_dim": WIDTH, "downsample_hidden_size": 8}, QWEN3
    ),
    "vibevoice_asr": _hearing(
        "VibeVoiceAsr",
        None,
        acoustic_tokenizer_encoder_config=ACOUSTIC,
        semantic_tokenizer_encoder_config=ACOUSTIC,
        **MARKS,
    ),
}
