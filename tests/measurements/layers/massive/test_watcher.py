"""``layers --massive`` against float64 NumPy over states taken another way than by hooks."""

import copy
from collections.abc import Mapping

import numpy as np
import pandas as pd
import pytest
import torch
from support.cases import Case, case_of, make_case, model_of
from support.expected_parts import PARTS
from support.reference import members, observe_layers
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs
from support.tiny_models import VLM_TYPES, build
from transformers import PreTrainedModel

from normprobe import Probe, find_parts, schema
from normprobe.measurements import measurement
from normprobe.measurements.layers.massive import massive_tables
from normprobe.measurements.layers.watchers import MassiveActivations
from normprobe.model.measured_model import MeasuredModel
from normprobe.statistics.token_metrics import POOLED_GROUPS, group_masks
from normprobe.versions import is_line_5

BATCHES = [(1, "right"), (4, "right"), (4, "left")]
DIMENSION, HEIGHT = 5, 40_000.0

every_type = pytest.mark.parametrize("model_type", VLM_TYPES)


def sample_rows(model: PreTrainedModel, inputs: Mapping[str, torch.Tensor]) -> pd.DataFrame:
    measured = MeasuredModel(model, find_parts(model), SPECIAL_IDS)
    rows = measurement("layers").looking_at(["massive"]).sample_rows(measured, inputs)
    return rows.assign(image_hash=rows["sample_id"])


def tables(case: Case) -> dict[str, pd.DataFrame]:
    return massive_tables(sample_rows(case.model, case.inputs))


def test_the_median_of_norms_lies_between_the_two_in_the_middle() -> None:
    module = measurement("layers").module("massive.watcher")
    values = np.random.default_rng(0).gamma(3.0, size=(3, 6)).astype(np.float32)
    values[1, 2] = values[2, [0, 5]] = np.nan  # six, five and four numbers
    expected = np.nanmedian(values.astype(np.float64), axis=1, keepdims=True)
    np.testing.assert_allclose(module._median(values), expected, rtol=1e-6)


@np.errstate(invalid="ignore")  # padding may be zero
def plain(tokens: np.ndarray) -> dict[str, np.ndarray]:
    """By token, of ``[tokens, hidden]``."""
    magnitudes = np.sort(np.abs(tokens), axis=-1)[:, ::-1]
    squares = magnitudes**2 / (tokens**2).sum(-1, keepdims=True)
    ratio = magnitudes[:, 0] / np.median(magnitudes, axis=-1)
    return {
        "top1_share": squares[:, 0],
        "top10_share": squares[:, :10].sum(-1),
        "peak": magnitudes[:, 0],
        "peak_to_median": ratio,
        "massive": (magnitudes[:, 0] > 100) & (ratio >= 1000),
    }


def state(case: Case, layer: int) -> np.ndarray:
    layers = case.states.layers
    return layers[layer - 1].left if layer else layers[0].entered


def high_norms(case: Case, layer: int, group: str) -> int:
    found = 0
    for sample, groups in enumerate(case.groups):
        if group in members(groups) and members(groups)[group].any():
            norms = np.linalg.norm(state(case, layer)[sample, members(groups)[group]], axis=-1)
            found += (norms >= 3 * np.median(norms)).sum()
    return int(found)


@np.errstate(invalid="ignore")  # padding may be zero
def still(case: Case, layer: int) -> np.ndarray:
    found = np.ones(case.groups.shape, dtype=bool)
    for seen in case.states.layers[:layer]:
        lengths = np.linalg.norm(seen.entered, axis=-1) * np.linalg.norm(seen.left, axis=-1)
        found &= (seen.entered * seen.left).sum(-1) / lengths >= 0.99
    return found


def geometric_means(case: Case, ever: np.ndarray) -> dict[tuple[int, str, str, str], float]:
    """By layer, group, metric and suffix: of the tokens that have a logarithm."""
    found = {}
    masks = [members(groups) for groups in case.groups]
    for (layer, group), seen in observe_layers(case.states, case.groups).items():
        of_samples = [
            kept[mask[group]] for kept, mask in zip(~ever, masks, strict=True) if group in mask
        ]
        kept = np.concatenate(of_samples)
        for name in ("norm", "angle") if layer else ("norm",):
            values = np.concatenate([of_sample.metrics[name] for of_sample in seen])
            for suffix, chosen in (("", values), ("_without_massive", values[kept])):
                positive = chosen[chosen > 0]
                mean = np.exp(np.log(positive).mean()) if positive.size else np.nan
                found[layer, group, name, suffix] = mean
    return found


def assert_agrees(case: Case) -> None:
    """Every number of massive.csv, and the bounds of dimensions.csv, of a batch."""
    found = {name: table.set_index(["layer", "group"]) for name, table in tables(case).items()}
    masks = [members(groups) for groups in case.groups]
    depth = len(case.states.layers)
    of_layers = [
        np.stack([plain(sample)["massive"] for sample in state(case, layer)])
        for layer in range(depth + 1)
    ]
    ever = np.any(of_layers, axis=0)
    observations = observe_layers(case.states, case.groups)
    of_group = geometric_means(case, ever)
    for key, row in found["massive"].iterrows():
        layer, group = key
        mask = np.stack([mask.get(group, np.zeros_like(ever[0])) for mask in masks])
        numbers = plain(state(case, layer)[mask])
        about = {"rtol": 2e-4, "err_msg": f"{key}"}
        for name in ("top1_share", "top10_share", "massive"):
            np.testing.assert_allclose(row[f"{name}_mean"], numbers[name].mean(), **about)
        for name in ("peak", "peak_to_median"):
            np.testing.assert_allclose(row[f"{name}_max"], numbers[name].max(), **about)
        assert row["massive_tokens"] == numbers["massive"].sum()
        assert row["high_norm_tokens"] == high_norms(case, layer, group)
        assert row["sink_tokens"] == 0  # so narrow a state has none
        assert row["still_tokens"] == still(case, layer)[mask].sum()
        kept = ~ever[mask]
        assert row["tokens_without_massive"] == kept.sum()
        metrics = [seen.metrics for seen in observations[key]]
        for name in ("norm", "cosine", "angle") if layer else ("norm",):
            values = np.concatenate([of_sample[name] for of_sample in metrics])
            tolerance = {"rtol": 2e-4, "atol": 2e-4 if name != "norm" else 1e-6}
            for suffix, chosen in (("", values), ("_without_massive", values[kept])):
                mean = chosen.mean() if chosen.size else np.nan
                std = chosen.std() if chosen.size else np.nan
                np.testing.assert_allclose(row[f"{name}{suffix}_mean"], mean, **tolerance)
                np.testing.assert_allclose(row[f"{name}{suffix}_std"], std, **tolerance)
        for name in ("norm", "angle") if layer else ("norm",):
            for suffix in ("", "_without_massive"):
                ratio = of_group[layer, group, name, suffix] / of_group.get(
                    (layer, schema.TEXT, name, suffix), np.nan
                )
                found_ratio = row[f"{name}_geometric_ratio_to_text{suffix}"]
                np.testing.assert_allclose(found_ratio, ratio, rtol=2e-4, err_msg=f"{key} {name}")
        squares = np.square(state(case, layer)[mask])
        shares = squares.sum(axis=0) / squares.sum()
        told = found["dimensions"].loc[[key]]
        held = shares[told["dimension"].to_numpy()]
        assert (told["share"] <= held + 1e-6).all() and (held <= told["share_at_most"] + 1e-6).all()
        if len(case.groups) == 1:  # nothing is merged
            np.testing.assert_allclose(held, np.sort(shares)[::-1][: len(held)], rtol=1e-4)
            np.testing.assert_allclose(told["share"], held, rtol=1e-4)


@every_type
@pytest.mark.parametrize(("batch_size", "padding"), BATCHES)
def test_every_number(model_type, batch_size, padding):
    assert_agrees(case_of(model_type, batch_size, padding))


@every_type
def test_nothing_is_massive_where_nothing_was_planted(model_type):
    table = tables(case_of(model_type))["massive"]
    assert not table["massive_tokens"].any()
    assert (table["tokens_without_massive"] == table["tokens"]).all()
    for name in ("norm", "cosine", "angle"):
        with_all, without = table[f"{name}_mean"], table[f"{name}_without_massive_mean"]
        pd.testing.assert_series_equal(with_all, without, check_names=False, rtol=1e-12)


def planted(model_type: str, padding: str, dtype: torch.dtype = torch.float32) -> Case:
    """The first layer makes the last token of each sample massive, and one visual token."""
    model = copy.deepcopy(model_of(model_type)).to(dtype)
    inputs = tiny_inputs(model, 4, padding)
    case = make_case(model, inputs, PARTS[model_type], SPECIAL_IDS)
    counted = torch.from_numpy(case.groups != "")
    last = counted.shape[1] - 1 - counted.flip(1).int().argmax(1)
    visual = int(np.flatnonzero(case.groups[0] == schema.VISUAL)[0])
    places = torch.tensor([[0, visual], *([sample, place] for sample, place in enumerate(last))])
    first = model.get_submodule(PARTS[model_type].decoder_layers)[0]
    forward = first.forward

    def massive_forward(*arguments, **options):
        output = forward(*arguments, **options)
        state = (output[0] if isinstance(output, tuple) else output).clone()
        state[places[:, 0], places[:, 1], DIMENSION] = HEIGHT
        return (state, *output[1:]) if isinstance(output, tuple) else state

    first.forward = massive_forward
    return make_case(model, inputs, PARTS[model_type], SPECIAL_IDS)


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("model_type", ["llava", "qwen2_5_vl", "gemma3", "paligemma"])
def test_planted_tokens_are_found_and_left_out(model_type, padding):
    case = planted(model_type, padding)
    assert_agrees(case)
    found = {name: table.set_index(["layer", "group"]) for name, table in tables(case).items()}
    visual = found["massive"].xs(schema.VISUAL, level="group")
    after = visual.loc[1:]
    assert visual.loc[0, "massive_tokens"] == 0
    assert after["massive_tokens"].iloc[0] == 1
    assert (visual["tokens"] - visual["tokens_without_massive"]).eq(1).all()
    assert after["norm_mean"].iloc[0] > 10 * after["norm_without_massive_mean"].iloc[0]
    text = found["massive"].xs(schema.TEXT, level="group")
    expected = visual["norm_without_massive_mean"] / text["norm_without_massive_mean"]
    np.testing.assert_allclose(visual["norm_ratio_to_text_without_massive"], expected, rtol=1e-12)
    dimensions = found["dimensions"].loc[(1, schema.TEXT)]
    assert dimensions["dimension"].iloc[0] == DIMENSION


@pytest.mark.parametrize("model_type", VLM_TYPES)
def test_bfloat16_states_are_measured_in_float32(model_type):
    if model_type == "mistral3" and not is_line_5():
        pytest.skip("takes no float32 pixels on transformers 4")
    model = copy.deepcopy(model_of(model_type)).to(torch.bfloat16)
    assert_agrees(make_case(model, tiny_inputs(model, 4), PARTS[model_type], SPECIAL_IDS))


def test_float64_states_are_measured_in_float64():
    model = copy.deepcopy(model_of("llava")).to(torch.float64)
    assert_agrees(make_case(model, tiny_inputs(model, 4), PARTS["llava"], SPECIAL_IDS))


def test_other_numbers_stay_as_they_are():
    case = case_of("llava")
    measured = MeasuredModel(case.model, find_parts(case.model), SPECIAL_IDS)
    plain_rows = measurement("layers").sample_rows(measured, case.inputs)
    rows = sample_rows(case.model, case.inputs)
    pd.testing.assert_frame_equal(rows[plain_rows.columns], plain_rows)


def test_without_the_option_there_are_no_such_tables():
    run = Probe(build("llava")).layers(tiny_inputs(model_of("llava")))
    assert not {"massive", "dimensions"} & set(run.tables)


def test_a_token_that_is_not_finite_is_not_massive():
    model = copy.deepcopy(model_of("llava"))
    inputs = tiny_inputs(model)
    whole = massive_tables(sample_rows(model, inputs))["massive"]
    last = model.get_submodule(PARTS["llava"].decoder_layers)[-1]
    forward = last.forward

    def broken_forward(*arguments, **options):
        state = forward(*arguments, **options).clone()
        state[:, -1, 0] = torch.inf
        return state

    last.forward = broken_forward
    table = massive_tables(sample_rows(model, inputs))["massive"]
    assert np.isfinite(table["peak_max"]).all()
    assert not table["massive_tokens"].any()
    last_layer = table["layer"] == table["layer"].max()
    pd.testing.assert_frame_equal(table[~last_layer], whole[~last_layer])
    text = table[last_layer].set_index("group").loc[schema.TEXT]
    assert text["tokens"] == whole[last_layer].set_index("group").loc[schema.TEXT, "tokens"] - 1
    assert text["tokens_without_massive"] == text["tokens"]


def test_sinks_are_counted_in_their_groups():
    """A tiny model is too narrow for one: states by hand."""
    h = torch.randn(1, 6, 900, generator=torch.Generator().manual_seed(0))
    h[0, [0, 2, 4], 7] = 200.0  # the first token opens the dimension
    groups = torch.tensor([[2, 0, 0, 0, 3, 3]])
    seen = MassiveActivations().see_groups(1, h, group_masks(groups))
    counts = dict(zip(POOLED_GROUPS, seen[0, :, 0].tolist(), strict=True))
    assert counts == {
        schema.VISUAL: 1,
        schema.STRUCTURAL: 0,
        schema.SPECIAL: 1,
        schema.TEXT: 1,
        schema.NON_VISUAL: 2,
    }
