"""Processors of every type that reads clips or sounds, beside those of ``WITH_TORCHVISION``."""

from collections.abc import Mapping
from typing import Any

from support.processors.recipe import SQUARE, Recipe
from support.processors.varying import AREA, CROP, IDEFICS_TOKENS, PINPOINT_CROPS
from support.processors.with_torchvision import CLIP, MARKS, PAIRS, QWEN, WITH_TORCHVISION
from support.tiny.fragments import (
    AUDIO,
    IMAGE,
    IMAGE_END,
    IMAGE_START,
    INDICATORS,
    MEDIA_END,
    MEDIA_START,
    OTHER,
    PATCH,
    TILE,
    VIDEO,
)

QWEN3, GLM = WITH_TORCHVISION["qwen3_vl"], WITH_TORCHVISION["glm4v"]
OMNI = WITH_TORCHVISION["qwen2_5_omni_thinker"]
CLIPS = {"video_token": VIDEO}
SLOW = {**AREA, **CLIP}  # merges no frames


def _own(name: str, base: Recipe = QWEN3, **other: Any) -> Recipe:
    """Of classes that have the name of the type."""
    return base._replace(
        processor=f"{name}Processor",
        image_processor=f"{name}ImageProcessor",
        video_processor=f"{name}VideoProcessor",
        **other,
    )


GLM46 = _own(
    "Glm46V",
    GLM,
    names={**GLM.names, IMAGE_START: "<|begin_of_image|>", IMAGE_END: "<|end_of_image|>"},
)
MUSE = _own(
    "MuseGlimmer",
    names={
        IMAGE: "<|patch|>",
        IMAGE_START: "<|image_start|>",
        IMAGE_END: "<|image_end|>",
        VIDEO: "<|video|>",
        MEDIA_START: "<|vid_start|>",
        MEDIA_END: "<|vid_end|>",
        OTHER: "<|vid_frame_separator|>",
    },
)
STRIPS = {"patch_size": PATCH, "scale_resolution": TILE}
MINICPM = _own(
    "MiniCPMV4_6",
    images=STRIPS,
    videos=STRIPS,
    names={VIDEO: "<video>"},
    roles={
        **CLIPS,
        "image_start_token": IMAGE_START,
        "image_end_token": IMAGE_END,
        "slice_start_token": MEDIA_START,
        "slice_end_token": MEDIA_END,
        "image_id_start_token": INDICATORS[0],
        "image_id_end_token": INDICATORS[1],
    },
)
GEMMA_EARS = {AUDIO: "<audio>", MEDIA_START: "<boa>", MEDIA_END: "<eoa>"}
GEMMA_ROLES = {"audio_token": AUDIO, "boa_token": MEDIA_START, "eoa_token": MEDIA_END}


def _gemma(name: str, pooled: int, **sounds: int) -> Recipe:
    places = {"patch_size": PATCH, "pooling_kernel_size": pooled, "max_soft_tokens": 70}
    return _own(
        name,
        images=places,
        videos=places,
        names={**GEMMA_EARS, VIDEO: "<|video|>"},
        roles=GEMMA_ROLES,
        feature_extractor=f"{name}AudioFeatureExtractor",
        sounds=sounds,
    )


def _ears(name: str, extractor: str = "Whisper", more: Any = None, **sounds: int) -> Recipe:
    """Of sounds alone; ``more``: what its processor is told beside the name of its token."""
    marks = {"audio_bos_token": MEDIA_START, "audio_eos_token": MEDIA_END}
    return Recipe(
        f"{name}Processor",
        None,
        options={"audio_token": "<|AUDIO|>"} if more is None else more,
        names={AUDIO: "<|AUDIO|>", **MARKS},
        roles={"audio_token": AUDIO, **marks},
        feature_extractor=f"{extractor}FeatureExtractor",
        sounds=sounds,
    )


BOUNDED = {
    "audio_token": "<|AUDIO|>",
    "audio_bos_token": MARKS[MEDIA_START],
    "audio_eos_token": MARKS[MEDIA_END],
}
WHISPER = {"feature_size": 16, "chunk_length": 2}

MEDIA: dict[str, Recipe] = {
    "cohere_compass": _own(
        "CohereCompass",
        names={
            IMAGE: "<|IMAGE_PAD|>",
            VIDEO: "<|VIDEO_PAD|>",
            IMAGE_START: "<|VISION_START|>",
            IMAGE_END: "<|VISION_END|>",
        },
    ),
    "cosmos3_edge": _own("Cosmos3Edge", images=AREA, videos=SLOW),
    "cosmos3_omni": QWEN3,
    "dots3_note": QWEN3._replace(
        processor="Dots3NoteProcessor",
        images=AREA,
        videos=SLOW,
        names={IMAGE: "<|imgpad|>", VIDEO: "<|video_pad|>", AUDIO: "<|audio_comp_pad|>"},
        feature_extractor="Dots3NoteFeatureExtractor",
        sounds={"feature_size": 16},
    ),
    "ernie4_5_vl_moe": _own(
        "Ernie4_5_VLMoe",
        images=AREA,
        videos={**PAIRS, **CLIP, "draw_on_frames": False},  # its font is downloaded
        names={VIDEO: "<|VIDEO|>", MEDIA_START: "<|VIDEO_START|>", MEDIA_END: "<|VIDEO_END|>"},
        roles={
            **CLIPS,
            "image_start_token": IMAGE_START,
            "image_end_token": IMAGE_END,
            "video_start_token": MEDIA_START,
            "video_end_token": MEDIA_END,
        },
    ),
    "exaone4_5": QWEN._replace(processor="Exaone4_5_Processor"),
    "gemma4": _gemma("Gemma4", 2, feature_size=16),
    "gemma4_unified": _gemma("Gemma4Unified", 1, feature_size=32, audio_samples_per_token=32),
    "glm46v": GLM46,
    "glm4v_moe": GLM,
    "glm5_next": _own("Glm5Next", GLM46),
    "glm_ocr": GLM46,
    "glmga": GLM46._replace(
        image_processor="GlmgaImageProcessor", video_processor="GlmgaVideoProcessor"
    ),
    "hyperclovax_vision_v2": QWEN._replace(processor="HyperCLOVAXVisionV2Processor"),
    "inkling_mm_model": Recipe(
        "InklingProcessor",
        "InklingImageProcessor",
        {"size": {"height": PATCH, "width": PATCH}},
        {"image_bos_token": "<image_start>", "audio_bos_token": "<boa>"},
        names=GEMMA_EARS,
        roles={"audio_token": AUDIO},
        feature_extractor="InklingFeatureExtractor",
        sounds={"feature_size": 8},
    ),
    "kimi_k25": _own(
        "Kimi_K25",
        images={"patch_size": PATCH, "merge_size": 2},
        # Its model splits rows of a clip as if none of its frames were merged.
        videos={"patch_size": PATCH, "merge_size": 2, "temporal_patch_size": 1},
        names={VIDEO: "<|kimi_k25_video_placeholder|>"},
    ),
    "lfm3_vl": QWEN3._replace(processor="Lfm3VlProcessor"),
    "llava_next_video": Recipe(
        "LlavaNextVideoProcessor",
        "LlavaNextImageProcessor",
        PINPOINT_CROPS,
        {
            "patch_size": PATCH,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
        names={VIDEO: "<video>"},
        roles=CLIPS,
        video_processor="LlavaNextVideoVideoProcessor",
        videos=CROP,
    ),
    "minicpm_ocr": _own("MiniCPMOcr", MINICPM),
    "minicpmv4_6": MINICPM,
    "minicpmv4_7": MINICPM._replace(processor="MiniCPMV4_7Processor"),
    "minimax_m3_vl": _own(
        "MiniMaxM3VL",
        names={
            IMAGE: "]<]image[>[",
            VIDEO: "]<]video[>[",
            IMAGE_START: "]<]start of image[>[",
            IMAGE_END: "]<]end of image[>[",
        },
    ),
    "molmo2": _own(
        "Molmo2",
        images={**SQUARE, "patch_size": PATCH, "overlap_margins": [1, 1]},
        videos={
            **SQUARE,
            "patch_size": PATCH,
            "pooling_size": [2, 2],
            "do_rescale": True,
            "do_normalize": True,
        },
        names={
            IMAGE: "<im_patch>",
            IMAGE_START: "<im_start>",
            IMAGE_END: "<im_end>",
            VIDEO: "<|video|>",
            OTHER: "<|image|>",
        },
        more=["<im_col>", "<low_res_im_start>", "<frame_start>", "<frame_end>", "<im_low>"],
        roles={"image_token": OTHER, **CLIPS},
    ),
    "muse_glimmer": MUSE,
    "muse_spark": MUSE._replace(
        processor="MuseSparkProcessor",
        names={**MUSE.names, AUDIO: "<|audio|>"},
        more=["<|soft_audio_start|>", "<|soft_audio_end|>"],
        feature_extractor="MuseSparkFeatureExtractor",
        sounds={"samples_per_token": 96},
    ),
    "nemotron_h_omni": Recipe(
        "NemotronH_Omni_Reasoning_V3Processor",
        "NemotronH_Omni_Reasoning_V3ImageProcessor",
        {"patch_size": PATCH},
        names={
            IMAGE_START: "<img>",
            IMAGE_END: "</img>",
            VIDEO: "<video>",
            AUDIO: "<so_embedding>",
            MEDIA_START: "<so_start>",
            MEDIA_END: "<so_end>",
        },
        roles={**CLIPS, "audio_token": AUDIO},
        video_processor="NemotronH_Omni_Reasoning_V3VideoProcessor",
        videos={"patch_size": PATCH},
        feature_extractor="ParakeetFeatureExtractor",
        sounds={"feature_size": 16},
    ),
    "perception_lm": _own(
        "PerceptionLM",
        images={**SQUARE, "tile_size": TILE, "max_num_tiles": 4},
        videos=SQUARE,
        options={"patch_size": PATCH, "pooling_ratio": 1},
        names={VIDEO: "<video>"},
        roles=CLIPS,
    ),
    "qwen3_5": QWEN3,
    "qwen3_5_moe": QWEN3,
    "qwen3_omni_moe_thinker": OMNI._replace(processor="Qwen3OmniMoeProcessor"),
    "qwen3_vl_moe": QWEN3,
    "qwen4_exp": QWEN3,
    "smolvlm": _own(
        "SmolVLM",
        images={"size": {"longest_edge": 2 * TILE}, "max_image_size": {"longest_edge": TILE}},
        videos={"size": {"longest_edge": TILE}, "max_image_size": {"longest_edge": TILE}},
        options={"image_seq_len": 4},
        names={**IDEFICS_TOKENS["names"], VIDEO: "<video>"},
        more=IDEFICS_TOKENS["more"],
        roles=CLIPS,
    ),
    "video_llama_3": _own("VideoLlama3", images=AREA, videos=SLOW),
    "video_llava": _own(
        "VideoLlava",
        images=CROP,
        videos=CROP,
        options={"patch_size": PATCH, "num_additional_image_tokens": 1},
        names={VIDEO: "<video>"},
        roles=CLIPS,
    ),
    # --- sounds, of some with pictures ------------------------------------------------------------
    "audioflamingo3": _ears("AudioFlamingo3", **WHISPER),
    "fun_asr_nano": _ears("FunAsrNano", "FunAsrNano", feature_size=16),
    "glmasr": _ears("GlmAsr", **WHISPER),
    "granite_speech": _ears("GraniteSpeech", "GraniteSpeech"),
    "granite_speech_plus": _ears("GraniteSpeech", "GraniteSpeech"),
    "moss_transcribe_diarize": _ears(
        "MossTranscribeDiarize", "MossTranscribeDiarize", BOUNDED, feature_size=16
    ),
    "musicflamingo": _ears("MusicFlamingo", "Whisper", BOUNDED, **WHISPER),
    "nemo_speechlm": _ears("Nemotron3_5Transcribe", "NemotronAsrStreaming", feature_size=16),
    "phi4_multimodal": _ears("Phi4Multimodal", "Phi4Multimodal", {})._replace(
        image_processor="Phi4MultimodalImageProcessor", images={"dynamic_hd": 2}
    ),
    "qwen2_audio": _ears("Qwen2Audio", **WHISPER),
    "qwen3_asr": _ears("Qwen3ASR", "Qwen3ASR", {}, feature_size=16),
    "vibevoice_asr": _ears("VibeVoiceAsr", "VibeVoiceAcousticTokenizer", BOUNDED),
}

#: Types whose processor this environment cannot make, or whose tokens have no placeholder: why.
WITHOUT: Mapping[str, str] = {
    "diffusion_gemma": "reads pictures alone; its processor is that of Gemma 4",
    "gemma3n": "needs timm, and more ids for its sounds than a tiny vocabulary has",
    "instructblipvideo": "takes four frames, in place of images: the commands refuse it",
    "kyutai_speech_to_text": "adds sounds to its text: no placeholder stands for them",
    "voxtral": "reads sounds where mistral-common makes its prompts alone",
    "voxtral_realtime": "its tokenizer is that of mistral-common",
}
