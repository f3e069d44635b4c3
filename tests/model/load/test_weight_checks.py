"""Weights that are missing, not finite, without scales or of another shape are refused."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.cases import model_of
from support.tiny_models import build

from normprobe import find_parts
from normprobe.errors import NormprobeError
from normprobe.model.checkpoint import Checkpoint, open_checkpoint
from normprobe.model.load.loading import load_model
from normprobe.model.load.plan import plan_for
from normprobe.model.load.required_tensors import (
    Needs,
    before_the_decoder,
    embedding_tables,
    forward_to_last_layer,
)
from normprobe.model.load.weight_checks import quantised_parts

Weights = dict[str, torch.Tensor]

NEEDED = (embedding_tables, before_the_decoder, forward_to_last_layer)


def damaged(folder: Path, model_type: str = "llava") -> tuple[Weights, Path]:
    """The weights of a saved model, to change and to save again."""
    model_of(model_type).save_pretrained(folder)
    return load_file(folder / "model.safetensors"), folder / "model.safetensors"


def key_of(weights: Weights, part: str) -> str:
    return next(key for key in weights if part in key)


def load(folder: Path, needs: Needs) -> None:
    checkpoint: Checkpoint = open_checkpoint(str(folder))
    load_model(checkpoint, plan_for(needs, checkpoint), device="cpu")


@pytest.mark.parametrize("needs", NEEDED)
def test_a_missing_tensor_stops_the_measurements_that_read_it(needs: Needs, tmp_path: Path) -> None:
    weights, file = damaged(tmp_path)
    key = key_of(weights, "layers.1.mlp.up_proj")
    del weights[key]
    save_file(weights, file, metadata={"format": "pt"})
    if needs is not forward_to_last_layer:
        load(tmp_path, needs)
        return
    with pytest.raises(NormprobeError, match=r"layers\.1\.mlp\.up_proj\.weight"):
        load(tmp_path, needs)


@pytest.mark.parametrize("needs", NEEDED)
def test_a_table_of_another_shape_gives_both_shapes(needs: Needs, tmp_path: Path) -> None:
    weights, file = damaged(tmp_path)
    key = key_of(weights, "embed_tokens")
    rows, width = weights[key].shape
    weights[key] = torch.ones(rows + 1, width)
    save_file(weights, file, metadata={"format": "pt"})
    shapes = rf"saved \[{rows + 1}, {width}\], expected \[{rows}, {width}\]"
    with pytest.raises(NormprobeError, match=shapes):
        load(tmp_path, needs)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_weight_that_is_not_finite_is_named(
    value: float, dtype: torch.dtype, tmp_path: Path
) -> None:
    weights, file = damaged(tmp_path)
    key = key_of(weights, "linear_1.weight")
    weights = {name: weight.to(dtype) for name, weight in weights.items()}
    weights[key][0, 0] = value
    save_file(weights, file, metadata={"format": "pt"})
    load(tmp_path, embedding_tables)
    with pytest.raises(NormprobeError, match=r"NaN or infinity in .*linear_1\.weight"):
        load(tmp_path, before_the_decoder)


def test_the_largest_finite_weights_pass(tmp_path: Path) -> None:
    weights, file = damaged(tmp_path)
    key = key_of(weights, "linear_1.weight")
    weights = {name: weight.half() for name, weight in weights.items()}
    weights[key][:] = torch.finfo(torch.float16).max
    save_file(weights, file, metadata={"format": "pt"})
    load(tmp_path, before_the_decoder)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8, torch.uint8])
@pytest.mark.parametrize("declared", [False, True])
def test_a_table_without_its_scales_is_refused(
    dtype: torch.dtype, declared: bool, tmp_path: Path
) -> None:
    weights, file = damaged(tmp_path)
    key = key_of(weights, "embed_tokens")
    weights[key] = weights[key].to(dtype)
    save_file(weights, file, metadata={"format": "pt"})
    if declared:
        config = open_checkpoint(str(tmp_path)).config
        config.quantization_config = {"quant_method": "fp8"}
        config.save_pretrained(tmp_path)
    with pytest.raises(NormprobeError, match=r"embed_tokens\.weight \((F8_E4M3|I8|U8)\)"):
        load(tmp_path, embedding_tables)


def test_a_weight_that_its_class_calls_unneeded_is_missed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, file = damaged(tmp_path)
    key = key_of(weights, "linear_1.weight")
    del weights[key]
    save_file(weights, file, metadata={"format": "pt"})
    hidden = [r"linear_1\.weight"]
    monkeypatch.setattr(type(model_of("llava")), "_keys_to_ignore_on_load_missing", hidden)
    with pytest.raises(NormprobeError, match=r"linear_1\.weight"):
        load(tmp_path, before_the_decoder)


def test_parts_with_packed_weights_are_told() -> None:
    model = build("llava")
    parts = find_parts(model)
    assert quantised_parts(parts) == []
    assert parts.projector is not None
    packed = torch.nn.Parameter(torch.zeros(3, dtype=torch.uint8), requires_grad=False)
    parts.projector.module.register_parameter("packed", packed)
    assert quantised_parts(parts) == ["projector"]
