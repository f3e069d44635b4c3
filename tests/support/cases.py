"""Models, batches and reference states, each made once."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Literal

from transformers import PreTrainedModel

from support.capture import States, capture
from support.expected_parts import PARTS, ExpectedParts
from support.reference import Groups, Observations, observe_layers, token_groups
from support.tiny_inputs import SPECIAL_IDS, Inputs, tiny_inputs
from support.tiny_models import tiny_model


@dataclass(frozen=True)
class Case:
    """One batch, and what the reference knows about it."""

    model: PreTrainedModel
    inputs: Inputs
    parts: ExpectedParts
    states: States
    groups: Groups | None

    @property
    def observations(self) -> Observations:
        return observe_layers(self.states, self.groups)


@cache
def model_of(model_type: str) -> PreTrainedModel:
    return tiny_model(model_type)


@cache
def case_of(
    model_type: str, batch_size: int = 4, padding: Literal["right", "left"] = "right"
) -> Case:
    model = model_of(model_type)
    inputs = tiny_inputs(model, batch_size, padding)
    return make_case(model, inputs, PARTS[model_type], SPECIAL_IDS)


def make_case(
    model: PreTrainedModel, inputs: Inputs, parts: ExpectedParts, special_ids: Collection[int]
) -> Case:
    """The reference of any batch. A bare encoder runs alone and has no token groups."""
    has_tokens = "input_ids" in inputs
    encoder = None if has_tokens else model.get_submodule(parts.vision_encoder)
    return Case(
        model,
        inputs,
        parts,
        states=capture(model, inputs, parts, run=encoder),
        groups=token_groups(model, inputs, parts, special_ids) if has_tokens else None,
    )
