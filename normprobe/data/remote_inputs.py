"""Inputs for model types whose own code wants them its own way.

Most processors answer ``processor(images=..., text=...)``. Those in ``BUILDERS`` do not. How they
are called was read from published excerpts of their repositories, not executed: where a repository
differs, its own code raises, and the error says so.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from normprobe.data.chat import NO_SYSTEM, render_chat
from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError

if TYPE_CHECKING:
    from transformers import BatchFeature

#: (processor, samples, system) to one batch, as ``batches.build_inputs`` describes.
Builder = Callable[[Any, Sequence[Sample], str | None], "BatchFeature"]


def _moonvit(processor: Any, samples: Sequence[Sample], system: str | None) -> "BatchFeature":
    """The image processor and the encoder give the grid sizes two names."""
    from transformers import BatchFeature

    del system
    inputs = processor(images=[_image(sample) for sample in samples], return_tensors="pt")
    return BatchFeature(
        {"pixel_values": inputs["pixel_values"], "grid_hws": inputs["image_grid_hws"]}
    )


def _minicpmv(processor: Any, samples: Sequence[Sample], system: str | None) -> "BatchFeature":
    """One list of images a prompt; the model takes everything but the mask as one dict."""
    from normprobe.data.nested import NestedFeature

    placed = _with_placeholder(samples, "(<image>./</image>)\n")
    images = [[sample.image] if sample.image is not None else [] for sample in samples]
    texts = render_chat(processor.tokenizer, placed, system)
    data = dict(processor(texts, images, return_tensors="pt"))
    mask = data.pop("attention_mask").long()
    # Rows are padded on the left: positions count from the first token.
    data["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    return NestedFeature({"data": data, "attention_mask": mask})


def _molmo(processor: Any, samples: Sequence[Sample], system: str | None) -> "BatchFeature":
    """``process`` takes one sample, writes the roles itself and adds no batch axis."""
    from normprobe.data.nested import stacked

    _refuse_system(processor, system)
    rows = []
    for sample in samples:
        images = None if sample.image is None else [sample.image]
        row = dict(processor.process(images=images, text=sample.prompt))
        row["attention_mask"] = row["input_ids"].new_ones(len(row["input_ids"]))
        rows.append(row)
    # The model leaves out crops of -1 and features whose index is negative.
    fill = {"attention_mask": 0, "images": -1, "image_masks": -1, "image_input_idx": -100}
    return stacked(rows, fill)


def _deepseek_vl_v2(
    processor: Any, samples: Sequence[Sample], system: str | None
) -> "BatchFeature":
    """A conversation in its own format; ``batchify`` makes one batch of several."""
    from transformers import BatchFeature

    asked = "" if system in (None, NO_SYSTEM) else system
    prepared = [
        processor(
            conversations=[
                {"role": "<|User|>", "content": placed.prompt},
                {"role": "<|Assistant|>", "content": ""},
            ],
            images=[] if placed.image is None else [placed.image],
            force_batchify=False,
            system_prompt=asked,
        )
        for placed in _with_placeholder(samples, "<image>\n")
    ]
    batch = processor.batchify(prepared)
    names = ("input_ids", "attention_mask", "images", "images_seq_mask", "images_spatial_crop")
    return BatchFeature({name: batch[name] for name in names})


def _phi4mm(processor: Any, samples: Sequence[Sample], system: str | None) -> "BatchFeature":
    """Images are numbered within each prompt; the roles are written by hand, as published."""
    from transformers import BatchFeature

    opening = "" if system in (None, NO_SYSTEM) else f"<|system|>{system}<|end|>"
    texts = [
        f"{opening}<|user|>{sample.prompt}<|end|><|assistant|>"
        for sample in _with_placeholder(samples, "<|image_1|>")
    ]
    images = [sample.image for sample in samples if sample.image is not None]
    return BatchFeature(dict(processor(text=texts, images=images or None, return_tensors="pt")))


def _ovis2_5(processor: Any, samples: Sequence[Sample], system: str | None) -> "BatchFeature":
    from normprobe.data.ovis_inputs import build_ovis2_5

    placed = _with_placeholder(samples, "<image>\n")
    return build_ovis2_5(processor, placed, render_chat(processor, placed, system))


#: By ``config.model_type``.
BUILDERS: dict[str, Builder] = {
    "moonvit": _moonvit,
    "ovis2_5": _ovis2_5,
    "minicpmv": _minicpmv,
    "molmo": _molmo,
    "deepseek_vl_v2": _deepseek_vl_v2,
    "phi4mm": _phi4mm,
}


def _with_placeholder(samples: Sequence[Sample], placeholder: str) -> list[Sample]:
    """Write the place of the image into the prompts of samples that have one."""
    mark = placeholder.strip()
    for sample in samples:
        if mark in sample.prompt:
            raise NormprobeError(
                f"{sample.id}: the prompt contains this model's image placeholder {mark!r}.",
                "Remove it from the prompt; normprobe places the image itself.",
            )
    return [
        sample if sample.image is None else replace(sample, prompt=placeholder + sample.prompt)
        for sample in samples
    ]


def _image(sample: Sample) -> Any:
    if sample.image is None:
        raise ValueError("a bare vision encoder needs an image in every sample")
    return sample.image


def _refuse_system(processor: Any, system: str | None) -> None:
    if system not in (None, NO_SYSTEM):
        raise NormprobeError(
            f"--system: {type(processor).__name__} writes the roles itself and has no system role.",
            "Leave --system out.",
        )
