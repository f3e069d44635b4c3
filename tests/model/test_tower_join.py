"""Classes of visual tokens against norms of own hooks."""

import numpy as np
import pytest
import torch
from support.pictured import loaded, sample

from normprobe import NormprobeError
from normprobe.inputs.on_device import inputs_for
from normprobe.model.tower_join import TowerClasses, _owners


def test_the_loudest_behind_the_block_that_is_read():
    model, builder = loaded("llava")
    inputs = inputs_for(model.model, builder.build([sample()]))
    with torch.no_grad():
        seen = model.parts.vision_encoder.module(
            inputs["pixel_values"], output_hidden_states=True
        ).hidden_states[model.model.config.vision_feature_layer]
    norms = np.sqrt((seen[0, 1:].double().numpy() ** 2).sum(-1))  # the first row is CLS
    found = TowerClasses(model).of(inputs)
    order = np.argsort(-norms)
    assert len(norms) == 16
    for name in ("loudest_1", "loudest_2", "loudest_5"):
        assert found[name].tolist() == order[:1].tolist()
    quiet = np.flatnonzero(norms <= np.median(norms))
    before, behind = quiet[quiet < order[0]][-1:], quiet[quiet > order[0]][:1]
    assert found["quiet"].tolist() == [*before, *behind]


def test_a_prompt_without_a_picture_has_none_of_them():
    model, builder = loaded("llava")
    asked = sample()
    inputs = inputs_for(model.model, builder.build([type(asked)("a", "Where is the cup?")]))
    assert all(len(chosen) == 0 for chosen in TowerClasses(model).of(inputs).values())


def test_where_tokens_cannot_be_followed_back_there_is_no_class():
    model, builder = loaded("idefics2")
    inputs = inputs_for(model.model, builder.build([sample()]))
    with pytest.raises(NormprobeError, match="have no class: its projector mixes rows") as told:
        TowerClasses(model).of(inputs)
    assert "--do freeze is done to all" in told.value.remedy


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 6, 9])
def test_each_of_some_tokens_has_a_number_of_its_own(tokens):
    state = torch.randn(tokens, 4, requires_grad=True)
    order = torch.randperm(tokens)
    assert _owners(state[order] * 2.0, [state]).tolist() == order.argsort().tolist()
