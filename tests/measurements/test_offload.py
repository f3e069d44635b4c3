"""Weights on the cpu, on the disk, or spread by accelerate: the same numbers."""

from pathlib import Path

import pandas as pd
import pytest
import torch
from support.cases import model_of
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs
from support.tiny_models import tiny_model

from normprobe import align_norms, find_parts, probe_interface, probe_layers
from normprobe.model.align.norm import inserted_norm
from normprobe.model.checkpoint import open_checkpoint
from normprobe.model.find.parts import Part, weight_of
from normprobe.model.load.loading import load_model
from normprobe.model.load.plan import plan_for
from normprobe.model.load.required_tensors import (
    before_the_decoder,
    embedding_tables,
    forward_to_last_layer,
)
from normprobe.statistics.weights import embedding_statistics


def table_of(part: Part | None) -> Part:
    assert part is not None
    return part


@pytest.mark.parametrize(
    ("model_type", "layers_on", "rest_on"),
    [("llava", "disk", "cpu"), ("qwen2_vl", "cpu", "disk"), ("gemma3", "disk", "disk")],
)
def test_offloaded_numbers_are_the_plain_ones(
    model_type: str, layers_on: str, rest_on: str, tmp_path: Path
) -> None:
    model_of(model_type).save_pretrained(tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    plain = load_model(checkpoint, device="cpu")
    parts = find_parts(plain)
    assert parts.decoder_layers is not None
    device_map = {
        name: layers_on if name.startswith(parts.decoder_layers.name) else rest_on
        for name, module in plain.named_modules()
        if next(module.parameters(recurse=False), None) is not None
        or next(module.buffers(recurse=False), None) is not None
    }
    plan = plan_for(forward_to_last_layer, checkpoint)
    offloaded = load_model(checkpoint, plan, device_map=device_map)
    assert any(parameter.is_meta for parameter in offloaded.parameters())
    inputs = tiny_inputs(plain)
    for probe in (probe_interface, probe_layers):
        pd.testing.assert_frame_equal(
            probe(offloaded, inputs, special_token_ids=SPECIAL_IDS),
            probe(plain, inputs, special_token_ids=SPECIAL_IDS),
        )
    pd.testing.assert_frame_equal(
        embedding_statistics(weight_of(table_of(find_parts(offloaded).text_embedding))),
        embedding_statistics(weight_of(table_of(parts.text_embedding))),
        check_exact=True,
    )


def test_device_map_auto_loads_what_is_needed(tmp_path: Path) -> None:
    model_of("llava").save_pretrained(tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    model = load_model(checkpoint, plan_for(before_the_decoder, checkpoint), device_map="auto")
    inputs = tiny_inputs(model_of("llava"))
    plain = load_model(checkpoint, device="cpu")
    pd.testing.assert_frame_equal(probe_interface(model, inputs), probe_interface(plain, inputs))


@pytest.mark.parametrize("place", ["disk", "cpu"])
def test_a_norm_behind_an_offloaded_projector_is_put_back(place: str, tmp_path: Path) -> None:
    model = tiny_model("llava")  # its own: it is changed
    gain = torch.linspace(0.5, 2, align_norms(model).normalized_shape[0])
    model.alignment_norm.weight.data.copy_(gain)
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    plain = load_model(checkpoint, device="cpu")
    device_map = {
        "model.multi_modal_projector.linear_1": place,
        "model.multi_modal_projector.linear_2": place,
        "model.vision_tower": "cpu",
        "model.language_model": "disk",
        "lm_head": "cpu",
    }
    spread = load_model(checkpoint, plan_for(before_the_decoder, checkpoint), device_map=device_map)
    assert torch.equal(spread.alignment_norm.weight, gain)
    inputs = tiny_inputs(plain)
    pd.testing.assert_frame_equal(
        probe_interface(spread, inputs, special_token_ids=SPECIAL_IDS),
        probe_interface(plain, inputs, special_token_ids=SPECIAL_IDS),
    )


def test_without_the_projector_there_is_no_norm_to_read(tmp_path: Path) -> None:
    model = tiny_model("llava")
    align_norms(model)
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    loaded = load_model(checkpoint, plan_for(embedding_tables, checkpoint), device="cpu")
    assert inserted_norm(loaded) is None
