"""``checked``: what is the same is called the same, and a port's fault is found where it is."""

import json
import xml.etree.ElementTree as xml
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.decoder_by_hand import linear_by_hand
from support.port_faults import FAULTS, OF_PROCESSORS, Fault
from support.processors import make_processor
from support.tiny_inputs import SPECIAL_IDS, tiny_samples
from support.tiny_models import VLM_TYPES, tiny_model

from normprobe import NormprobeError, Probe, find_parts
from normprobe.check import (
    _answered,
    _costs,
    _told,
    against_precision,
    baseline_of,
    headroom,
    take_baseline,
)
from normprobe.data.data_set import open_data
from normprobe.inputs.on_device import inputs_for
from normprobe.measurements import measurement
from normprobe.measurements.check.baseline import (
    DIFFERENT,
    MEASURED,
    SAME,
    UNKNOWN,
    Baseline,
    checked,
    read_baseline,
)
from normprobe.model.load.required_tensors import everything
from normprobe.model.measured_model import MeasuredModel
from normprobe.report.readable import significant
from normprobe.schema import TOKEN_GROUPS

SAMPLES = 3
FAST = ("missing scale of the embedding", "patches column by column", "a layer left out")


def states_of(model: Any, samples: Sequence[Any], dtype: str = "float32") -> Baseline:
    """The baseline of a model in memory."""
    found = MeasuredModel(model, find_parts(model), SPECIAL_IDS)
    check = measurement("check")
    rows = pd.concat(
        check.sample_rows(found, inputs_for(model, sample), [str(number)])
        for number, sample in enumerate(samples)
    )
    ids = {str(number): {"picture": None, "prompt": None} for number in range(len(samples))}
    return Baseline({"dtype": dtype}, ids, check.tables(rows, found)["check"])


def first_of(table: pd.DataFrame) -> str:
    return str(table.loc[table["differs"], "stage"].iloc[0])


def slow_but(fast: Sequence[str], names: Sequence[str]) -> list[Any]:
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", slow_but(FAST, list(FAULTS)))
def test_a_fault_of_a_port_is_found_where_it_is(name: str) -> None:
    fault: Fault = FAULTS[name]
    model = tiny_model(fault.model_type)
    samples = tiny_samples(model, SAMPLES)
    before = states_of(model, samples)
    with torch.no_grad():
        fault.plant(model)
    found = checked(states_of(model, samples), before)
    assert found.verdict == DIFFERENT
    assert first_of(found.table) == fault.stage
    assert fault.hint in found.sentence


@pytest.mark.parametrize("name", slow_but(("mean and std",), list(OF_PROCESSORS)))
def test_a_fault_of_a_processor_is_blamed_on_the_inputs(name: str) -> None:
    fault = OF_PROCESSORS[name]
    model, processor = tiny_model(fault.model_type), make_processor(fault.model_type)
    before = take_baseline(Probe(model, processor), limit=4)
    assert before.samples
    assert all(len(digests["picture"]) == 64 for digests in before.samples.values())
    fault.plant(processor)
    found = checked(take_baseline(Probe(model, processor), before), before)
    assert found.verdict == DIFFERENT
    assert first_of(found.table) == fault.stage
    assert fault.hint in found.sentence


@pytest.mark.slow
def test_nothing_that_is_the_same_is_called_another_one() -> None:
    """Of 225 comparisons over kernels, threads, seeds, types and reruns none is red."""
    wrong, compared = [], 0
    for model_type in VLM_TYPES:
        for dtype in ("float32", "bfloat16", "float16"):
            for seed in (0, 1):
                model = tiny_model(model_type, seed).to(getattr(torch, dtype))
                samples = tiny_samples(model, SAMPLES, seed=seed)
                before = states_of(model, samples, dtype)
                others = {"again": states_of(model, samples, dtype)}
                model.set_attn_implementation("eager")
                others["eager"] = states_of(model, samples, dtype)
                if seed == 0:
                    torch.set_num_threads(2)
                    try:
                        others["threads"] = states_of(model, samples, dtype)
                    finally:
                        torch.set_num_threads(1)
                for how, now in others.items():
                    compared += 1
                    found = checked(now, before)
                    if found.verdict != SAME:
                        wrong.append((model_type, dtype, seed, how, found.sentence))
    assert not wrong
    assert compared >= 200


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_another_dtype_is_within_the_coarser_tolerance(dtype: str) -> None:
    model = tiny_model("llava")
    samples = tiny_samples(model, SAMPLES)
    before = states_of(model, samples)
    now = states_of(model.to(getattr(torch, dtype)), samples, dtype)
    assert checked(now, before).verdict == SAME
    assert checked(now, before, 1e-5).verdict == DIFFERENT


@pytest.fixture(scope="module")
def specimen() -> Baseline:
    return take_baseline(Probe("specimen"), limit=3)


def test_a_file_is_read_as_it_was_written(specimen: Baseline, tmp_path: Path) -> None:
    file = tmp_path / "baseline.json"
    file.write_text(specimen.text)
    told = json.loads(specimen.text)
    assert list(told["samples"]) == sorted(told["samples"])
    assert len(specimen.text) < 10_000
    assert (
        len(specimen.text.splitlines())
        == len(told) + 2 + len(told["samples"]) + len(told["states"]) + 2
    )
    again = read_baseline(file)
    assert again.text == specimen.text
    found = checked(again, specimen)
    assert found.verdict == SAME
    assert "All 20 states of 3 samples are the same within 0.1" in found.sentence


@pytest.mark.parametrize(
    "damage",
    [
        lambda told: told | {"format": "normprobe baseline 0"},
        lambda told: {"states": told["states"]},
        lambda told: told | {"states": [{"stage": "nowhere"}]},
        lambda told: told | {"states": [told["states"][0] | {"fingerprint": "one two"}]},
        lambda told: told | {"samples": []},
        lambda told: [told],
    ],
)
def test_a_damaged_file_is_refused(
    damage: Callable[[Any], Any], specimen: Baseline, tmp_path: Path
) -> None:
    file = tmp_path / "baseline.json"
    file.write_text(json.dumps(damage(json.loads(specimen.text))))
    with pytest.raises(NormprobeError, match="cannot be read as a baseline"):
        read_baseline(file)


def changed(of: Baseline, row: int, **values: Any) -> Baseline:
    states = of.states.copy()
    for name, value in values.items():
        states[name] = states[name].astype(object)
        states.loc[row, name] = value
    return replace(of, states=states)


def test_without_evidence_nothing_is_said(specimen: Baseline) -> None:
    first, *rest = specimen.samples
    fewer = replace(specimen, samples={i: specimen.samples[i] for i in rest})
    found = checked(fewer, specimen)
    assert (found.verdict, found.sentence) == (
        UNKNOWN,
        f"Not enough evidence: {first} was not measured in both.",
    )
    other = specimen.samples | {first: {**specimen.samples[first], "picture": "other"}}
    assert "picture" in checked(replace(specimen, samples=other), specimen).sentence
    assert checked(replace(specimen, samples={}), replace(specimen, samples={})).verdict == UNKNOWN
    nothing = replace(specimen, states=specimen.states.iloc[:0])
    empty = checked(nothing, nothing)
    assert empty.verdict == UNKNOWN
    assert empty.readable.rows == []
    assert xml.fromstring(empty.junit).get("errors") == "1"


def test_states_without_a_direction_or_a_number_are_compared_by_what_there_is(
    specimen: Baseline,
) -> None:
    zero = {"norm_mean": 0.0, "norm_geometric_mean": np.nan, "fingerprint": "nan " * 16}
    silent = changed(specimen, 3, **zero)
    assert checked(silent, silent).verdict == SAME
    assert "visual is zero" in checked(silent, specimen).sentence
    assert "visual was zero" in checked(specimen, silent).sentence
    none = {"tokens": 0, "nonfinite": 192, "norm_mean": np.nan, "norm_geometric_mean": np.nan}
    broken = changed(specimen, 3, **none)
    assert checked(broken, broken).verdict == UNKNOWN
    json.loads(broken.text, parse_constant=pytest.fail)  # NaN is no JSON


def test_states_that_are_not_finite_are_no_evidence_but_what_comes_before_is(
    specimen: Baseline,
) -> None:
    last = len(specimen.states) - 1
    broken = changed(specimen, last, nonfinite=1)
    found = checked(broken, specimen)
    assert found.verdict == UNKNOWN
    assert "1 text tokens are not finite at logits, and 0 of the baseline" in found.sentence
    louder = changed(broken, 3, norm_geometric_mean=1.0)
    assert checked(louder, specimen).verdict == DIFFERENT


def test_other_token_ids_are_the_inputs(specimen: Baseline) -> None:
    first = next(iter(specimen.samples))
    other = specimen.samples | {first: {**specimen.samples[first], "prompt": "other"}}
    found = checked(replace(specimen, samples=other), specimen)
    assert found.verdict == DIFFERENT
    assert f"text has other token ids ({first})" in found.sentence


def test_a_stage_of_one_alone_differs(specimen: Baseline) -> None:
    shorter = replace(specimen, states=specimen.states.iloc[:-1])
    found = checked(shorter, specimen)
    assert found.verdict == DIFFERENT
    assert "text has 0 rows, not 3" in found.sentence


@pytest.mark.parametrize("command", ["layers", "interface"])
def test_a_run_of_another_command_is_a_baseline_of_norms(command: str, specimen: Baseline) -> None:
    """The runs are of batches of two: what a batch does to a state is no difference."""
    size = {"batch_size": 2} if command == "layers" else {}
    run = Probe("specimen").measure(command, limit=3, **size)
    before = baseline_of(run)
    found = checked(take_baseline(Probe("specimen"), before), before)
    assert found.verdict == SAME, found.sentence
    assert len(found.table) == {"layers": 14, "interface": 6}[command]
    assert found.table["turned"].isna().all()
    told = f"All {len(found.table)} norms of 3 samples are the same within 0.01 of their length"
    assert found.sentence.startswith(told)
    assert found.sentence.endswith("; directions were not compared.")
    loud = changed(before, 0, norm_geometric_mean=1.0)
    assert checked(specimen, loud).verdict == DIFFERENT


def test_a_run_of_something_else_is_refused() -> None:
    with pytest.raises(NormprobeError, match="is a run of embeddings"):
        baseline_of(Probe("specimen").embeddings())


def logits_by_hand(probe: Probe, sample: Any, text: str = "") -> Any:
    """Logarithms of probabilities by transformers and NumPy, in float64, and the ids."""
    model, builder = probe._source.measured([everything]).model, probe._source.builder
    inputs = inputs_for(model, builder.build([sample]))
    ids = builder.tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    for name, more in (("input_ids", ids), ("attention_mask", torch.ones_like(ids))):
        inputs[name] = torch.cat([inputs[name], more], dim=-1).long()
    with torch.no_grad():
        logits = model(**inputs).logits[0].double().numpy()
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True)), inputs["input_ids"][0]


def test_what_another_dtype_costs_is_what_its_answers_and_next_tokens_say() -> None:
    """Against probabilities of transformers, in float64; an answer ends with its turn."""
    probe, other = Probe("specimen", dtype="bfloat16"), Probe("specimen", dtype="float32")
    costs = against_precision(probe, other, data="scenes", limit=3).costs
    assert costs is not None
    means = costs.set_index(["rounded", "quantity"])
    divergences: list[float] = []
    by_hand: dict[tuple[str, str], list[float]] = {}
    for sample in open_data("scenes", limit=3):
        assert sample.answer is not None
        first = []
        for when, each in (("before", other), ("now", probe)):
            prompt, ids = logits_by_hand(each, sample)
            logs, longer = logits_by_hand(each, sample, f" {sample.answer.text}</s>")
            first.append(prompt[-1])
            places, answer = np.arange(len(ids), len(longer)) - 1, longer[len(ids) :]
            nll = -logs[places, answer].mean()
            right = (logs[places].argmax(-1) == answer.numpy()).all()
            by_hand.setdefault(("nll", when), []).append(nll)
            by_hand.setdefault(("accuracy", when), []).append(float(right))
        divergences.append((np.exp(first[0]) * (first[0] - first[1])).sum())
    assert means.loc[("all", "kl"), "now"] == pytest.approx(np.mean(divergences), rel=1e-2)
    for (name, when), values in by_hand.items():
        assert means.loc[("all", name), when] == pytest.approx(np.mean(values), rel=1e-6)


@pytest.mark.parametrize("how", ["int8-tensor", "fp8-token"])
def test_what_rounding_costs_is_told_by_which_tokens_are_rounded(how: str) -> None:
    """The untouched answers are those of `cause`, and states before the decoder stay."""
    probe = Probe("specimen", dtype="float32")
    found = against_precision(probe, probe, how, data="scenes", limit=3)
    assert found.verdict == MEASURED
    assert found.costs is not None
    cells = found.costs.set_index(["quantity", "rounded"])
    assert set(cells.index) == {
        (quantity, name)
        for quantity in ("kl", "changed", "nll", "accuracy")
        for name in ("all", "visual", "other")
    }
    assert (cells["samples"] == 3).all()
    cause = probe.cause(data="scenes", limit=3, do="scale-to-text").table
    for name in ("nll", "accuracy"):
        (untouched,) = cause.loc[cause["quantity"] == name, "untouched"]
        assert cells.loc[(name, "all"), "before"] == pytest.approx(untouched, rel=1e-5)
    assert (cells.loc["kl", "now"] > 0).all()
    table = found.table.set_index("stage")
    assert (table.loc[["projector_output", "decoder_input"], "turned"] == 0).all()
    assert (table.loc["layer 6", "turned"] > 1e-4).all()
    again = against_precision(probe, probe, how, 1e-4, data="scenes", limit=3)
    assert (again.verdict, first_of(again.table)) == (DIFFERENT, "layer 1")
    assert "look at" not in again.sentence  # rounding is why
    assert (
        take_baseline(probe, data="scenes", limit=3).text
        == take_baseline(Probe("specimen", dtype="float32"), data="scenes", limit=3).text
    )


@pytest.mark.parametrize(("model_type", "how"), [("llava", "int8-tensor"), ("gemma3", "fp8-token")])
def test_rounding_is_told_by_layer_and_group_as_by_hand(model_type: str, how: str) -> None:
    """States and linear layers of a forward in NumPy, in float64."""
    model = tiny_model(model_type).double()
    probe = Probe(model, make_processor(model_type), special_token_ids=SPECIAL_IDS)
    found = against_precision(probe, probe, how, limit=2)
    table = found.table.set_index(["stage", "group"])
    measured = probe._source.measured([everything])
    sums: dict[tuple[str, str, str], Any] = {}
    for sample in open_data("sample", limit=2):
        inputs = inputs_for(model, probe._source.builder.build([sample]))
        answered, answer = _answered(probe, sample, inputs)
        groups = measured.batch(inputs).groups_at(measured.decoder_input(inputs))[0].numpy()
        with linear_by_hand(measured.decoder_layers, how) as seen, torch.no_grad():
            model(**answered)
        for number, layer in enumerate(measured.decoder_layers, start=1):
            for name, module in layer.named_modules():
                for x, rounded in seen.get(module, ()):
                    assert x[0].shape[0] == len(groups) + answer.length
                    for code, group in enumerate(TOKEN_GROUPS):
                        of = np.flatnonzero(groups == code)
                        squares = (x[0][of] ** 2).sum(), ((rounded - x)[0][of] ** 2).sum()
                        key = f"layer {number}", group, name
                        sums[key] = np.add(sums.get(key, 0.0), squares)
    lowest: dict[tuple[str, str], float] = {}
    for (stage, group, _), (signal, noise) in sums.items():
        if signal:
            sqnr = 10 * np.log10(signal / noise)
            lowest[stage, group] = min(sqnr, lowest.get((stage, group), np.inf))
    told = table["input_sqnr"].dropna()
    assert set(told.index) == set(lowest)
    assert [told[key] for key in lowest] == pytest.approx(list(lowest.values()), rel=1e-6)
    worst = min((value, key) for key, value in lowest.items() if key[1] == "visual")
    assert f"visual {significant(worst[0], 2)} dB ({worst[1][0]} " in found.sentence


def test_where_numbers_overflow_nothing_is_told_of_costs() -> None:
    model, processor = tiny_model("llava"), make_processor("llava")
    with torch.no_grad():
        model.model.language_model.layers[1].mlp.down_proj.weight.mul_(1e5)
    half, whole = (
        Probe(each, processor, special_token_ids=SPECIAL_IDS)
        for each in (deepcopy(model).half(), model)
    )
    found = against_precision(half, whole, limit=2)
    assert found.verdict == UNKNOWN
    assert "are not finite at layer 2" in found.sentence
    assert found.costs is None
    one = pd.DataFrame([{"rounded": "visual", "sample_id": "a", "image_hash": "b", "kl": 1.0}])
    assert _told(_costs(one)) == ""


def test_without_visual_tokens_all_are_rounded_or_none() -> None:
    probe = Probe("specimen", dtype="float32")
    costs = against_precision(probe, probe, "int8-token", data="text", limit=1).costs
    assert costs is not None
    assert set(costs["rounded"]) == {"all"}


def test_headroom_is_told_where_it_is_little(specimen: Baseline) -> None:
    assert headroom(specimen) == ""
    facts = {**specimen.facts, "dtype": "float16"}
    assert headroom(replace(specimen, facts=facts)) == ""
    near = changed(replace(specimen, facts=facts), 3, largest=32752.0)
    assert headroom(near) == (
        "Headroom: at projector input visual tokens come within a factor of 2.0 of the largest "
        "float16 number."
    )


def test_a_test_report_has_a_test_a_state(specimen: Baseline) -> None:
    louder = changed(specimen, 3, norm_geometric_mean=1.0)
    same, different, unknown = (
        xml.fromstring(found.junit)
        for found in (
            checked(specimen, specimen),
            checked(louder, specimen),
            checked(replace(specimen, samples={}), specimen),
        )
    )
    states = str(len(specimen.states))
    assert same.attrib == {
        "name": "normprobe check", "tests": states, "failures": "0", "errors": "0",
    }  # fmt: skip
    assert (different.get("tests"), different.get("failures")) == (states, "1")
    assert (unknown.get("tests"), unknown.get("errors")) == ("1", "1")
    assert len(different.findall("testcase/failure")) == 1
