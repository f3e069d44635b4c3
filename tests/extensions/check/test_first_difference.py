"""Where a difference begins: the module that holds a planted fault; none where there is none."""

import pytest
import torch
from support.port_faults import FAULTS
from support.tiny_inputs import tiny_samples
from support.tiny_models import VLM_TYPES, tiny_model

from normprobe.extensions.check.gate import first_difference

LAYER = "model.language_model.layers.{}"
PROJECTOR = "model.multi_modal_projector"

#: The module of each fault, and what is said of it.
MODULES = {
    "norm and linear swapped": (PROJECTOR, "its code"),
    "layer off by one": ("model", "its code"),
    "missing scale of the embedding": ("model.language_model.embed_tokens", "its code or settings"),
    "scale behind the projector applied twice": (PROJECTOR, "its code"),
    "rope theta": ("model.language_model.rotary_emb", "its code or settings"),
    "wrong activation of the projector": (f"{PROJECTOR}.act", "(GELUActivation and ReLU)"),
    "wrong activation of the decoder": (f"{LAYER.format(0)}.mlp.act_fn", "its code"),
    "transposed weight of the projector": (f"{PROJECTOR}.linear_2", "its weight differs"),
    "transposed weight of the decoder": (f"{LAYER.format(1)}.self_attn.o_proj", "its weight"),
    "wrong eps": (f"{LAYER.format(0)}.input_layernorm", "its code or settings"),
    "dropped bias": (f"{PROJECTOR}.linear_1", "its bias differs"),
    "a layer left out": (LAYER.format(1), "its code"),
    "line break of tiles": ("model", "its image_newline differs"),
    "deepstack left out": ("model.visual.deepstack_merger_list.0", "its code"),
    "wrong eps in all layers": (
        f"{LAYER.format(0)}.input_layernorm",
        "So do 2 more at that place: one cause in all of them.",
    ),
    "another head": ("lm_head", "its weight differs"),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_fault_is_found_in_its_module(name: str) -> None:
    fault = FAULTS[name]
    model, port = (tiny_model(fault.model_type) for _ in range(2))
    with torch.no_grad():
        fault.plant(port)
    told = first_difference(model, port, tiny_samples(model, 1)[0], 1e-4)
    module, why = MODULES[name]
    assert told.startswith(f"Given the same input, {module} (")
    assert why in told


@pytest.mark.parametrize("model_type", VLM_TYPES)
def test_two_copies_differ_nowhere(model_type: str) -> None:
    model, port = (tiny_model(model_type) for _ in range(2))
    assert first_difference(model, port, tiny_samples(model, 1)[0], 1e-5) == ""


def test_modules_that_return_another_shape_or_fail() -> None:
    model, wide = tiny_model("llava"), tiny_model("llava")
    wide.lm_head = torch.nn.Linear(64, 5)
    inputs = tiny_samples(model, 1)[0]
    assert "lm_head (Linear) is the first that returns another shape" in first_difference(
        model, wide, inputs, 1e-4
    )
    wide.lm_head = torch.nn.Linear(5, 5)
    assert "is the first that fails: mat1 and mat2" in first_difference(model, wide, inputs, 1e-4)
