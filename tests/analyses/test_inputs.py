"""What a model is given besides what its processor returned."""

from types import SimpleNamespace

import pytest
import torch
from support.tiny_models import tiny_model
from transformers import BatchFeature

from normprobe.analyses.inputs import inputs_for


def batch() -> BatchFeature:
    return BatchFeature(
        {"input_ids": torch.ones(3, 2, dtype=torch.long), "pixel_values": torch.ones(3, 1)}
    )


def test_floats_take_the_dtype_of_the_model_and_ids_do_not() -> None:
    inputs = inputs_for(tiny_model("llava").bfloat16(), batch())
    assert inputs["pixel_values"].dtype == torch.bfloat16
    assert inputs["input_ids"].dtype == torch.long
    assert "decoder_input_ids" not in inputs


@pytest.mark.parametrize(
    ("config", "generation", "start"),
    [
        ({"decoder_start_token_id": 5}, {}, 5),
        ({}, {"decoder_start_token_id": 6}, 6),
        ({"bos_token_id": 7}, {}, 7),
    ],
)
def test_a_text_decoder_begins_with_its_start_token(
    config: dict[str, int], generation: dict[str, int], start: int
) -> None:
    text_config = SimpleNamespace()
    model = SimpleNamespace(
        parameters=lambda: iter([torch.zeros(1)]),
        dtype=torch.float32,
        config=SimpleNamespace(
            is_encoder_decoder=True, get_text_config=lambda decoder: text_config, **config
        ),
        generation_config=SimpleNamespace(**generation),
    )
    assert inputs_for(model, batch())["decoder_input_ids"].tolist() == [[start]] * 3
    given = batch()
    given["decoder_input_ids"] = torch.zeros(3, 4, dtype=torch.long)
    assert inputs_for(model, given)["decoder_input_ids"].shape == (3, 4)
