"""Families of which little has to be said: names of parts, and what must not be done.

IDEFICS, the first: its processor takes the pieces of a prompt, images among texts.

Keye-VL: its processor is called as those of transformers are. The published example loads the model
with flash attention. Without it the vision encoder lets all images of a batch attend to each other.

Kimi-VL: likewise, ``processor(text=, images=)``. Every ``<|media_pad|>`` holds pixels: no row is
structural. Its vision encoder is MoonViT, which runs eagerly unless asked otherwise.

MoonViT alone: its image processor and its encoder give the grid sizes two names. The patches of all
images of a batch are packed into one sequence, and its eager attention lets images see each other.

NVILA is refused: nothing that is measured of it could be checked. Its class builds and loads three
models by itself, from folders of their own, moves them to a GPU and rounds them to float16, rotary
tables included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError
from normprobe.inputs.chat import refuse_system
from normprobe.inputs.inputs_file import InputsFile
from normprobe.inputs.standard import batch_options, build_documented, required_images

if TYPE_CHECKING:
    from transformers import BatchFeature


def _build_idefics(
    model: Any, processor: Any, samples: Sequence[Sample], system: str | None
) -> BatchFeature:
    """One batch, padded on the right."""
    from transformers import BatchFeature

    refuse_system(processor, system)
    prompts = [sample.pieces for sample in samples]
    options = batch_options(processor.tokenizer, len(samples))
    return BatchFeature(dict(processor(text=prompts, **options)))


def _build_keye(
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


def _keep_images_apart(model: Any, _processor: Any) -> list[str]:
    """Take sdpa in place of MoonViT's eager attention, which is the same for one image.

    The published eager attention adds 1 to scores within an image and leaves the others as they
    are, where sdpa and flash attention mask them.
    """
    encoder = getattr(getattr(model, "vision_tower", model), "encoder", None)
    blocks = getattr(encoder, "blocks", ())
    eager = [block for block in blocks if getattr(block, "attn_implementation", None) == "eager"]
    for block in eager:
        block.attn_implementation = "sdpa"
    return ["sdpa for eager attention in MoonViT, which would mix images"] if eager else []


def _build_moonvit(
    _model: Any, processor: Any, samples: Sequence[Sample], _system: str | None
) -> BatchFeature:
    """Images alone, as flat patches."""
    from transformers import BatchFeature

    inputs = processor(images=required_images(samples), return_tensors="pt")
    return BatchFeature(
        {"pixel_values": inputs["pixel_values"], "grid_hws": inputs["image_grid_hws"]}
    )


def _refuse_vila() -> None:
    """Refuse the model."""
    raise NormprobeError(
        "NVILA's own code loads three models by itself and puts image rows into the prompt inside "
        "its forward, so neither weights nor positions can be checked",
        "measure its parts alone: the folder llm is a language model, vision_tower a vision "
        "encoder; fetch the repository and pass FOLDER/llm or FOLDER/vision_tower",
    )


IDEFICS = InputsFile(
    build=_build_idefics,
)
KEYE = InputsFile(
    build=_build_keye,
    parts={
        "vision_encoder": "visual",
        "projector": "mlp_AR",
        "text_embedding": "model.embed_tokens",
        "decoder_layers": "model.layers",
    },
)
KIMI_VL = InputsFile(
    prepare=_keep_images_apart,
    parts={
        "vision_encoder": "vision_tower",
        "projector": "multi_modal_projector",
        "text_embedding": "language_model.model.embed_tokens",
        "decoder_layers": "language_model.model.layers",
        "image_token_ids": "media_placeholder_token_id",
    },
)
MOONVIT = InputsFile(
    prepare=_keep_images_apart,
    build=_build_moonvit,
    parts={"vision_encoder": ""},
)
VILA = InputsFile(
    setup=_refuse_vila,
)
