"""The largest magnitudes of decoder layers, and which overflows first in float16."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from support.cases import model_of
from support.tiny_inputs import tiny_inputs

from normprobe import Probe
from normprobe.measurements.layers.headroom import headroom_table, headroom_words
from normprobe.measurements.layers.headroom_watcher import HeadroomWatcher
from normprobe.runs.run_folder import RunStore

TYPES = ("llava", "qwen2_vl", "gemma3", "idefics3", "llava_gptj", "qwen3")


@torch.no_grad()
def largest(model, layers, inputs) -> list[float]:
    """Of each layer the largest magnitude of rows that are no padding, by hooks."""
    found = []
    counted = inputs["attention_mask"].bool()

    def see(_, args, kwargs, output):
        for tensor in (*args, *kwargs.values(), *(output if type(output) is tuple else [output])):
            floats = isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
            if floats and tensor.dim() == 3 and tensor.shape[:2] == counted.shape:
                found[-1] = max(found[-1], float(tensor[counted].abs().max()))

    handles = []
    for layer in layers:
        handles.append(layer.register_forward_pre_hook(lambda *_: found.append(0.0)))
        for name, module in layer.named_modules():
            if not name or not [*module.children()]:
                handles.append(module.register_forward_hook(see, with_kwargs=True))
    model(**inputs)
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("model_type", TYPES)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_the_largest_of_each_layer(model_type: str, batch_size: int) -> None:
    model = model_of(model_type)
    inputs = tiny_inputs(model, batch_size)
    probe = Probe(model)
    table = probe.layers(inputs, also="headroom").tables["headroom"]
    layers = [*model.get_submodule(probe.parts.decoder_layers.name)]
    expected = largest(model, layers, inputs)
    assert table["largest"][1:].tolist() == pytest.approx(expected, rel=1e-5)
    bits = np.log2(65504 / np.array(expected))
    assert table["bits_to_float16"][1:].tolist() == pytest.approx(bits.tolist(), rel=1e-4)
    assert (table["output"] <= table["largest"]).all()


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("place", ["mlp.up_proj", "self_attn.o_proj"])
def test_the_first_that_overflows_is_named(number: int, place: str) -> None:
    model = deepcopy(model_of("qwen3"))
    layers = model.model.layers
    with torch.no_grad():
        layers[number - 1].get_submodule(place).weight.mul_(1e6)
    inputs = tiny_inputs(model, 2)
    run = Probe(model).layers(inputs, also="headroom")
    assert f"In float16 the decoder overflows first in layer {number}, at {place}: " in str(
        run.verdict
    )
    found: list[tuple[int, str]] = []
    for count, layer in enumerate(layers, start=1):
        for name, module in layer.named_modules():
            if name and not [*module.children()]:
                module.register_forward_hook(
                    lambda _, args, output, at=(count, name): (
                        None if bool(output.isfinite().all()) else found.append(at)
                    )
                )
    with torch.no_grad():
        model.half()(**inputs)
    assert found[0] == (number, place)


def test_a_tensor_that_several_modules_read_is_looked_at_once() -> None:
    watcher = HeadroomWatcher()
    state = torch.ones(1, 2, 4)
    one, two = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    watcher._see_inside("one", one, (state,), {}, state * 2)
    watcher._see_inside("two", two, (state,), {}, state * 3)
    assert watcher._names == ["input of one", "one", "two"]
    seen = watcher.see(1, state, state * 5)
    assert seen[:, 0, 0].tolist() == [5.0, 3.0, 2.0]


def test_what_is_first_beyond_float16_counts_though_more_follows() -> None:
    watcher = HeadroomWatcher()
    state, module = torch.ones(1, 2, 4), torch.nn.Identity()
    for name, factor in (("one", 10.0), ("two", 7e4), ("three", 9e5)):
        watcher._see_inside(name, module, (), {}, state * factor)
    seen = watcher.see(1, state, state)
    assert seen[1, 0].tolist() == [9e5, 9e5]
    assert [watcher._names[int(place)] for place in seen[2, 0]] == ["two", "two"]
    tokens = dict(zip(watcher.metrics, seen.numpy(), strict=True))
    tokens["position"] = np.array([[0.0, 1.0]])
    columns = watcher.columns(tokens, np.empty((1, 0)))
    assert (columns["peak_at"], columns["inner_peak_max"]) == (["two"], [9e5])


def test_rows_without_it_have_no_table() -> None:
    import pandas as pd

    assert headroom_table(pd.DataFrame({"layer": [0]})).empty
    assert headroom_words(RunStore({})) == ""
