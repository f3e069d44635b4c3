"""Code that is older than transformers 5: loaded as it is, with the values that it computes.

The repository calls no ``post_init``, ties its weights without keywords, tells ``sdpa`` by a
property, imports a name that went, prints to stdout, can generate without saying so to its base
class, and holds a rotary table that no checkpoint saves.
"""

import json
import shutil
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from support.commands import invoke
from support.flat import flat
from support.remote_code import HERE, randomise
from support.tiny_models import tiny_model

from normprobe import NormprobeError, Probe
from normprobe.model.checkpoint import Checkpoint, open_checkpoint
from normprobe.model.load.loading import load_model
from normprobe.model.load.partial_load import build_on_meta, restore_buffers
from normprobe.model.load.plan import plan_loading
from normprobe.versions import is_line_5, load_and_report

NAMES = {
    "vision_encoder": "vision_model",
    "projector": "projector",
    "text_embedding": "embed_tokens",
    "decoder_layers": "layers",
}
IMAGE = 7


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any]]:
    """The checkpoint, and its model as plain PyTorch builds it, buffers included."""
    folder = tmp_path_factory.mktemp("older") / "older_model"
    folder.mkdir()
    for source in ("shared", "older"):
        for file in (HERE / source).glob("*.py"):
            shutil.copy(file, folder)
    # Imported as a package of its own: nothing of transformers' loading takes part.
    package = folder.parent / "plain_older"
    shutil.copytree(folder, package)
    (package / "__init__.py").write_text("")
    gone = patch.object(
        transformers.utils.import_utils, "is_torch_fx_available", lambda: True, create=True
    )
    moved = patch.object(transformers.image_utils, "VideoInput", object, create=True)
    with gone, moved, patch.object(sys, "path", [str(folder.parent), *sys.path]):
        module: Any = import_module("plain_older.modeling_older")
    # As transformers 4 had both.
    module.OlderForCausalLM._supports_sdpa = False
    module.OlderConfig.rope_scaling = None
    config = module.OlderConfig(image_token_id=IMAGE)
    model = module.OlderForCausalLM(config)
    randomise(model)
    model.tie_weights()
    weights = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}
    save_file({k: v.contiguous() for k, v in weights.items()}, folder / "model.safetensors")
    settings = {
        "model_type": "older",
        "image_token_id": IMAGE,
        "transformers_version": "4.51.3",
        "auto_map": {
            "AutoConfig": "configuration_older.OlderConfig",
            "AutoModelForCausalLM": "modeling_older.OlderForCausalLM",
        },
    }
    (folder / "config.json").write_text(json.dumps(settings))
    yield folder, model.eval()


@pytest.fixture
def opened(made: tuple[Path, Any], repository: Any) -> Checkpoint:
    del repository  # its cache of modules
    return open_checkpoint(str(made[0]), trust_remote_code=True)


def inputs() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.tensor([[5, IMAGE, IMAGE, IMAGE, IMAGE, 9, 12, 30]])
    return {"input_ids": ids, "pixel_values": torch.randn(1, 4, 3, 8, 8, generator=generator)}


def test_tables_that_no_checkpoint_holds_are_those_of_init(
    made: tuple[Path, Any], opened: Checkpoint
) -> None:
    for _ in range(3):
        rotary = load_model(opened).rotary
        torch.testing.assert_close(rotary.inv_freq, made[1].rotary.inv_freq, rtol=0, atol=0)
        torch.testing.assert_close(rotary.offset, made[1].rotary.offset, rtol=0, atol=0)
        assert rotary.scale == made[1].rotary.scale == 1.5


def test_what_a_load_left_in_a_buffer_is_replaced(opened: Checkpoint, made: Any) -> None:
    """It may be anything; that of ``load_model`` is 0 by chance where memory is new."""
    model: Any = load_model(opened)
    model.rotary.inv_freq.fill_(7.0)
    assert restore_buffers(opened, model) == ["rotary.inv_freq"]
    torch.testing.assert_close(model.rotary.inv_freq, made[1].rotary.inv_freq, rtol=0, atol=0)


def test_the_bridges_are_named(opened: Checkpoint) -> None:
    model = load_model(opened)
    assert not model._supports_sdpa
    assert model._supports_flash_attn or not is_line_5()
    new_in_5 = {"post_init", "tie_weights", "rope_scaling"} if is_line_5() else set()
    assert set(opened.bridges) >= {"_supports_sdpa"} | new_in_5


def test_an_auto_class_that_went_opens_the_model_too(
    made: tuple[Path, Any], repository: Any, tmp_path: Path
) -> None:
    del repository
    folder = shutil.copytree(made[0], tmp_path / "seq")
    settings = json.loads((folder / "config.json").read_text())
    model = settings["auto_map"].pop("AutoModelForCausalLM")
    settings["auto_map"]["AutoModelForVision2Seq"] = model
    (folder / "config.json").write_text(json.dumps(settings))
    opened = open_checkpoint(str(folder), trust_remote_code=True)
    assert opened.kind == "vision-language model"
    assert type(load_model(opened)).__name__ == "OlderForCausalLM"


def test_numbers_are_those_of_the_plain_model(made: tuple[Path, Any], opened: Checkpoint) -> None:
    """Against float64 NumPy over states of the plain model, three runs alike."""
    plain = made[1].double()
    states: list[np.ndarray] = []
    hooks = [
        layer.register_forward_hook(lambda _, __, output: states.append(output[0].detach().numpy()))
        for layer in plain.layers
    ]
    batch = inputs()
    with torch.no_grad():
        plain(batch["input_ids"], batch["pixel_values"].double())
    for hook in hooks:
        hook.remove()
    plain.float()
    visual = (batch["input_ids"][0] == IMAGE).numpy()
    for _ in range(3):
        probe = Probe(load_model(opened), named={**NAMES, "image_token_ids": (IMAGE,)})
        table = flat(probe.layers(batch).table).set_index(["layer", "group"])
        for number, state in enumerate(states, start=1):
            norms = np.linalg.norm(state, axis=-1)
            for group, mask in (("visual", visual), ("text", ~visual)):
                found = table.loc[(number, group), "norm_mean"]
                assert found == pytest.approx(norms[mask].mean(), rel=2e-6)


def test_a_table_that_nobody_can_make_again_is_an_error(
    opened: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(opened)
    model.rotary.register_buffer("learned_on_the_way", torch.ones(3), persistent=False)
    with pytest.raises(NormprobeError, match=r"rotary\.learned_on_the_way"):
        restore_buffers(opened, model)


def test_a_plan_reads_no_more_than_is_needed(opened: Checkpoint) -> None:
    """The loader runs on a class of the project that derives from the repository's."""
    plan = plan_loading(opened, build_on_meta(opened), ["projector.weight"])
    assert plan.because == ""
    assert plan.keys is not None and "projector.weight" not in plan.keys
    assert load_model(opened, plan).projector.weight.is_meta


def test_stdout_is_data(made: tuple[Path, Any], repository: Any, tmp_path: Path) -> None:
    result = invoke("inspect", made[0], "--trust-remote-code", "--format", "json")
    assert result.exit_code == 0, result.output
    parts = {row["part"]: row["name"] for row in json.loads(result.stdout)["parts"]}
    assert {role: parts[role] for role in ("text_embedding", "decoder_layers")} == {
        role: NAMES[role] for role in ("text_embedding", "decoder_layers")
    }


def test_nobody_is_told_what_will_change_for_foreign_code(
    made: tuple[Path, Any], repository: Any
) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert invoke("inspect", made[0], "--trust-remote-code").exit_code == 0
        assert not [warning for warning in seen if warning.category is FutureWarning]


@pytest.mark.parametrize("model_type", ["llava", "gemma3", "qwen3_vl", "ovis2"])
def test_nothing_changes_for_a_native_type(model_type: str, tmp_path: Path) -> None:
    tiny_model(model_type).save_pretrained(tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    assert restore_buffers(checkpoint, load_model(checkpoint)) == []


@pytest.mark.skipif(is_line_5(), reason="transformers 5 asks for another way, which is bridged")
def test_a_tower_that_is_loaded_while_the_model_is_made_may_share_weights(tmp_path: Path) -> None:
    """Florence-VL: transformers 4.57 makes what is shared anew, without memory."""
    tower_folder, folder = tmp_path / "tower", tmp_path / "whole"
    tower = tiny_model("clip_vision_model")
    tower.save_pretrained(tower_folder)
    name = next(name for name, _ in tower.named_parameters() if name.endswith("fc1.weight"))

    class LoadingConfig(transformers.PretrainedConfig):
        model_type = "loading-a-tower"

    class LoadingModel(transformers.PreTrainedModel):
        config_class = LoadingConfig

        def __init__(self, config: LoadingConfig) -> None:
            super().__init__(config)
            self.tower = transformers.CLIPVisionModel.from_pretrained(tower_folder)
            self.shared = torch.nn.Linear(2, 2, bias=False)
            self.shared.weight = self.tower.get_parameter(name)
            self.post_init()

    folder.mkdir()
    settings = {"model_type": "loading-a-tower", "architectures": ["LoadingModel"]}
    (folder / "config.json").write_text(json.dumps(settings))
    weights = {f"tower.{key}": value.clone() for key, value in tower.state_dict().items()}
    weights["shared.weight"] = weights[f"tower.{name}"].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    model, report = load_and_report(LoadingModel, str(folder), dtype=torch.float32)
    assert not report["missing_keys"]
    for key, value in tower.state_dict().items():
        torch.testing.assert_close(model.tower.state_dict()[key], value, rtol=0, atol=0)


@pytest.mark.skipif(is_line_5(), reason="transformers 5 reports each load by itself")
def test_what_a_tower_passes_over_while_the_model_is_made_is_not_missing(tmp_path: Path) -> None:
    """SALOVA widens a tower of its own; the trained weights lie in the checkpoint."""
    tower_folder, folder = tmp_path / "tower", tmp_path / "whole"
    tiny_model("clip_vision_model").save_pretrained(tower_folder)
    wide = transformers.CLIPVisionConfig.from_pretrained(tower_folder)
    wide.image_size *= 2

    class WideningConfig(transformers.PretrainedConfig):
        model_type = "widening-a-tower"

    class Widening(transformers.PreTrainedModel):
        config_class = WideningConfig

        def __init__(self, config: WideningConfig) -> None:
            super().__init__(config)
            load = transformers.CLIPVisionModel.from_pretrained
            self.tower = load(tower_folder, config=wide, ignore_mismatched_sizes=True)
            self.post_init()

    folder.mkdir()
    settings = {"model_type": "widening-a-tower", "architectures": ["Widening"]}
    (folder / "config.json").write_text(json.dumps(settings))
    tower = transformers.CLIPVisionModel(wide)
    weights = {f"tower.{key}": value.clone() for key, value in tower.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    model, report = load_and_report(Widening, str(folder), dtype=torch.float32)
    assert not report["missing_keys"] and not report["mismatched_keys"]
    for key, value in tower.state_dict().items():
        torch.testing.assert_close(model.tower.state_dict()[key], value, rtol=0, atol=0)


def test_a_class_that_loads_itself_and_returns_the_model_alone(tmp_path: Path) -> None:
    """Video-XL's takes what asks for a report, and adds something to what it loaded."""

    class Alone(transformers.LlamaForCausalLM):
        @classmethod
        def from_pretrained(cls, *arguments: Any, **named: Any) -> Any:
            named.pop("output_loading_info", None)
            model = super().from_pretrained(*arguments, **named)
            model.memory = "added"
            return model

    config = transformers.LlamaConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=9
    )
    whole = transformers.LlamaForCausalLM(config)
    whole.save_pretrained(tmp_path)
    model, report = load_and_report(Alone, str(tmp_path), dtype=torch.float32)
    assert (type(model), model.memory) == (Alone, "added")
    assert not report["missing_keys"] and not report["mismatched_keys"]
    for key, value in whole.state_dict().items():
        torch.testing.assert_close(model.state_dict()[key], value, rtol=0, atol=0)
    weights = {key: value for key, value in whole.state_dict().items() if "norm" not in key}
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    _, report = load_and_report(Alone, str(tmp_path), dtype=torch.float32)
    assert any("norm" in key for key in report["missing_keys"])


def test_code_of_its_own_finds_the_settings_of_its_answers(repository: Any, tmp_path: Path) -> None:
    """HunyuanImage-3.0 makes its prompt by them; no file is passed to a class that loads a part."""
    folder = Path(shutil.copytree(repository("unseen"), tmp_path / "of_settings"))
    (folder / "generation_config.json").write_text(json.dumps({"drop_think": "yes"}))
    checkpoint = open_checkpoint(str(folder), trust_remote_code=True)
    plan = plan_loading(checkpoint, build_on_meta(checkpoint), ["mouth.weight"])
    assert plan.keys is not None
    assert load_model(checkpoint, plan).generation_config.drop_think == "yes"


@pytest.mark.parametrize("without", [[], ["mouth.weight"]])
def test_a_table_of_complex_numbers_is_loaded(
    without: list[str], repository: Any, tmp_path: Path
) -> None:
    """SetCon saves the rotary tables of SAM 3 in a .bin, which takes them."""
    folder = Path(shutil.copytree(repository("unseen"), tmp_path / "of_complex_tables"))
    code = folder / "modeling_unseen.py"
    table = '        self.register_buffer("turns", torch.zeros(3, dtype=torch.complex64))\n'
    text = code.read_text().replace("from torch import nn", "import torch\nfrom torch import nn")
    ends = "        self.post_init()\n"
    code.write_text(text.replace(ends, table + ends))
    weights = load_file(folder / "model.safetensors")
    turns = torch.polar(torch.ones(3), torch.arange(3.0))
    (folder / "model.safetensors").unlink()
    torch.save({**weights, "turns": turns}, folder / "pytorch_model.bin")
    checkpoint = open_checkpoint(str(folder), trust_remote_code=True)
    plan = plan_loading(checkpoint, build_on_meta(checkpoint), without)
    model = load_model(checkpoint, plan, device="cpu")
    assert torch.equal(model.turns, turns)
    for name, weight in model.named_parameters():
        assert name in without or torch.equal(weight, weights[name])
