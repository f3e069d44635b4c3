"""What the partial load relies on in transformers. A release that changes it fails here first."""

from pathlib import Path
from typing import Any

import torch
from support.cases import model_of
from transformers import LlavaForConditionalGeneration

from normprobe.versions import load_and_report


class Noted:
    """A slice of safetensors that notes when it is read."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.reads = tensor, 0

    def __getitem__(self, index: Any) -> torch.Tensor:
        self.reads += 1
        return self.tensor[index]

    def get_shape(self) -> list[int]:
        return list(self.tensor.shape)

    def get_dtype(self) -> str:
        return "F32"


def test_the_loader_reads_each_tensor_it_has_a_place_for_and_no_other() -> None:
    model = model_of("llava")
    tensors = {name: Noted(tensor) for name, tensor in model.state_dict().items()}
    foreign = Noted(torch.ones(3))
    loaded, _ = load_and_report(
        LlavaForConditionalGeneration,
        None,
        config=model.config,
        state_dict={**tensors, "model.foreign.weight": foreign},
        dtype=model.dtype,  # else it is read off the tensors
    )
    assert {noted.reads for noted in tensors.values()} == {1}
    assert foreign.reads == 0
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, tensors[name].tensor)


def test_a_load_onto_meta_reads_the_same_tensors() -> None:
    model = model_of("llava")
    tensors = {name: Noted(t.to("meta")) for name, t in model.state_dict().items()}
    loaded, report = load_and_report(
        LlavaForConditionalGeneration,
        None,
        config=model.config,
        state_dict=tensors,
        device_map="meta",
        dtype=model.dtype,
    )
    assert {noted.reads for noted in tensors.values()} == {1}
    assert all(parameter.is_meta for parameter in loaded.parameters())
    assert not report["missing_keys"]


def test_what_was_read_is_marked_and_what_was_not_is_reported(tmp_path: Path) -> None:
    model = model_of("llava")
    state = dict(model.state_dict())
    missing = next(name for name in state if "linear_1.weight" in name)
    del state[missing]
    loaded, report = load_and_report(
        LlavaForConditionalGeneration, None, config=model.config, state_dict=state
    )
    assert set(report["missing_keys"]) == {missing}
    unmarked = {n for n, p in loaded.named_parameters() if not getattr(p, "_is_hf_initialized", 0)}
    assert unmarked == {missing}


def test_old_checkpoint_names_are_found() -> None:
    model = model_of("llava")
    old = {
        name.replace("model.language_model.", "language_model.model.")
        .replace("model.vision_tower.vision_model.", "model.vision_tower.")  # transformers 4
        .replace("model.vision_tower.", "vision_tower.vision_model.")
        .replace("model.multi_modal_projector.", "multi_modal_projector.")
        .replace("lm_head.", "language_model.lm_head."): tensor
        for name, tensor in model.state_dict().items()
    }
    assert old.keys() != model.state_dict().keys()
    loaded, report = load_and_report(
        LlavaForConditionalGeneration, None, config=model.config, state_dict=old
    )
    assert not report["missing_keys"]
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name])
