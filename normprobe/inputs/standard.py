"""What processors raise on images and texts that they cannot take: they have no exception for it.

Not ``NormprobeError``: that already says what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from normprobe.data.sample import Sample
from normprobe.inputs.chat import is_multimodal, reads_one_image, render_chat, render_plain

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import BatchFeature

REFUSALS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


def build(
    processor: Any, samples: Sequence[Sample], system: str | None, layout: str
) -> BatchFeature:
    """Turn samples into one batch, padded on the right."""
    from transformers import BatchFeature
    from transformers.image_processing_base import ImageProcessingMixin

    is_image_processor = isinstance(processor, ImageProcessingMixin)
    if is_image_processor:
        return BatchFeature(dict(processor(images=required_images(samples), return_tensors="pt")))

    is_chat = bool(getattr(processor, "chat_template", None))
    if is_chat:
        texts = render_chat(processor, samples, system)
    else:
        texts = render_plain(processor, samples, system, layout)
    tokenizer = processor.tokenizer if is_multimodal(processor) else processor
    options = batch_options(tokenizer, len(samples))
    if is_chat and (tokenizer is processor or texts[0].startswith(tokenizer.bos_token or "\0")):
        # What `apply_chat_template(tokenize=True)` does: the template of a tokenizer writes all
        # special tokens, the template of a processor writes the begin token or leaves it out.
        options["add_special_tokens"] = False
    if tokenizer is processor:
        return BatchFeature(dict(processor(texts, **options)))
    nested = [list(sample.images) for sample in samples]
    images = [image for own in nested for image in own]
    if not images:
        return BatchFeature(dict(processor(text=texts, **options)))
    # Chat processors take a list of images for each text, older ones one flat list; some of either
    # kind want it the other way, and refuse what they do not understand. A flat list does not tell
    # whose the images are, unless each text has one.
    each_has_one = len(images) == len(samples) == sum(map(bool, nested))
    if reads_one_image(processor) and not is_chat and not each_has_one:
        raise ValueError("samples with an image and samples without one do not fit into one batch")
    first, second = (images, nested) if each_has_one and not is_chat else (nested, images)
    try:
        return BatchFeature(dict(processor(text=texts, images=first, **options)))
    except REFUSALS as error:
        try:
            return BatchFeature(dict(processor(text=texts, images=second, **options)))
        except REFUSALS:
            raise error from None


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
