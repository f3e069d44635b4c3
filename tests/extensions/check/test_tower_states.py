"""States of vision encoder and projector in files: the first that differs is named."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support.tiny_inputs import tiny_samples
from support.tiny_models import tiny_model
from torch import Tensor, nn
from transformers.activations import ACT2FN

from normprobe import NormprobeError, Probe
from normprobe.data.data_set import open_data
from normprobe.extensions.check.baseline import DIFFERENT, SAME, Checked
from normprobe.extensions.check.mistakes import against_files
from normprobe.extensions.check.states import file_of

SAMPLES = 2
BUILD = """
from support.tiny_inputs import tiny_samples

def build(model, processor, samples, system):
    (sample,) = samples
    return tiny_samples(model, 2)[len(sample.prompt) % 2]
"""
#: Of each type the blocks of its vision encoder, its projector and its decoder layers.
PARTS: dict[str, Callable[[Any], tuple[Any, nn.Module, Any]]] = {
    "llava": lambda m: (
        m.vision_tower.encoder.layers,
        m.multi_modal_projector,
        m.language_model.layers,
    ),
    "qwen2_5_vl": lambda m: (m.visual.blocks, m.visual.merger, m.language_model.layers),
}
TYPES = ["llava", pytest.param("qwen2_5_vl", marks=pytest.mark.slow)]
Saved = dict[str, Tensor]


def states_of(model: Any, sample: Any) -> Saved:
    """By hooks of one's own."""
    blocks, projector, layers = PARTS[model.config.model_type](model.model)
    named = {f"vision_layers.{n}": block for n, block in enumerate(blocks)}
    named |= {"projector": projector} | {f"layer_{n}": each for n, each in enumerate(layers, 1)}
    kept, handles = {}, []
    for name, module in named.items():

        def keep(_: Any, given: Any, output: Any, name: str = name) -> None:
            output = getattr(output, "pooler_output", output)
            state = output[0] if isinstance(output, tuple) else output
            kept[name] = state.detach().clone()

        handles.append(module.register_forward_hook(keep))
    with torch.no_grad():
        model(**sample)
    for handle in handles:
        handle.remove()
    return kept


@pytest.fixture
def compared(tmp_path: Path) -> Callable[..., Checked]:
    """What is said of the states of a port, changed as they are saved."""
    inputs = tmp_path / "inputs.py"
    inputs.write_text(BUILD)

    def compare(model_type: str, port: Any, change: Callable[[Saved], Saved] = dict) -> Checked:
        model = tiny_model(model_type)
        given = tiny_samples(model, 2)
        for sample in open_data("sample", limit=SAMPLES):
            tensors = given[len(sample.prompt) % 2]
            file = tmp_path / f"{file_of(sample.id)}.safetensors"
            file.parent.mkdir(exist_ok=True)
            saved = change(states_of(port, tensors)) | {"input_ids": tensors["input_ids"]}
            save_file({name: each.contiguous() for name, each in saved.items()}, file)
        probe = Probe(model, object(), inputs=inputs)
        return against_files(probe, tmp_path, data="sample", limit=SAMPLES)

    return compare


def first_of(found: Checked) -> str:
    return str(found.table.loc[found.table["differs"].astype(bool), "stage"].iloc[0])


def without_layers(saved: Saved) -> Saved:
    return {name: state for name, state in saved.items() if not name.startswith("layer_")}


@pytest.mark.parametrize("model_type", TYPES)
def test_a_right_port_is_the_same(model_type: str, compared: Callable[..., Checked]) -> None:
    found = compared(model_type, tiny_model(model_type))
    assert found.verdict == SAME, found.sentence
    stages = [*dict.fromkeys(found.table["stage"])]
    blocks = [stage for stage in stages if stage.startswith("vision block ")]
    assert stages[: len(blocks) + 1] == [*blocks, "projector_output"]
    assert len(blocks) == len(PARTS[model_type](tiny_model(model_type).model)[0]) > 1
    found = compared(model_type, tiny_model(model_type), without_layers)
    assert found.verdict == SAME
    assert found.sentence.endswith("Of 3 layers 0 were saved.")


@pytest.mark.parametrize("model_type", TYPES)
def test_a_fault_in_a_block_is_found_there(
    model_type: str, compared: Callable[..., Checked]
) -> None:
    port = tiny_model(model_type)
    block = PARTS[model_type](port.model)[0][1]
    block.mlp.register_forward_hook(lambda _, given, output: 1.1 * output)
    found = compared(model_type, port)
    assert found.verdict == DIFFERENT
    assert first_of(found) == "vision block 2"
    assert "Not the same from vision block 2 on" in found.sentence
    assert "Vision block 1 is the same: look at what follows" in found.sentence
    assert "layer" not in found.sentence.replace("layers", "")


@pytest.mark.parametrize("model_type", TYPES)
def test_a_fault_in_the_projector_is_found_there(
    model_type: str, compared: Callable[..., Checked]
) -> None:
    port = tiny_model(model_type)
    projector = PARTS[model_type](port.model)[1]
    if model_type == "llava":
        projector.act = ACT2FN["relu"]
    else:
        projector.mlp[2].bias.data.add_(0.1)
    found = compared(model_type, port)
    assert found.verdict == DIFFERENT
    assert first_of(found) == "projector_output"
    last = len(PARTS[model_type](port.model)[0])
    assert f"Vision block {last} is the same: look at the projector's order" in found.sentence


def test_rows_that_are_left_out_and_another_order_are_told(
    compared: Callable[..., Checked],
) -> None:
    def cut(saved: Saved) -> Saved:
        return saved | {"vision_layers.0": saved["vision_layers.0"][:, 1:]}

    def turned(saved: Saved) -> Saved:
        return saved | {"projector": saved["projector"].flip(1)}

    found = compared("llava", tiny_model("llava"), cut)
    assert "Not the same from vision block 1 on" in found.sentence
    assert "Usually a class token that is kept or dropped" in found.sentence
    found = compared("llava", tiny_model("llava"), turned)
    assert "Not the same from projector output on" in found.sentence
    assert "Usually the same rows in another order" in found.sentence


def test_names_of_the_model_are_read_and_what_is_no_block_is_refused(
    compared: Callable[..., Checked],
) -> None:
    names = {"vision_layers.1": "model.vision_tower.encoder.layers.1.output"}
    names["projector"] = "model.multi_modal_projector"

    def renamed(saved: Saved) -> Saved:
        return {names.get(name, name): state for name, state in saved.items()}

    port = tiny_model("llava")
    PARTS["llava"](port.model)[0][1].mlp.register_forward_hook(lambda _, given, out: 1.1 * out)
    assert first_of(compared("llava", port, renamed)) == "vision block 2"
    for name, state, told in (
        ("vision_layers.9", torch.ones(4, 4), "vision_layers.9: expected a block of the vision"),
        ("projector.output", torch.ones(4, 4), "expected one tensor a stage, received projector"),
    ):
        with pytest.raises(NormprobeError, match=told):
            compared("llava", port, lambda saved, name=name, state=state: saved | {name: state})
    for state in (torch.ones(4, 4), torch.ones(10_000, 64), torch.ones(16, 64, dtype=torch.int32)):
        with pytest.raises(NormprobeError, match=r"projector: expected \[16, 64\] of F16"):
            compared("llava", port, lambda saved, state=state: saved | {"projector": state})
