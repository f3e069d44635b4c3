"""``layers --tower`` against float64 NumPy over hooks of its own, sample by sample.

Each sample of a batch is also run alone: then all rows of the tower are its own, whatever tiles,
strips of patches and padding make of them in a batch.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import torch
from support.agreement import TOLERANCE
from support.capture import Layer
from support.cases import model_of
from support.reference import norm, token_metrics
from support.tiny_inputs import collate, tiny_samples
from torch import nn

from normprobe import Probe
from normprobe.measurements.layers.tower.measure import LoudRows
from normprobe.tidy import select, wide

#: Where the blocks are, the norm before attention, and the place of a class row in each tile.
TOWERS = {
    "clip": ("vision_model.encoder.layers", "layer_norm1", 0),
    "siglip": ("vision_model.encoder.layers", "layer_norm1", None),
    "siglip2": ("vision_model.encoder.layers", "layer_norm1", None),
    "llava": ("model.vision_tower.encoder.layers", "layer_norm1", 0),
    "llava_next": ("model.vision_tower.encoder.layers", "layer_norm1", 0),
    "qwen2_vl": ("model.visual.blocks", "norm1", None),
    "qwen2_5_vl": ("model.visual.blocks", "norm1", None),
    "glm4v": ("model.visual.blocks", "norm1", None),
    "mistral3": ("model.vision_tower.transformer.layers", "attention_norm", None),
    "internvl": ("model.vision_tower.encoder.layer", "layernorm_before", 0),
    "idefics3": ("model.vision_model.encoder.layers", "layer_norm1", None),
    "gemma3": ("model.vision_tower.encoder.layers", "layer_norm1", None),
    "llama4": ("vision_model.model.layers", "input_layernorm", -1),
}
BARE = ("clip", "siglip", "siglip2")
METRICS = ("cosine", "angle", "update_norm", "relative_update", "update_angle")
every_type = pytest.mark.parametrize("model_type", TOWERS)
every_batch = pytest.mark.parametrize("batch_size", [1, 3])


class Block(NamedTuple):
    """One block of one sample: what it took and returned, ``[rows, width]``, and more."""

    layer: Layer
    special: np.ndarray  # which rows are class rows
    tiles: int
    inside: float  # largest magnitude in what modules inside took and returned


def rows(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().double().reshape(-1, tensor.shape[-1]).numpy()


@torch.no_grad()
def blocks_of(model: nn.Module, sample, model_type: str) -> list[Block]:
    """Every block in a forward of one sample alone."""
    name, opening, place = TOWERS[model_type]
    found, state, handles = [], {}, []

    def begin(_, args, kwargs):
        state["entered"] = next(iter((*args, *kwargs.values()))).clone()
        state["inside"] = 0.0

    def see(_, args, kwargs, output):
        for tensor in (*args, *kwargs.values(), output):
            fits = isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
            if fits and tensor.shape[:-1].numel() == state["entered"].shape[:-1].numel():
                state["inside"] = max(state["inside"], float(tensor.abs().max()))

    def open_(_, args, output):
        state["attended"] = output.clone()

    def end(_, args, output):
        left = output[0] if isinstance(output, tuple) else output
        entered = state["entered"]
        special = np.zeros(entered.shape[:-1], dtype=bool)
        if place is not None:
            special[:, place] = True
        layer = Layer(rows(entered), rows(left), rows(state["attended"]))
        tiles = len(entered) if entered.dim() > 2 else 1
        found.append(Block(layer, special.ravel(), tiles, state["inside"]))

    for block in model.get_submodule(name):
        handles.append(block.register_forward_pre_hook(begin, with_kwargs=True))
        handles.append(block.get_submodule(opening).register_forward_hook(open_))
        for module in block.modules():
            if module is not block and not [*module.children()]:
                handles.append(module.register_forward_hook(see, with_kwargs=True))
        handles.append(block.register_forward_hook(end))
    (model.vision_model if model_type in BARE else model)(**sample)
    for handle in handles:
        handle.remove()
    return found


@cache
def expected(model_type: str) -> list[list[Block]]:
    model = model_of(model_type)
    return [blocks_of(model, sample, model_type) for sample in tiny_samples(model, 3)]


@cache
def measured(model_type: str, batch_size: int):
    model = model_of(model_type)
    batch = collate(tiny_samples(model, batch_size))
    return Probe(model).layers(batch, tower="vision")


def agree(found, wanted) -> bool:
    return found == pytest.approx(wanted, rel=TOLERANCE, abs=TOLERANCE)


@every_type
@every_batch
def test_every_number_of_every_block(model_type: str, batch_size: int) -> None:
    table = measured(model_type, batch_size).table
    means, deviations = (
        wide(table, each).set_index(["layer", "group"]) for each in ("mean", "std")
    )
    samples = expected(model_type)[:batch_size]
    depth = len(samples[0])
    assert sorted(set(table["layer"])) == [*range(depth + 1)]
    for group in ("visual", "special"):
        masks = [blocks[0].special == (group == "special") for blocks in samples]
        if not any(mask.any() for mask in masks):
            assert group not in set(table["group"])
            continue
        for number in range(depth + 1):
            of_layer = means.loc[number, group]
            states = [
                (b[number - 1].layer.left if number else b[0].layer.entered)[mask]
                for b, mask in zip(samples, masks, strict=True)
            ]
            norms = [norm(state) for state in states]
            assert of_layer["tokens"] == sum(map(len, norms))
            assert agree(of_layer["norm"], np.concatenate(norms).mean())
            assert agree(deviations.loc[number, group]["norm"], np.concatenate(norms).std())
            assert agree(of_layer["peak"], max(np.abs(state).max() for state in states))
            loud = [(n >= 3 * np.median(n)).sum() for n in norms]
            shares = [count / len(n) for count, n in zip(loud, norms, strict=True)]
            tiles = [blocks[0].tiles for blocks in samples]
            assert agree(of_layer["high_norm"], np.mean(shares))
            assert agree(of_layer["high_norm_a_picture"], np.mean(np.divide(loud, tiles)))
            over = [(n > 100).sum() for n in norms]
            assert agree(of_layer["norm_over_100_a_picture"], np.mean(np.divide(over, tiles)))
            if not number:
                continue
            by_row = [token_metrics(blocks[number - 1].layer) for blocks in samples]
            for metric in METRICS:
                values = [m[metric][mask] for m, mask in zip(by_row, masks, strict=True)]
                assert agree(of_layer[metric], np.concatenate(values).mean()), metric
            attended = [
                norm(blocks[number - 1].layer.attended[mask])
                for blocks, mask in zip(samples, masks, strict=True)
            ]
            assert agree(of_layer["attention_input_norm"], np.concatenate(attended).mean())


@every_type
@every_batch
def test_the_largest_magnitude_inside_each_block(model_type: str, batch_size: int) -> None:
    run = measured(model_type, batch_size)
    samples = expected(model_type)[:batch_size]
    inner = select(run.table, "inner_peak").groupby("layer")["mean"].max()
    headroom = run.tables["headroom"].set_index("layer")
    for number in range(1, len(samples[0]) + 1):
        inside = max(blocks[number - 1].inside for blocks in samples)
        state = max(np.abs(blocks[number - 1].layer.left).max() for blocks in samples)
        assert agree(inner[number], inside)
        assert agree(headroom["largest"][number], max(inside, state))
        bits = np.log2(65504 / max(inside, state))
        assert agree(headroom["bits_to_float16"][number], bits)


#: Blocks that the projector reads as they are; none: a norm or an adapter stands between.
READ = {
    "clip": [],
    "llava": [2],  # vision_feature_layer -2
    "llava_next": [2],
    "qwen2_vl": [3],
    "mistral3": [3],
    "internvl": [3],  # its pixels are shuffled, which leaves all numbers
    "gemma3": [],
    "llama4": [],
}


@pytest.mark.parametrize("model_type", READ)
def test_what_the_projector_reads_is_marked(model_type: str) -> None:
    run = measured(model_type, 3)
    marked = select(run.table, "read_by_projector")
    assert sorted(set(marked.loc[marked["mean"] == 1, "layer"])) == READ[model_type]
    assert run.record["tower"]["read"] == READ[model_type]


def test_layers_that_stand_side_by_side_before_the_projector() -> None:
    run = measured("vipllava", 1)
    assert run.record["tower"]["read"] == [2, 3]
    assert "The projector reads blocks 2, 3 side by side." in str(run.verdict)


@every_type
def test_norm_placement_of_the_tower_is_read(model_type: str) -> None:
    assert measured(model_type, 1).record["tower"]["norm_placement"].startswith("pre:")


def test_sandwich_norms_are_seen() -> None:
    run = measured("gemma4", 1)
    assert run.record["tower"]["norm_placement"].startswith("sandwich:")
    assert "Norm placement of its blocks: sandwich." in str(run.verdict)


# --- planted ------------------------------------------------------------------------------------


def planted(model_type: str, change):
    """A model of its own whose blocks were changed."""
    from copy import deepcopy

    model = deepcopy(model_of(model_type))
    change(model.get_submodule(TOWERS[model_type][0]))
    return model


PATCH = 5


@pytest.mark.parametrize("model_type", ["clip", "qwen2_vl", "mistral3"])
def test_a_loud_patch_is_found_with_its_block(model_type: str) -> None:
    """The MLP of block 2 returns 1,000 times as much in one patch of the second sample."""
    model = planted(model_type, lambda blocks: None)
    block = model.get_submodule(TOWERS[model_type][0])[1]
    mlp = block.get_submodule("feed_forward" if model_type == "mistral3" else "mlp")
    batch = collate(tiny_samples(model, 3))
    first = 17 if model_type == "clip" else 16  # rows of the first sample

    def louder(_, args, output):
        changed = output.clone()
        changed.view(-1, output.shape[-1])[first + PATCH] *= 1000
        return changed

    mlp.register_forward_hook(louder)
    run = Probe(model).layers(batch, tower="vision")
    loud = select(run.table, "high_norm_a_picture", group="visual").set_index("layer")["mean"]
    assert loud[1] == 0
    assert agree(loud[2], 1 / 3)
    headroom = run.tables["headroom"].set_index("layer")
    assert (headroom["largest"][2:] > 50 * headroom["largest"][1]).all()
    assert headroom.loc[2, ["sample_id", "position"]].tolist() == ["1", PATCH]
    assert "are behind block" in str(run.verdict)


def test_a_row_is_loud_from_three_times_the_median_on() -> None:
    norms = np.array([[30.0, 40.0, 40.0, 40.0, 119.0, 120.0, 130.0, np.inf]], dtype=np.float32)
    columns = LoudRows().columns({"norm": norms}, np.empty((1, 0)))
    assert columns["own_high_norm"] == [2 / 7]
    assert columns["own_norm_over_100"] == [3 / 7]


@pytest.mark.parametrize("place", ["mlp.fc1", "mlp.fc2", "self_attn.v_proj"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_float16_overflows_where_float32_says(place: str, number: int) -> None:
    def change(blocks):
        with torch.no_grad():
            blocks[number - 1].get_submodule(place).weight.mul_(2e5)

    model = planted("clip", change)
    batch = collate(tiny_samples(model, 2))
    run = Probe(model).layers(batch, tower="vision")
    headroom = run.tables["headroom"]
    beyond = headroom[headroom["bits_to_float16"] < 0]
    assert beyond["layer"].iloc[0] == number
    assert beyond["at"].iloc[0] == place
    assert f"In float16 the vision tower overflows first in block {number}, at {place}: " in (
        str(run.verdict)
    )
    assert first_infinite(model.half(), batch) == (number, place)


@torch.no_grad()
def first_infinite(model: nn.Module, batch) -> tuple[int, str]:
    """The first module whose output is not finite, in a forward of float16."""
    found = []

    def see(number, name):
        def hook(_, args, output):
            if not bool(output.isfinite().all()):
                found.append((number, name))

        return hook

    for number, block in enumerate(model.vision_model.encoder.layers, start=1):
        for name, module in block.named_modules():
            if name and not [*module.children()]:
                module.register_forward_hook(see(number, name))
    model.vision_model(batch["pixel_values"].half())
    return found[0]


def test_nothing_overflows_in_a_usual_model() -> None:
    assert "bits below the end of float16" in str(measured("clip", 1).verdict)
