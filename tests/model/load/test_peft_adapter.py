"""PEFT adapters: the base with the adapter's change, computed here by hand."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny_models import tiny_model

from normprobe import find_parts
from normprobe.errors import NormprobeError
from normprobe.model.checkpoint import open_checkpoint
from normprobe.model.find.parts import weight_of
from normprobe.model.load.loading import load_model
from normprobe.model.load.plan import plan_for
from normprobe.model.load.required_tensors import (
    Needs,
    before_the_decoder,
    embedding_tables,
    forward_to_last_layer,
)

RANK, ALPHA = 2, 6
TARGETS = ["q_proj", "linear_1"]


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    from peft import LoraConfig, get_peft_model  # slow

    """A saved base, and an adapter on decoder, encoder, projector and table."""
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    tiny_model("llava").save_pretrained(base)
    torch.manual_seed(1)
    config = LoraConfig(
        r=RANK,
        lora_alpha=ALPHA,
        target_modules=TARGETS,
        modules_to_save=["embed_tokens"],
        init_lora_weights=False,
    )
    adapted = get_peft_model(tiny_model("llava"), config)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "modules_to_save" in name:
                weight.mul_(3)
    adapted.peft_config["default"].base_model_name_or_path = str(base)
    adapted.save_pretrained(adapter)
    return base, adapter


@pytest.mark.parametrize("needs", [embedding_tables, before_the_decoder, forward_to_last_layer])
def test_the_adapter_is_merged(needs: Needs, folders: tuple[Path, Path]) -> None:
    adapter = folders[1]
    checkpoint = open_checkpoint(str(adapter))
    assert checkpoint.adapter == str(adapter)
    model = load_model(checkpoint, plan_for(needs, checkpoint), device="cpu")
    plain = tiny_model("llava").state_dict()
    change = {
        key.removeprefix("base_model.model."): tensor
        for key, tensor in load_file(adapter / "adapter_model.safetensors").items()
    }
    changed = 0
    for name, weight in model.named_parameters():
        if weight.is_meta:
            continue
        expected = plain[name].double()
        module = name.removesuffix(".weight")
        if f"{module}.lora_A.weight" in change:
            a, b = (change[f"{module}.lora_{side}.weight"].double() for side in "AB")
            expected = expected + b @ a * (ALPHA / RANK)
            changed += 1
        if "embed_tokens" in name:
            expected, changed = plain[name].double() * 3, changed + 1
        torch.testing.assert_close(weight.double(), expected, rtol=1e-6, atol=1e-7)
    config = checkpoint.config
    encoder, decoder = (c.num_hidden_layers for c in (config.vision_config, config.text_config))
    adapted = {
        embedding_tables: 0,
        before_the_decoder: encoder + 1,
        forward_to_last_layer: encoder + 1 + decoder,
    }
    assert changed == adapted[needs] + 1  # and the table
    table = find_parts(model).text_embedding
    assert table is not None
    assert not weight_of(table).is_meta


@pytest.mark.parametrize("held", [True, False])
def test_an_adapter_may_hold_a_module_that_its_base_lacks(held: bool, tmp_path: Path) -> None:
    """As VideoLLM-online, whose base is a language model and whose adapter has the connector."""
    from peft import LoraConfig, get_peft_model

    base, adapter = tmp_path / "base", tmp_path / "adapter"
    tiny_model("llava").save_pretrained(base)
    file = base / "model.safetensors"
    weights = {name: w for name, w in load_file(file).items() if "projector" not in name}
    save_file({name: w.clone() for name, w in weights.items()}, file, metadata={"format": "pt"})
    whole = ["multi_modal_projector"] if held else []
    config = LoraConfig(r=RANK, target_modules=["q_proj"], modules_to_save=whole)
    adapted = get_peft_model(tiny_model("llava"), config)
    expected = {
        name: weight.detach().clone().normal_()
        for name, weight in tiny_model("llava").named_parameters()
        if "multi_modal_projector" in name
    }
    for name, weight in adapted.named_parameters():
        if "modules_to_save" in name:
            plain = name.removeprefix("base_model.model.").replace("modules_to_save.default.", "")
            weight.data.copy_(expected[plain])
    adapted.peft_config["default"].base_model_name_or_path = str(base)
    adapted.save_pretrained(adapter)
    checkpoint = open_checkpoint(str(adapter))
    if not held:
        with pytest.raises(NormprobeError, match="lacks weights that the model needs"):
            plan_for(before_the_decoder, checkpoint)
        return
    model = load_model(checkpoint, plan_for(before_the_decoder, checkpoint), device="cpu")
    assert expected
    for name, weight in expected.items():
        assert torch.equal(model.get_parameter(name), weight)


def test_an_adapter_that_lacks_a_weight_is_refused(folders: tuple[Path, Path]) -> None:
    file = folders[1] / "adapter_model.safetensors"
    weights = load_file(file)
    key = next(key for key in weights if "linear_1.lora_B" in key)
    del weights[key]
    save_file(weights, file, metadata={"format": "pt"})
    checkpoint = open_checkpoint(str(folders[1]))
    with pytest.raises(NormprobeError, match=r"linear_1\.lora_B"):
        load_model(checkpoint, device="cpu")


def test_an_adapter_for_another_model_is_refused(folders: tuple[Path, Path]) -> None:
    tiny_model("qwen2_vl").save_pretrained(folders[0])
    checkpoint = open_checkpoint(str(folders[1]))
    with pytest.raises(NormprobeError, match="adapter adapter does not fit"):
        load_model(checkpoint, device="cpu")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"base_model_name_or_path": null}'])
def test_an_adapter_without_a_base_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(content)
    with pytest.raises(NormprobeError, match="names no base model"):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize("base", ["self", "other", "norm"])
def test_an_adapter_for_an_adapter_is_refused(base: str, tmp_path: Path) -> None:
    for name, of in (("self", base), ("other", "self"), ("norm", "self")):
        (tmp_path / name).mkdir()
        config = {"base_model_name_or_path": str(tmp_path / of)}
        (tmp_path / name / "adapter_config.json").write_text(json.dumps(config))
    norm = {
        "base_model": str(tmp_path / "self"),
        "revision": None,
        "after": "a",
        "compensate": True,
    }
    (tmp_path / "norm/norm_alignment.json").write_text(json.dumps(norm))
    with pytest.raises(NormprobeError, match="an adapter too"):
        open_checkpoint(str(tmp_path / "self"))


def test_a_base_that_is_gone_is_named(folders: tuple[Path, Path]) -> None:
    config = json.loads((folders[1] / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "/nowhere/base"
    (folders[1] / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(NormprobeError, match="no such folder: /nowhere/base"):
        open_checkpoint(str(folders[1]))
