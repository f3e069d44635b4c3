"""How processors are called: those of transformers, and those that come with a model's own code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from inspect import getsource, signature
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from normprobe.data.rows import BadRow, RefusedSample
from normprobe.data.sample import Sample
from normprobe.errors import first_line
from normprobe.inputs.chat import (
    conversations,
    is_multimodal,
    reads_one_image,
    refuse_system,
    render_chat,
    render_plain,
)
from normprobe.inputs.processor import tokenizer_of
from normprobe.schema import DRAWN_FRAMES
from normprobe.tensors import arrays_as_tensors, find_named

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import BatchFeature

#: What processors raise on images and texts that they cannot take: they have no exception for it.
#: Not ``NormprobeError``: that already says what is wrong.
REFUSALS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


def build_standard(
    processor: Any, samples: Sequence[Sample], system: str | None, layout: str = "{turn}"
) -> BatchFeature:
    """One batch, padded on the right, by a processor of transformers."""
    from transformers import BatchFeature
    from transformers.image_processing_base import ImageProcessingMixin

    is_image_processor = isinstance(processor, ImageProcessingMixin)
    if is_image_processor:
        return BatchFeature(dict(processor(images=required_images(samples), return_tensors="pt")))

    nested = [list(sample.images) for sample in samples]
    images = [image for own in nested for image in own]
    others: dict[str, Any] = {}
    if is_multimodal(processor):  # what it does not read is told before it is written
        others = _videos_and_audios(processor, samples)
        if images and _ear(processor) and not hasattr(processor, "image_processor"):
            raise ValueError(f"{type(processor).__name__} reads no picture")
    texts, special = prompts(processor, samples, system, layout)
    tokenizer = processor.tokenizer if is_multimodal(processor) else processor
    options = batch_options(tokenizer, len(samples))
    if not special:
        options["add_special_tokens"] = False
    if tokenizer is processor:
        return BatchFeature(dict(processor(texts, **options)))
    if type(processor).__name__ == "Cosmos3EdgeProcessor":  # tells no token's kind unasked
        others["return_mm_token_type_ids"] = True
    if "audio" in others:  # sounds are padded as the model wants them, whatever texts are
        options = {"return_tensors": options.pop("return_tensors"), "text_kwargs": options}

    def made(**images: Any) -> BatchFeature:
        with _drawing(processor) if "videos" in others else nullcontext(list[int]()) as drawn:
            inputs = dict(processor(text=texts, **images, **others, **options))
        told = [len(each["frames_indices"]) for each in inputs.pop("video_metadata", ())]
        if drawn := told or drawn:
            inputs[DRAWN_FRAMES] = torch.tensor(drawn)
        return BatchFeature(inputs)

    if not images:
        return made()
    # Chat processors take a list of images for each text, older ones one flat list; some of either
    # kind want it the other way, and refuse what they do not understand. A flat list does not tell
    # whose the images are, unless each text has one.
    each_has_one = len(images) == len(samples) == sum(map(bool, nested))
    is_chat = bool(getattr(processor, "chat_template", None))
    if reads_one_image(processor) and not is_chat and not each_has_one:
        raise ValueError("samples with an image and samples without one do not fit into one batch")
    first, second = (images, nested) if each_has_one and not is_chat else (nested, images)
    try:
        return made(images=first)
    except REFUSALS as error:
        try:
            return made(images=second)
        except REFUSALS:
            raise error from None


def prompts(
    processor: Any, samples: Sequence[Sample], system: str | None, layout: str = "{turn}"
) -> tuple[list[str], bool]:
    """What the model reads, a placeholder for each image; whether special tokens are added to it.

    A template of a tokenizer writes all special tokens, that of a processor writes the begin token
    or leaves it out: ``apply_chat_template(tokenize=True)`` goes by that, too.
    """
    if not getattr(processor, "chat_template", None):
        return render_plain(processor, samples, system, layout), True
    texts = render_chat(processor, samples, system)
    tokenizer = processor.tokenizer if is_multimodal(processor) else processor
    written = tokenizer is processor or texts[0].startswith(tokenizer.bos_token or "\0")
    return texts, not written


def _videos_and_audios(processor: Any, samples: Sequence[Sample]) -> dict[str, Any]:
    """What a processor is given of clips and sounds, in the order of the samples."""
    given: dict[str, Any] = {}
    if videos := [video for sample in samples for video in sample.videos]:
        if not hasattr(processor, "video_processor"):
            raise ValueError(f"{type(processor).__name__} reads no video")
        given["videos"] = [np.stack([np.asarray(f) for f in video.frames]) for video in videos]
        given["video_metadata"] = [
            {
                "total_num_frames": len(video.frames),
                "fps": video.fps,
                "duration": len(video.frames) / video.fps if video.fps else None,
                "frames_indices": list(range(len(video.frames))),
            }
            for video in videos
        ]
        given["return_metadata"] = True
    if any(sample.audios for sample in samples):
        reader = _ear(processor)
        if reader is None:
            raise ValueError(f"{type(processor).__name__} reads no sound")
        given["audio"] = []
        for sample in samples:
            try:
                given["audio"] += [audio.at(reader.sampling_rate) for audio in sample.audios]
            except BadRow as error:
                raise RefusedSample(f"{sample.id}: {error.fault}", error.remedy) from error
        given["sampling_rate"] = reader.sampling_rate
    return given


@contextmanager
def _drawing(processor: Any) -> Iterator[list[int]]:
    """Let a processor draw frames by its own settings, and read whole what is too short for them.

    It needs their rate: clips whose rate nobody knows are read whole, too. What is yielded becomes
    how many frames of each clip were drawn; it stays empty where the processor draws none.
    """
    reader = processor.video_processor
    draw, counts = reader.sample_frames, list[int]()

    def indices(metadata: Any, **options: Any) -> Any:
        try:
            # as an array: a tensor of one index would take a frame in place of a clip of one
            found = np.asarray(draw(metadata=metadata, **options) if metadata.fps else [])
        except REFUSALS:
            found = np.array([])
            plenty = replace(metadata, total_num_frames=10**4, fps=100.0, duration=100.0)
            draw(metadata=plenty, **options)  # what refuses these too, refuses its own settings
        found = found if found.size else np.arange(metadata.total_num_frames)
        counts.append(len(found))
        return found

    reader.sample_frames = indices
    try:
        yield counts
    finally:
        del reader.sample_frames


def _ear(processor: Any) -> Any:
    """What reads sounds for a processor; None: nothing does."""
    old = getattr(processor, "feature_extractor", None)
    return getattr(processor, "audio_processor", old)


def batch_options(tokenizer: Any, samples: int) -> dict[str, Any]:
    """What a processor is told so that it returns tensors, of several samples padded ones."""
    options: dict[str, Any] = {"return_tensors": "pt"}
    if samples > 1:
        ensure_pad_token(tokenizer)
        # On the right: tokens keep the positions, and in causal and recurrent layers the states,
        # that they have alone. So results do not depend on the batch size.
        options |= {"padding": True, "padding_side": "right", "return_attention_mask": True}
    return options


def required_images(samples: Sequence[Sample]) -> list[Image]:
    """The image of each sample, for a bare vision encoder."""
    images = [image for sample in samples for image in sample.images]
    if any(len(sample.images) != 1 for sample in samples):
        raise ValueError("a bare vision encoder needs one image in every sample")
    return images


def ensure_pad_token(tokenizer: Any) -> None:
    """Pad with the end-of-text token where the tokenizer has no padding token.

    Safe, because padding is recognised by the attention mask and never by its id.
    """
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token


def build_documented(processor: Any, samples: Sequence[Sample], system: str | None) -> BatchFeature:
    """One batch by code of the model's own: padded on the right, by the first way that works.

    1. ``processor.apply_chat_template(messages, tokenize=True, return_dict=True)``, which is what
       transformers documents, with the images inside the messages;
    2. ``processor(text=, images=)`` with lists;
    3. of one sample, ``processor(text=, images=)`` with a text that the template wrote;
    4. of one sample, ``tokenizer.apply_chat_template`` with the image in its message (GLM-4V);
    5. of one sample, ``processor()`` by its own names for picture and words (X-VLA).

    Nothing is known of such code beforehand, so what comes out is looked at: it has to hold the
    prompt, and pixels where a sample has an image. Some templates delete an image placeholder, and
    some folders name a processor that is not the model's.
    """
    from transformers import BatchFeature

    reasons = []
    for name, way in (
        ("apply_chat_template", _by_template),
        ("processor(text=, images=)", build_standard),
        ("processor(text=, images=) of one text", _of_one_text),
        ("apply_chat_template of its tokenizer", _by_tokenizer),
        ("processor() by its own names", _by_own_names),
    ):
        try:
            inputs = BatchFeature(arrays_as_tensors(dict(way(processor, samples, system))))
            refuse_incomplete(inputs, processor, samples)
        except (*REFUSALS, ImportError) as error:
            reasons.append(f"{name}: {first_line(error)}")
        else:
            return inputs
    raise ValueError("; ".join(reasons))


def _by_template(processor: Any, samples: Sequence[Sample], system: str | None) -> BatchFeature:
    from transformers import BatchFeature

    if not is_multimodal(processor):
        raise ValueError(f"{type(processor).__name__} is no processor: it reads no picture")
    if not getattr(processor, "chat_template", None):
        raise ValueError(f"{type(processor).__name__} holds no chat_template")
    options: dict[str, Any] = {}
    if len(samples) > 1:
        ensure_pad_token(processor.tokenizer)
        options = {"padding": True, "padding_side": "right"}
    made = processor.apply_chat_template(
        conversations(processor, samples, system),
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        add_generation_prompt=True,
        **options,
    )
    return BatchFeature(dict(made))


def _of_one_text(processor: Any, samples: Sequence[Sample], system: str | None) -> dict[str, Any]:
    """As many a README does, where code takes no lists (Penguin-VL)."""
    if len(samples) > 1 or not is_multimodal(processor):
        raise ValueError("that takes one sample, and a processor with a tokenizer")
    images = list(samples[0].images)
    if getattr(processor, "chat_template", None):
        (talk,) = conversations(processor, samples, system)
        text = processor.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    else:
        (text,), _ = prompts(processor, samples, system)
    return dict(processor(text=text, images=images or None, return_tensors="pt"))


def _by_own_names(processor: Any, samples: Sequence[Sample], system: str | None) -> dict[str, Any]:
    """A processor that calls picture and words otherwise, and writes what stands around them."""
    if len(samples) > 1 or not is_multimodal(processor):
        raise ValueError("that takes one sample, and a processor with a tokenizer")
    refuse_system(processor, system)
    (sample,) = samples
    takes = [name for name in signature(processor.__call__).parameters if name not in _USUAL]
    words = next((name for name in takes if _WORDS.search(name)), None)
    pictures = next((name for name in ("images", *takes) if _PICTURES.search(name)), None)
    if words is None or pictures is None:
        raise ValueError(f"{type(processor).__name__} takes no words by another name")
    sample.require_one_turn()
    return dict(processor(**{pictures: [*sample.images] or None, words: "".join(sample.texts)}))


#: Names of arguments by which processors of transformers are called.
_USUAL = ("text", "images", "videos", "audio")
_WORDS = re.compile(r"instruction|question|query|prompt|^text")
_PICTURES = re.compile(r"^(?!.*(token|size|num|mask)).*(image|img|picture)")


def reads_messages(processor: Any) -> bool:
    """Whether a bare tokenizer, of code of its own, takes pictures as ``image`` of a message."""
    if is_multimodal(processor) or type(processor).__module__.startswith("transformers."):
        return False
    with suppress(OSError, TypeError, AttributeError):
        return '"image"' in getsource(type(processor)).replace("'", '"')
    return False


def _by_tokenizer(processor: Any, samples: Sequence[Sample], system: str | None) -> dict[str, Any]:
    if len(samples) > 1 or not reads_messages(processor):
        raise ValueError("that takes one sample, and a tokenizer that takes messages with images")
    (sample,) = samples
    sample.require_one_turn()
    refuse_system(processor, system)
    message: dict[str, Any] = {"role": "user", "content": "".join(sample.texts)}
    if sample.images:
        message["image"] = sample.image
    made = processor.apply_chat_template(
        [message],
        add_generation_prompt=True,
        tokenize=True,
        return_tensors="pt",
        return_dict=True,
    )
    return dict(made)


def refuse_incomplete(inputs: Mapping[str, Any], processor: Any, samples: Sequence[Sample]) -> None:
    """Refuse inputs that lack the image, a prompt or a turn of it."""
    from normprobe.inputs.on_device import pixel_inputs

    if any(sample.images for sample in samples) and not pixel_inputs(inputs):
        raise ValueError("the inputs hold no pixels, though there is an image")
    tokenizer, ids = tokenizer_of(processor), find_named(inputs, "input_ids")
    if tokenizer is None or ids is None:
        return
    for sample, row in zip(samples, ids.tolist(), strict=True):
        text = tokenizer.decode([token for token in row if token >= 0])
        if not all(_without_spaces(piece) in _without_spaces(text) for piece in sample.texts):
            raise ValueError(f"the prompt of {sample.id} is not in input_ids")


def _without_spaces(text: str) -> str:
    """Decoding may change spaces and line breaks."""
    return "".join(text.split())
