"""Inputs of models with code of their own, by the ways that such repositories document.

Nothing is known of them beforehand, so what comes out is looked at: it has to hold the prompt, and
pixels where a sample has an image. Some templates delete an image placeholder, and some folders
name a processor that is not the model's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from normprobe.data.sample import Sample
from normprobe.errors import first_line
from normprobe.inputs import standard
from normprobe.inputs.chat import conversations, is_multimodal
from normprobe.inputs.processor import tokenizer_of
from normprobe.inputs.standard import REFUSALS

if TYPE_CHECKING:
    from transformers import BatchFeature


def build(processor: Any, samples: Sequence[Sample], system: str | None) -> BatchFeature:
    """One batch, padded on the right, by the first of these ways that works.

    1. ``processor.apply_chat_template(messages, tokenize=True, return_dict=True)``, which is what
       transformers documents, with the images inside the messages;
    2. ``processor(text=, images=)``.
    """
    reasons = []
    for name, way in (("apply_chat_template", _by_template), ("processor(text=, images=)", _call)):
        try:
            inputs = way(processor, samples, system)
            _check(inputs, processor, samples)
        except (*REFUSALS, ImportError) as error:
            reasons.append(f"{name}: {first_line(error)}")
        else:
            return inputs
    raise ValueError("; ".join(reasons))


def _by_template(processor: Any, samples: Sequence[Sample], system: str | None) -> BatchFeature:
    from transformers import BatchFeature

    if not (is_multimodal(processor) and getattr(processor, "chat_template", None)):
        raise ValueError("no processor with a chat template")
    options: dict[str, Any] = {}
    if len(samples) > 1:
        standard.ensure_pad_token(processor.tokenizer)
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


def _call(processor: Any, samples: Sequence[Sample], system: str | None) -> BatchFeature:
    return standard.build(processor, samples, system, layout="{turn}")


def _check(inputs: Mapping[str, Any], processor: Any, samples: Sequence[Sample]) -> None:
    """Refuse inputs that lack the image or a prompt."""
    from normprobe.inputs.on_device import pixel_inputs

    if any(sample.images for sample in samples) and not pixel_inputs(inputs):
        raise ValueError("the inputs hold no pixels, though there is an image")
    tokenizer, ids = tokenizer_of(processor), inputs.get("input_ids")
    if tokenizer is None or ids is None:
        return
    for sample, row in zip(samples, ids.tolist(), strict=True):
        text = tokenizer.decode([token for token in row if token >= 0])
        if not all(_without_spaces(piece) in _without_spaces(text) for piece in sample.texts):
            raise ValueError(f"the prompt of {sample.id} is not in input_ids")


def _without_spaces(text: str) -> str:
    """Decoding may change spaces and line breaks."""
    return "".join(text.split())
