"""Structural rows: learned once by perturbing pixels, recognised by equality afterwards."""

import pytest
import torch
from normprobe.model.token_groups import constant_rows, groups_of, place_groups
from support.tiny_inputs import tiny_inputs
from support.tiny_models import BOS, EOS, INDICATORS, tiny_model

from normprobe import NormprobeError, find_parts, probe_layers
from normprobe.schema import STRUCTURAL, TOKEN_GROUPS, VISUAL


@pytest.mark.parametrize(("model_type", "rows"), [("llava", 0), ("llava_next", 1), ("ovis2", 2)])
def test_constant_rows_are_the_learned_ones(model_type: str, rows: int) -> None:
    model = tiny_model(model_type)
    inputs = tiny_inputs(model, batch_size=2)
    parts = find_parts(model)
    found = constant_rows(model, parts, inputs, groups_of(model, parts, inputs, [BOS, EOS]))
    assert len(found) == rows
    if model_type == "llava_next":
        torch.testing.assert_close(found[0], model.model.image_newline)
    if model_type == "ovis2":
        table = model.model.visual_embeddings_table.weight
        assert all((row == table).all(-1).any() for row in found)
        assert len(INDICATORS) >= rows


def test_recognised_rows_become_structural_and_no_others() -> None:
    visual, structural = TOKEN_GROUPS.index(VISUAL), TOKEN_GROUPS.index(STRUCTURAL)
    newline = torch.tensor([1.0, 2.0])
    parts = find_parts(tiny_model("llava"))
    states = torch.tensor([[[1.0, 2.0], [1.0, 2.5], [1.0, 2.0]]])
    groups = torch.tensor([[visual, visual, TOKEN_GROUPS.index("text")]], dtype=torch.int8)
    marked = place_groups(groups, states, parts, newline[None])
    assert marked.tolist() == [[structural, visual, TOKEN_GROUPS.index("text")]]


def test_an_image_without_a_placeholder_is_an_error() -> None:
    model = tiny_model("llava")
    inputs = tiny_inputs(model)
    inputs["input_ids"] = torch.full_like(inputs["input_ids"], 30)
    with pytest.raises(NormprobeError, match="holds no image token"):
        probe_layers(model, inputs)


def test_inputs_without_ids_are_an_error() -> None:
    model = tiny_model("llava")
    with pytest.raises(NormprobeError, match="no input_ids"):
        probe_layers(model, {"pixel_values": torch.zeros(1, 3, 16, 16)})
