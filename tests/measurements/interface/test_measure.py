"""``probe_interface`` against float64 NumPy over states taken another way than by hooks."""

import copy
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from support.agreement import assert_agrees
from support.cases import Case, make_case, model_of
from support.expected_parts import PARTS
from support.flat import flat
from support.hooks import hooks_of
from support.reference import norm
from support.reference_interface import interface_table, stage_rows
from support.tiny_inputs import tiny_inputs
from support.tiny_models import LANGUAGE_MODELS, TINY, VISION_ENCODERS, VLM_TYPES

from normprobe import NormprobeError, Probe, probe_interface, schema
from normprobe.tidy import QUANTILES
from normprobe.versions import is_line_5

every_type = pytest.mark.parametrize("model_type", TINY)


def measure(model, inputs) -> pd.DataFrame:
    return flat(probe_interface(model, inputs, special_token_ids=[])).set_index(["stage", "group"])


@cache
def plain_case_of(model_type, batch_size=4, padding="right") -> Case:
    """Without special ids: ``probe_interface`` is told that there are none."""
    model = model_of(model_type)
    return make_case(model, tiny_inputs(model, batch_size, padding), PARTS[model_type], ())


@cache
def measured(model_type, batch_size=4, padding="right") -> pd.DataFrame:
    case = plain_case_of(model_type, batch_size, padding)
    return measure(case.model, case.inputs)


@every_type
@pytest.mark.parametrize(("batch_size", "padding"), [(1, "right"), (4, "right"), (4, "left")])
def test_every_number(model_type, batch_size, padding):
    stages = stage_rows(plain_case_of(model_type, batch_size, padding))
    expected = interface_table(stages)
    table = measured(model_type, batch_size, padding)
    assert set(table.index) == set(expected)
    for key, row in expected.items():
        assert_agrees(table.loc[key], row, where=key)
    for key, rows in stages.items():
        for name, probability in QUANTILES.items():
            low, high = np.quantile(
                norm(rows), [probability - 1e-9, probability + 1e-9], method="inverted_cdf"
            )
            assert 0.99 * low <= table.loc[key, f"norm_{name}"] <= 1.01 * high


@pytest.mark.parametrize("model_type", VLM_TYPES)
def test_bfloat16_states_are_measured_in_float32(model_type):
    if model_type == "mistral3" and not is_line_5():
        pytest.skip("takes no float32 pixels on transformers 4")
    model = copy.deepcopy(model_of(model_type)).to(torch.bfloat16)
    case = make_case(model, tiny_inputs(model, 4), PARTS[model_type], ())
    table, expected = measure(model, case.inputs), interface_table(stage_rows(case))
    for key, row in expected.items():
        if key[0] != schema.EFFECTIVE_EMBEDDING:  # scaled in bfloat16 by the model, not exactly
            assert_agrees(table.loc[key], {"norm_mean": row["norm_mean"]}, where=key)


@pytest.mark.parametrize("model_type", ["llava", "qwen2_5_vl", "siglip2"])
def test_float64_models_are_measured_in_float64(model_type):
    model = copy.deepcopy(model_of(model_type)).double()
    inputs = tiny_inputs(model)
    inputs = {n: t.double() if t.is_floating_point() else t for n, t in inputs.items()}
    case = make_case(model, inputs, PARTS[model_type], ())
    table, expected = measure(model, case.inputs), interface_table(stage_rows(case))
    for key, row in expected.items():
        if key[0] != schema.EFFECTIVE_EMBEDDING:  # its scale is fitted in float32
            assert table.loc[key, "norm_mean"] == pytest.approx(row["norm_mean"], rel=1e-12), key


def test_the_loudest_token_of_each_group_at_the_decoder_input() -> None:
    model = model_of("llava")
    inputs = tiny_inputs(model)
    case = plain_case_of("llava", 1)
    rows = (
        Probe(model, special_token_ids=[]).interface(inputs).samples.set_index(["stage", "group"])
    )
    for (stage, group), states in stage_rows(case).items():
        if stage == schema.DECODER_INPUT:
            norms, row = norm(states), rows.loc[stage, group]
            assert row["loudest_share"] == pytest.approx(norms.max() / norms.sum(), rel=1e-5)
            ids = inputs["input_ids"][0].tolist()
            assert ids[int(row["loudest_position"])] == row["loudest_id"]


def test_stages_are_in_the_order_of_the_flow():
    stages = list(measured("llava").index.get_level_values("stage").unique())
    others = [stage for stage in schema.STAGES if stage.startswith("audio")]  # there is no sound
    in_order = [
        s for s in schema.STAGES if s not in (schema.MERGED_INPUT, *others)
    ]  # Kimi-VL alone
    assert stages == [stage for stage in in_order if stage != schema.VISUAL_EMBEDDING_TABLE]
    table = list(measured("ovis2").index.get_level_values("stage").unique())
    assert table == in_order


@pytest.mark.parametrize("model_type", VISION_ENCODERS)
def test_bare_encoders_have_one_stage(model_type):
    assert set(measured(model_type).index.get_level_values("stage")) == {schema.VISION_ENCODER}


@pytest.mark.parametrize("model_type", LANGUAGE_MODELS)
def test_bare_language_models_have_the_text_side(model_type):
    assert set(measured(model_type).index.get_level_values("stage")) == {
        schema.DECODER_INPUT,
        schema.TEXT_EMBEDDING_TABLE,
        schema.EFFECTIVE_EMBEDDING,
    }


@pytest.mark.parametrize("model_type", ["gemma3", "paligemma"])
def test_scaling_inside_the_embedding_is_seen(model_type):
    """Gemma multiplies by the square root of the width; its table alone would mislead."""
    means, scale = measured(model_type)["norm_mean"], 8.0
    table = means[schema.TEXT_EMBEDDING_TABLE, schema.ALL_ROWS]
    assert means[schema.EFFECTIVE_EMBEDDING, schema.ALL_ROWS] == pytest.approx(scale * table)


@pytest.mark.parametrize("model_type", ["llava", "qwen2_5_vl", "gemma3", LANGUAGE_MODELS[0]])
def test_the_decoder_layers_never_run(model_type):
    model, inputs = copy.deepcopy(model_of(model_type)), plain_case_of(model_type).inputs
    calls = []
    for layer in model.get_submodule(PARTS[model_type].decoder_layers):
        layer.forward = lambda *args, **kwargs: calls.append(args)
    measure(model, inputs)
    assert not calls


@pytest.mark.parametrize("model_type", ["llava", "ovis2", "siglip2", LANGUAGE_MODELS[0]])
def test_the_model_is_left_as_it_was(model_type):
    model, inputs = copy.deepcopy(model_of(model_type)), plain_case_of(model_type).inputs
    with torch.no_grad():
        measure(model, inputs)  # transformers adds hooks of its own in the first forward
    hooks = hooks_of(model)
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    model.train()
    measure(model, inputs)
    assert hooks_of(model) == hooks
    assert all(module.training for module in model.modules())
    assert all(torch.equal(weights[name], weight) for name, weight in model.state_dict().items())


def test_hooks_are_removed_after_an_exception():
    model, inputs = copy.deepcopy(model_of("llava")), plain_case_of("llava").inputs

    def fail(*args, **kwargs):
        raise RuntimeError("out of memory")

    measure(model, inputs)  # transformers leaves hooks of its own in the first forward
    model.get_submodule(PARTS["llava"].projector).forward = fail
    hooks = hooks_of(model)
    with pytest.raises(RuntimeError, match="out of memory"):
        measure(model, inputs)
    assert hooks_of(model) == hooks


def test_several_samples_a_forward_are_refused() -> None:
    """Tiles and packed patches have no axis of samples."""
    probe = Probe("specimen")
    with pytest.raises(
        NormprobeError, match="interface runs one sample a forward: batch_size is 4"
    ):
        probe.interface(batch_size=4, limit=2)
    run = Probe("specimen", dtype="bfloat16").interface(batch_size="auto", limit=2)
    assert run.record["batch_size"] == 1
