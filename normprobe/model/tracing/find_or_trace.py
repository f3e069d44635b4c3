"""Find the parts of a model in memory, by its structure or, where that fails, by running it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from normprobe.errors import NormprobeError
from normprobe.inputs.on_device import inputs_for
from normprobe.inputs.pixels import pixel_inputs
from normprobe.model.find.overrides import FUSIONS, IN_SEQUENCE
from normprobe.model.find.parts import Part, Parts, class_rows_of
from normprobe.model.find.structure import find_parts, video_and_audio_ids
from normprobe.model.tracing import TracedParts, trace_parts


def find_or_trace(
    model: nn.Module,
    named: Mapping[str, object],
    example: Callable[[], Mapping[str, Any]],
) -> tuple[Parts, str]:
    """Find the parts by structure; where that fails, by a trace.

    A structure without a vision side is believed only where the example holds no pixels.

    Returns:
        The parts, and how they were found: ``structure``, ``by hand`` or ``trace``.
    """
    if named:
        return find_parts(model, named=named), "by hand"
    try:
        parts = find_parts(model)
    except NormprobeError as failure:
        try:
            return _traced(model, example()), "trace"
        except NormprobeError as second:
            raise NormprobeError(
                f"{failure.problem}; a trace of the running model fails, too: {second.problem}",
                failure.remedy,
            ) from second
    if parts.text_embedding is None or parts.vision_encoder or parts.projector:
        return parts, "structure"
    try:
        inputs = example()
    except NormprobeError:  # nothing to look at, so no image either
        return parts, "structure"
    return (_traced(model, inputs), "trace") if pixel_inputs(inputs) else (parts, "structure")


def _traced(model: nn.Module, inputs: Mapping[str, Any]) -> Parts:
    """The parts that a trace finds."""
    traced = trace_parts(model, inputs_for(model, inputs))
    for role in ("decoder_layers", "text_embedding"):
        if getattr(traced, role) is None:
            raise NormprobeError(
                f"no {role.replace('_', ' ')} among what ran", "name the parts by hand"
            )
    return _as_parts(model, traced)


def traced_example(model: nn.Module, parts: Parts, example: Mapping[str, Any]) -> TracedParts:
    """Trace one sample, to compare with the parts in use."""
    inputs, encoder = inputs_for(model, example), parts.vision_encoder
    if encoder is None or parts.decoder_layers is not None or not encoder.name:
        return trace_parts(model, inputs)
    traced = trace_parts(encoder.module, inputs)
    names = (traced.vision_encoder, traced.encoder_layers)
    inside = [name and f"{encoder.name}.{name}" for name in names]
    return replace(traced, vision_encoder=inside[0] or encoder.name, encoder_layers=inside[1])


def _as_parts(model: nn.Module, traced: TracedParts) -> Parts:
    """A traced model has no known image token id: its visual tokens are found by perturbation."""

    def part(name: str | None) -> Part | None:
        return None if name is None else Part(name, model.get_submodule(name))

    encoder = part(traced.vision_encoder)
    video_ids, audio_ids = video_and_audio_ids(model, {}, ())
    return Parts(
        vision_encoder=encoder,
        projector=part(traced.projector),
        text_embedding=part(traced.text_embedding),
        decoder_layers=part(traced.decoder_layers),
        visual_embedding=None,
        image_token_ids=(),
        fusion=traced.fusion if traced.fusion in FUSIONS else IN_SEQUENCE,
        class_rows=class_rows_of(encoder),
        video_token_ids=video_ids,
        audio_token_ids=audio_ids,
    )
