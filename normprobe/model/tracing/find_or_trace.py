"""Find the parts of a model in memory, by its structure or, where that fails, by running it."""

from collections.abc import Callable, Mapping

import pandas as pd
from torch import nn
from transformers import BatchFeature

from normprobe.errors import NormprobeError
from normprobe.inputs.on_device import inputs_for
from normprobe.model.find.overrides import FUSIONS, IN_SEQUENCE
from normprobe.model.find.parts import Part, Parts, class_rows_of
from normprobe.model.find.structure import find_parts
from normprobe.model.tracing import TracedParts, trace_parts, verify


def find_or_trace(
    model: nn.Module, named: Mapping[str, object], example: Callable[[], BatchFeature]
) -> tuple[Parts, str]:
    """Find the parts by structure; where that fails, by a trace.

    Args:
        model: on its device.
        named: parts named by hand.
        example: gives the inputs of one sample with an image; called only for a trace.

    Returns:
        The parts, and how they were found: ``structure``, ``by hand`` or ``trace``.

    Raises:
        NormprobeError: that of ``find_parts``, when parts are named by hand, or when the trace
            does not find the decoder layers and the text embedding either.
    """
    try:
        return find_parts(model, named=named), "by hand" if named else "structure"
    except NormprobeError as failure:
        if named:
            raise
        try:
            traced = trace_parts(model, inputs_for(model, example()))
        except NormprobeError:
            raise failure from None
        if traced.decoder_layers is None or traced.text_embedding is None:
            raise
        return _as_parts(model, traced), "trace"


def verified(model: nn.Module, parts: Parts, example: BatchFeature) -> pd.DataFrame:
    """Compare the parts in use with a trace of one sample.

    Args:
        model: on its device.
        parts: of ``find_or_trace``.
        example: the inputs of one sample with an image.

    Returns:
        One row a part: part, static, traced, agree.
    """
    return verify(parts, trace_parts(model, inputs_for(model, example)))


def _as_parts(model: nn.Module, traced: TracedParts) -> Parts:
    """A traced model has no known image token id: its visual tokens are found by perturbation."""

    def part(name: str | None) -> Part | None:
        return None if name is None else Part(name, model.get_submodule(name))

    encoder = part(traced.vision_encoder)
    return Parts(
        vision_encoder=encoder,
        projector=part(traced.projector),
        text_embedding=part(traced.text_embedding),
        decoder_layers=part(traced.decoder_layers),
        visual_embedding=None,
        image_token_ids=(),
        fusion=traced.fusion if traced.fusion in FUSIONS else IN_SEQUENCE,
        class_rows=class_rows_of(encoder),
    )
