"""States of a miniature in float64, taken by replacing ``forward``, and the group of each row.

Which rows are visual is asked of the model with other images, not of its inputs: rows at the
decoder's door that change with the image come from it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import ImageOps
from torch import Tensor, nn

from normprobe import schema
from normprobe.data.sample import Sample
from normprobe.inputs.builder import InputBuilder
from support.capture import Array, Layer, States, to_numpy
from support.reference import PADDING, Groups
from support.remote_code.expected import PARTS, PLACEHOLDERS


@dataclass
class Call:
    """What one call of a module took and gave."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    entered: Array | None  # a copy from before the call: layers may write in place


@dataclass
class Observed:
    states: States
    groups: Groups
    vision: dict[tuple[str, str], list[Array]] = field(default_factory=dict)  # by stage, group


def observe(family: str, builder: InputBuilder, samples: Sequence[Sample]) -> Observed:
    """Run the model on the samples as one batch, and once more on inverted images."""
    inputs = builder.build(samples)
    states, vision = _run(family, builder.model, inputs)
    inverted = [
        replace(sample, images=tuple(map(ImageOps.invert, sample.images))) for sample in samples
    ]
    others, _ = _run(family, builder.model, builder.build(inverted))
    moved = (states.layers[0].entered != others.layers[0].entered).any(axis=-1)
    return Observed(states, _groups(family, builder.tokenizer, inputs, moved), vision)


def _groups(
    family: str, tokenizer: Any, inputs: Mapping[str, Any], moved: NDArray[np.bool_]
) -> Groups:
    ids = inputs.get("data", inputs)["input_ids"].numpy()
    places = [
        tokenizer.convert_tokens_to_ids(place) if isinstance(place, str) else place
        for place in PLACEHOLDERS[family]
    ]
    groups = np.full(ids.shape, schema.TEXT, dtype="<U16")
    groups[np.isin(ids, tokenizer.all_special_ids)] = schema.SPECIAL
    groups[np.isin(ids, places)] = schema.STRUCTURAL
    groups[moved] = schema.VISUAL
    groups[inputs["attention_mask"].numpy() == 0] = PADDING
    return groups


@torch.no_grad()
def _run(
    family: str, model: nn.Module, inputs: Mapping[str, Any]
) -> tuple[States, dict[tuple[str, str], list[Array]]]:
    parts = PARTS[family]
    assert parts.decoder_layers and parts.vision_encoder and parts.projector
    with ExitStack() as stack:
        layers = [
            stack.enter_context(_calls(layer))
            for layer in model.get_submodule(parts.decoder_layers)
        ]
        encoder = stack.enter_context(_calls(model.get_submodule(parts.vision_encoder)))
        projector = stack.enter_context(_calls(model.get_submodule(parts.projector)))
        model(**{name: value for name, value in inputs.items() if name not in schema.MASKS})
    states = States(
        layers=[Layer(call.entered, _numbers(call.output)) for (call,) in layers]  # type: ignore[arg-type]
    )
    kept = next((call.kwargs.get("patch_attention_mask") for call in encoder), None)
    projected = [call for call in projector if call.entered is not None]
    encoded, first = [_numbers(call.output) for call in encoder], parts.class_rows
    vision = {
        (schema.VISION_ENCODER, schema.SPECIAL): [_rows(x[..., :first, :], None) for x in encoded],
        (schema.VISION_ENCODER, schema.VISUAL): [_rows(x[..., first:, :], kept) for x in encoded],
        (schema.PROJECTOR_INPUT, schema.VISUAL): [_rows(x.entered, kept) for x in projected],
        (schema.PROJECTOR_OUTPUT, schema.VISUAL): [
            _rows(_numbers(x.output), None) for x in projected
        ],
    }
    return states, {key: rows for key, rows in vision.items() if sum(map(len, rows))}


@contextmanager
def _calls(module: nn.Module) -> Iterator[list[Call]]:
    original, calls = module.forward, []

    def forward(*args: Any, **kwargs: Any) -> Any:
        entered = _numbers(args[0] if args else next(iter(kwargs.values())))
        calls.append(Call(args, kwargs, original(*args, **kwargs), entered))
        return calls[-1].output

    with patch.object(module, "forward", forward):
        yield calls


def _numbers(value: Any) -> Array | None:
    """Float64 rows; MoonViT gives a list of images. None for token ids."""
    if hasattr(value, "last_hidden_state"):
        value = value.last_hidden_state
    if isinstance(value, tuple):
        value = value[0]
    if isinstance(value, list):
        return np.concatenate([to_numpy(image) for image in value])
    return to_numpy(value) if value.is_floating_point() else None


def _rows(states: Array | None, kept: Tensor | None) -> Array:
    """``[rows, width]``, without the patches that a mask leaves out."""
    assert states is not None
    rows = states.reshape(-1, states.shape[-1])
    return (
        rows if kept is None or kept.numel() != len(rows) else rows[kept.flatten().bool().numpy()]
    )
