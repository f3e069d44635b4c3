"""An alignment norm goes to disk and back: as an adapter, and inside a checkpoint."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from support.tiny_inputs import tiny_inputs
from support.tiny_models import tiny_model

from normprobe import NormprobeError, align_norms, load_aligned, save_alignment
from normprobe.model.checkpoint import open_checkpoint
from normprobe.model.config import ADAPTER_CONFIG
from normprobe.model.load.alignment import saved_norm


def aligned_model(model_type="llava"):
    model = tiny_model(model_type)
    align_norms(model)
    return model.train()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    tiny_model("llava").save_pretrained(folder)
    return folder


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_adapter_goes_to_disk_and_back_bit_for_bit(base, tmp_path, dtype):
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(base, dtype=dtype)
    norm = align_norms(model, compensate=False)
    torch.nn.init.normal_(norm.bias, std=0.1)
    save_alignment(model, tmp_path / "adapter", base_model=str(base))
    again = load_aligned(tmp_path / "adapter", dtype=dtype)
    inputs = {
        name: tensor.to(model.dtype) if tensor.is_floating_point() else tensor
        for name, tensor in tiny_inputs(model).items()
    }
    with torch.no_grad():
        assert torch.equal(model.eval()(**inputs).logits, again(**inputs).logits)
    for name, weight in norm.state_dict().items():
        assert torch.equal(weight, again.alignment_norm.state_dict()[name])
    assert not again.alignment_norm.compensate
    assert again.config.norm_alignment == model.config.norm_alignment


@pytest.mark.parametrize(
    "model_type", ["qwen2_5_vl", "gemma3", "idefics3", "internvl", "paligemma"]
)
def test_a_checkpoint_of_any_type_gives_its_norm_back(model_type, tmp_path):
    """Saving renames the keys of some types; that of the norm must come through."""
    model = aligned_model(model_type).eval()
    torch.nn.init.normal_(model.alignment_norm.weight)
    model.save_pretrained(tmp_path)
    again = load_aligned(tmp_path)
    inputs = tiny_inputs(model)
    with torch.no_grad():
        assert torch.equal(model(**inputs).logits, again(**inputs).logits)


def test_a_sharded_checkpoint_gives_its_norm_back(tmp_path):
    model = aligned_model()
    torch.nn.init.normal_(model.alignment_norm.weight)
    model.save_pretrained(tmp_path / "sharded", max_shard_size="50KB")
    assert (tmp_path / "sharded/model.safetensors.index.json").exists()
    again = load_aligned(tmp_path / "sharded")
    assert torch.equal(again.alignment_norm.weight, model.alignment_norm.weight)
    weights = saved_norm(str(tmp_path / "sharded"))
    assert torch.equal(weights["weight"], model.alignment_norm.weight)


def test_a_float32_norm_inside_a_bfloat16_model_comes_back_as_it_was(tmp_path):
    """bfloat16 would round a gain near 0.02 by up to 6e-5, more than a step of training."""
    model = aligned_model().bfloat16()
    norm = model.alignment_norm.float()
    torch.nn.init.normal_(norm.weight, 0.02, 0.001)
    model.save_pretrained(tmp_path)
    again = load_aligned(tmp_path)
    assert again.model.multi_modal_projector.linear_2.weight.dtype == torch.bfloat16
    assert torch.equal(again.alignment_norm.weight, norm.weight)
    assert all(weight.requires_grad for weight in again.alignment_norm.parameters())


def test_a_checkpoint_that_says_aligned_but_lost_its_norm_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    aligned_model().save_pretrained(tmp_path / "saved")
    file = tmp_path / "saved/model.safetensors"
    with safe_open(file, "pt") as saved:
        metadata = saved.metadata()
    weights = {k: w for k, w in load_file(file).items() if not k.startswith("alignment_norm")}
    save_file(weights, file, metadata)
    with pytest.raises(NormprobeError, match="no alignment norm"):
        load_aligned(tmp_path / "saved")


def test_a_model_without_a_norm_has_nothing_to_save_or_load(base, tmp_path):
    with pytest.raises(NormprobeError, match="call align_norms"):
        save_alignment(tiny_model("llava"), tmp_path / "adapter", base_model="x")
    with pytest.raises(NormprobeError, match="no alignment norm"):
        load_aligned(base)
    assert not (tmp_path / "adapter" / ADAPTER_CONFIG).exists()


def test_the_norm_is_read_without_its_base_model(base, tmp_path):
    model = aligned_model()
    torch.nn.init.normal_(model.alignment_norm.weight)
    save_alignment(model, tmp_path / "adapter", base_model="nobody/nothing")
    weights = saved_norm(str(tmp_path / "adapter"))
    assert torch.equal(weights["weight"], model.alignment_norm.weight)
    assert torch.equal(weights["bias"], model.alignment_norm.bias)
    with pytest.raises(NormprobeError, match=r"base model of the adapter .* cannot be opened"):
        open_checkpoint(str(tmp_path / "adapter"))


def test_a_norm_of_another_model_type_is_refused(base, tmp_path):
    save_alignment(aligned_model("qwen2_5_vl"), tmp_path / "adapter", base_model=str(base))
    with pytest.raises(NormprobeError, match="made for a qwen2_5_vl") as failure:
        load_aligned(tmp_path / "adapter")
    assert ADAPTER_CONFIG in failure.value.remedy
