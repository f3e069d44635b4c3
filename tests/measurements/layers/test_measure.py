"""``probe_layers`` against float64 NumPy over states taken another way than by hooks."""

import copy
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from support.agreement import TOLERANCE, assert_agrees
from support.cases import case_of, make_case, model_of
from support.expected_parts import PARTS
from support.flat import flat
from support.hooks import hooks_of
from support.reference import (
    layers_table,
    norm,
    observe_pairs,
    quantile_bounds,
    summary,
    token_groups,
)
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs, tiny_samples
from support.tiny_models import PAD, VLM_TYPES

from normprobe import find_parts, probe_layers, schema
from normprobe.measurements import measurement
from normprobe.measurements.layers.measure import _LayerReader
from normprobe.model.measured_model import MeasuredModel
from normprobe.tidy import QUANTILES
from normprobe.versions import is_line_5

LAYERS = 3
BATCHES = [(1, "right"), (4, "right"), (4, "left")]

every_type = pytest.mark.parametrize("model_type", VLM_TYPES)
every_batch = pytest.mark.parametrize(("batch_size", "padding"), BATCHES)


def measure(model, inputs, special_token_ids=SPECIAL_IDS) -> pd.DataFrame:
    """A flat layers.csv."""
    table = probe_layers(model, inputs, special_token_ids=special_token_ids)
    return flat(table).set_index(["layer", "group"])


@cache
def measured(model_type, batch_size=4, padding="right") -> pd.DataFrame:
    case = case_of(model_type, batch_size, padding)
    return measure(case.model, case.inputs)


def assert_table_agrees(table, expected):
    assert set(table.index) == set(expected)
    for key, row in expected.items():
        assert_agrees(table.loc[key], row, where=key)


# --- the numbers --------------------------------------------------------------------------------


@every_type
@every_batch
def test_every_number(model_type, batch_size, padding):
    case = case_of(model_type, batch_size, padding)
    table = measured(model_type, batch_size, padding)
    assert_table_agrees(table, layers_table(case.observations))


@every_type
@every_batch
def test_quantiles(model_type, batch_size, padding):
    """Norm and angle within 1 % of the inverted distribution function, the cosine within 0.001."""
    case = case_of(model_type, batch_size, padding)
    table = measured(model_type, batch_size, padding)
    for key, observations in case.observations.items():
        found = table.loc[key]
        for name, probability in QUANTILES.items():
            low, high = quantile_bounds(observations, "norm", probability)
            assert 0.99 * low <= found[f"norm_{name}"] <= 1.01 * high
            if key[0] == 0:
                continue
            low, high = quantile_bounds(observations, "angle", probability)
            assert 0.99 * low <= found[f"angle_{name}"] <= 1.01 * high
            low, high = quantile_bounds(observations, "cosine", probability)
            # float32 states: a cosine itself is within 1e-5.
            assert low - 0.00101 <= found[f"cosine_{name}"] <= high + 0.00101


@every_type
def test_bfloat16_states_are_measured_in_float32(model_type):
    if model_type == "mistral3" and not is_line_5():
        pytest.skip("takes no float32 pixels on transformers 4")
    model = copy.deepcopy(model_of(model_type)).to(torch.bfloat16)
    case = make_case(model, tiny_inputs(model, 4), PARTS[model_type], SPECIAL_IDS)
    assert_table_agrees(measure(model, case.inputs), layers_table(case.observations))


def test_float64_models_are_measured():
    model = copy.deepcopy(model_of("llava")).double()
    inputs = tiny_inputs(model)
    inputs["pixel_values"] = inputs["pixel_values"].double()
    case = make_case(model, inputs, PARTS["llava"], SPECIAL_IDS)
    assert_table_agrees(measure(model, case.inputs), layers_table(case.observations))


@every_type
@pytest.mark.parametrize("padding", ["right", "left"])
def test_single_samples_add_up_to_the_padded_batch(model_type, padding):
    together = measured(model_type, 4, padding)
    for key, rows in measured_alone(model_type).groupby(["layer", "group"]):
        assert together.loc[key, "tokens"] == rows["tokens"].sum()
        assert together.loc[key, "samples"] == len(rows)
        for metric in schema.TOKEN_METRICS if key[0] else ("norm",):
            mean, std = pooled(rows["tokens"], rows[f"{metric}_mean"], rows[f"{metric}_std"])
            expected = {
                f"{metric}_mean": mean,
                f"{metric}_std": std,
                f"{metric}_sample_mean": rows[f"{metric}_mean"].mean(),
                f"{metric}_sample_std": rows[f"{metric}_mean"].std(ddof=0),
            }
            assert_agrees(together.loc[key], expected, where=key)


@cache
def measured_alone(model_type) -> pd.DataFrame:
    model = model_of(model_type)
    return pd.concat([measure(model, sample) for sample in tiny_samples(model, 4)])


def pooled(tokens, means, stds):
    """Mean and deviation over all tokens, from those of the parts."""
    mean = np.average(means, weights=tokens)
    return mean, np.sqrt(np.average(stds**2 + (means - mean) ** 2, weights=tokens))


@every_type
def test_pair_metrics(model_type):
    """Quantities of (visual, text) pairs stay in the sample rows, from which theory is computed."""
    case = case_of(model_type)
    whole = MeasuredModel(case.model, find_parts(case.model), SPECIAL_IDS)
    rows = measurement("layers").sample_rows(whole, case.inputs, ["a", "b", "c", "d"])
    found = rows[rows["group"] == schema.PAIR].set_index(["layer", "sample_id"])
    for layer, metrics in observe_pairs(case.states, case.groups).items():
        for metric, values in metrics.items():
            np.testing.assert_allclose(found.loc[layer, metric], values, atol=TOLERANCE)


def test_a_state_that_is_written_into_between_layers_is_read_anew():
    """As DeepStack does on transformers 4."""
    model = copy.deepcopy(model_of("llava"))
    second = model.model.language_model.layers[1]

    def add(_, args):
        args[0].add_(0.5)

    second.register_forward_pre_hook(add)
    case = make_case(model, tiny_inputs(model, 2), PARTS["llava"], SPECIAL_IDS)
    table = measure(model, case.inputs)
    assert_table_agrees(table, layers_table(case.observations))
    added = table["injection_norm_mean"].groupby("layer").max()
    assert (added > 0).tolist() == [False, False, True, False]


@pytest.mark.parametrize("model_type", ["exaone4_5", "git"])
def test_where_no_norm_opens_a_layer_attention_reads_what_enters_it(model_type):
    """OLMo-2's kind, and BERT's."""
    table = measure(model_of(model_type), tiny_inputs(model_of(model_type), 2))
    for layer in range(1, 3):
        for group in (schema.VISUAL, schema.TEXT):
            entered = table.loc[(layer - 1, group), "norm_mean"]
            read = table.loc[(layer, group), "attention_input_norm_mean"]
            assert read == pytest.approx(entered, rel=1e-6)


# --- which state, which tokens ------------------------------------------------------------------


@every_type
def test_last_layer_is_before_the_final_norm(model_type):
    if model_type == "qwen3_vl" and not is_line_5():
        pytest.skip("transformers 4 gives its states without the final norm")
    case, table = case_of(model_type), measured(model_type)
    text = case.groups == schema.TEXT
    with torch.no_grad():
        hidden_states = case.model(**case.inputs, output_hidden_states=True).hidden_states
    after_norm = norm(hidden_states[-1].double().numpy()[text]).mean()
    before_norm = norm(case.states.layers[-1].left[text]).mean()
    assert abs(after_norm / before_norm - 1.0) > 0.01
    assert table.loc[(LAYERS, schema.TEXT), "norm_mean"] == pytest.approx(before_norm, TOLERANCE)


def test_without_a_mask_every_token_counts():
    (inputs,) = tiny_samples(model_of("llava"), 1)
    del inputs["attention_mask"]
    pd.testing.assert_frame_equal(measure(model_of("llava"), inputs), measured("llava", 1))


def test_layer_zero_has_norms_alone():
    table = measured("llava")
    for metric in set(schema.TOKEN_METRICS) - {"norm"}:
        assert table.loc[0, f"{metric}_mean"].isna().all()
    assert table.loc[0, "pooled_cosine_mean"].isna().all()


def test_rows_are_in_the_order_of_the_layers():
    assert measured("llava").index.get_level_values("layer").is_monotonic_increasing


@every_type
def test_without_special_ids_all_other_tokens_are_text(model_type):
    case = case_of(model_type)
    table = measure(case.model, case.inputs, special_token_ids=[])
    groups = token_groups(case.model, case.inputs, case.parts)
    assert not {schema.SPECIAL, schema.NON_VISUAL} & {*table.index.get_level_values("group")}
    for layer in range(LAYERS + 1):
        assert table.loc[(layer, schema.TEXT), "tokens"] == (groups == schema.TEXT).sum()
    whole = MeasuredModel(case.model, find_parts(case.model), [])
    rows = measurement("layers").sample_rows(whole, case.inputs)
    text, non_visual = (
        rows[rows["group"] == group].select_dtypes("number").reset_index(drop=True)
        for group in (schema.TEXT, schema.NON_VISUAL)
    )
    assert len(text) == len(groups) * (LAYERS + 1)
    told = non_visual.columns[non_visual.notna().any()]  # not that of pairs, and co-moments
    assert {f"{metric}_mean" for metric in schema.TOKEN_METRICS} <= {*told}
    pd.testing.assert_frame_equal(text[told], non_visual[told])


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_nonfinite_states_are_counted_and_excluded(broken):
    model, inputs = copy.deepcopy(model_of("llava")), case_of("llava").inputs
    # The last token of the longest sample, in the output of the last layer.
    sample = int(inputs["attention_mask"].sum(1).argmax())
    breaks_output(model, (sample, -1), broken)
    case = make_case(model, inputs, PARTS["llava"], SPECIAL_IDS)
    table = measure(model, inputs)
    assert_table_agrees(table, layers_table(case.observations))
    assert table["nonfinite"].sum() == 2  # text, and non_visual
    assert table.loc[(LAYERS, schema.TEXT), "nonfinite"] == 1


def test_a_zero_state_has_a_norm_but_no_direction():
    """The padding token inside a prompt: its row of the table is zero."""
    model, inputs = model_of("llava"), tiny_inputs(model_of("llava"))
    inputs["input_ids"][0, -1] = PAD
    case = make_case(model, inputs, PARTS["llava"], SPECIAL_IDS)
    table = measure(model, inputs)
    assert_table_agrees(table, layers_table(case.observations))
    assert table.loc[(0, schema.SPECIAL), ["nonfinite", "norm_q05"]].tolist() == [0, 0]
    assert table["nonfinite"].sum() == 0


def test_a_state_may_leave_a_layer_on_another_device():
    """As under accelerate dispatch. ``meta`` refuses to be mixed, as a second GPU does."""
    case = case_of("llava")
    model = MeasuredModel(case.model, find_parts(case.model), SPECIAL_IDS)
    x = torch.from_numpy(case.states.layers[0].entered).float()
    reader = _LayerReader(model.batch(case.inputs), [])
    with torch.no_grad():
        reader.read_decoder_input(x)
        reader.read_input(1, x)
        reader.read_output(1, (2 * x).to("meta"))
    (turned,), left = reader.turned, reader.directions[1]
    numbers = (turned.lengths, *turned.turns, *left)
    assert {each.device.type for each in numbers} == {"meta"}


def test_nonfinite_padding_is_nothing():
    model, inputs = copy.deepcopy(model_of("llava")), case_of("llava").inputs
    breaks_output(model, inputs["attention_mask"] == 0, float("nan"))
    pd.testing.assert_frame_equal(measure(model, inputs), measured("llava"))


def breaks_output(model, where, value):
    """Let the last layer return some non-finite states."""
    last = model.get_submodule(PARTS["llava"].decoder_layers)[-1]
    forward = last.forward

    def broken_forward(*args, **kwargs):
        output = forward(*args, **kwargs).clone()
        output[where] = value
        return output

    last.forward = broken_forward


# --- the model is left as it was ----------------------------------------------------------------


@every_type
def test_output_is_unchanged_bit_for_bit(model_type):
    model = copy.deepcopy(model_of(model_type))
    inputs = tiny_inputs(model, 4)
    given = {name: tensor.clone() for name, tensor in inputs.items()}
    with torch.no_grad():
        before = model(**inputs).logits
        hooks = hooks_of(model)
        measure(model, inputs)
        assert hooks_of(model) == hooks
        after = model(**inputs).logits
    assert torch.equal(before, after)
    assert list(inputs) == list(given)
    assert all(torch.equal(inputs[name], given[name]) for name in given)
    assert not any(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("failing", ["vision_encoder", "decoder_layers"])
def test_hooks_and_mode_are_restored_after_an_exception(failing):
    model, inputs = copy.deepcopy(model_of("llava")), case_of("llava").inputs
    part = model.get_submodule(getattr(PARTS["llava"], failing))
    module = part[-1] if failing == "decoder_layers" else part

    def fail(*args, **kwargs):
        raise RuntimeError("out of memory")

    module.forward = fail
    model.train()
    model.lm_head.eval()
    hooks = hooks_of(model)
    with pytest.raises(RuntimeError, match="out of memory"):
        measure(model, inputs)
    assert hooks_of(model) == hooks
    modes = {name: module.training for name, module in model.named_modules()}
    assert not modes.pop("lm_head") and all(modes.values())


def test_training_mode_is_restored_and_dropout_is_off():
    model = copy.deepcopy(model_of("llava"))
    for layer in model.get_submodule(PARTS["llava"].decoder_layers):
        layer.self_attn.attention_dropout = 0.5
    model.train()
    table = measure(model, case_of("llava").inputs)
    assert all(module.training for module in model.modules())
    pd.testing.assert_frame_equal(table, measured("llava"))


# --- bare language models -----------------------------------------------------------------------


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("padding", ["right", "left"])
def test_bare_language_models(model_type, padding):
    case = case_of(model_type, 4, padding)
    table = measured(model_type, 4, padding)
    assert_table_agrees(table, {key: summary(seen) for key, seen in case.observations.items()})
