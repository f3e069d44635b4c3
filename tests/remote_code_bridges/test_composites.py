"""Code of before 4.52 that derives from a model of transformers, against that model itself."""

from typing import Any

import pytest
import torch
from support import older_composites
from support.tiny_inputs import tiny_inputs
from support.tiny_models import tiny_model
from transformers import (
    InstructBlipForConditionalGeneration,
    LlavaForConditionalGeneration,
    PreTrainedModel,
)

from normprobe import remote_code_bridges
from normprobe.remote_code_bridges.composites import _inner_class
from normprobe.versions import is_line_5


def llava_names(native: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Weights by the names that checkpoints of LLaVA had."""
    begins = {
        "model.language_model.": "language_model.model.",
        "model.vision_tower.": "vision_tower.",
        "model.multi_modal_projector.": "multi_modal_projector.",
        "lm_head.": "language_model.lm_head.",
    }
    return _renamed(native, begins)


def qwen_names(native: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Weights by the names that checkpoints of Qwen2-VL have."""
    return _renamed(native, {"model.visual.": "visual.", "model.language_model.": "model."})


def _renamed(native: PreTrainedModel, begins: dict[str, str]) -> dict[str, torch.Tensor]:
    renamed = {}
    for name, weight in native.state_dict().items():
        before = next((each for each in begins if name.startswith(each)), "")
        renamed[begins.get(before, "") + name.removeprefix(before)] = weight
    return renamed


def states_of(model: Any, layers: Any, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """What enters each decoder layer."""
    seen: list[torch.Tensor] = []

    def see(_module: Any, arguments: Any, named: Any) -> None:
        seen.append(arguments[0] if arguments else named["hidden_states"])

    handles = [layer.register_forward_pre_hook(see, with_kwargs=True) for layer in layers]
    with torch.no_grad():
        left = model(**inputs)
    for handle in handles:
        handle.remove()
    return [*seen, left[0]]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    ("model_type", "name"),
    [
        ("llava", "OwnProjectorOfSomebody"),
        ("llava", "OwnPartsOfSomebody"),
        ("llava", "OwnForwardOfSomebody"),
        ("llava", "OwnPartsAndForwardOfSomebody"),
        ("qwen2_vl", "OwnPartsOfSomebodysQwen"),
        ("qwen2_vl", "AroundSomebodysQwen"),
        ("qwen2_vl", "LooksIntoSomebodysQwen"),
        ("qwen2_vl", "BesideSomebodysQwen"),
        ("qwen2_vl", "DerivedBesideSomebodysQwen"),
        ("qwen2_vl", "OwnTextOfSomebodysQwen"),
    ],
)
def test_derived_models_compute_as_the_one_they_derive_from(
    model_type: str, name: str, batch: int
) -> None:
    """All that enters a layer, of weights by their names of before."""
    native = tiny_model(model_type)
    older = {"llava": llava_names, "qwen2_vl": qwen_names}[model_type](native)
    needed: list[str] = []
    with remote_code_bridges.foreign_code(True, needed):
        remote_code_bridges._bridge_module(older_composites)
        kind = getattr(older_composites, name)
        remote_code_bridges._bridge_class(kind)
        as_they_are = (
            {}
            if is_line_5()
            or not name.startswith(("OwnPartsAnd", "OwnPartsOfSomebodysQ", "OwnText"))
            else {"key_mapping": {}}
        )
        loaded, report = kind.from_pretrained(
            None,
            config=native.config,
            state_dict=older,
            output_loading_info=True,
            **as_they_are,
        )
        assert not report["missing_keys"]
        inputs = tiny_inputs(native, batch)
        layers = [m for m in loaded.modules() if type(m).__name__.endswith("DecoderLayer")]
        found = states_of(loaded.eval(), layers, inputs)
    if name.endswith("BesideSomebodysQwen") or name.startswith(
        "OwnText"
    ):  # a language model alone knows of no grid
        inputs["position_ids"] = torch.arange(inputs["input_ids"].shape[1]).expand(3, batch, -1)
    expected = states_of(native, native.model.language_model.layers, inputs)
    assert len(found) == len(expected)
    for ours, theirs in zip(found[:-1], expected[:-1], strict=True):
        torch.testing.assert_close(ours, theirs)
    assert needed or not is_line_5()


def test_a_class_whose_parts_lie_beside_each_other_still_has_no_model_inside() -> None:
    """Japanese InstructBLIP Alpha makes a language model that no auto class offers."""
    assert _inner_class(InstructBlipForConditionalGeneration) is None
    assert _inner_class(LlavaForConditionalGeneration).__name__ == "LlavaModel"
