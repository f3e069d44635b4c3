"""``checked``: what is the same is called the same, and a port's fault is found where it is."""

import json
import xml.etree.ElementTree as xml
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.port_faults import FAULTS, OF_PROCESSORS, Fault
from support.processors import make_processor
from support.tiny_inputs import SPECIAL_IDS, tiny_samples
from support.tiny_models import VLM_TYPES, tiny_model

from normprobe import NormprobeError, Probe, find_parts
from normprobe.check import (
    baseline_of,
    take_baseline,
)
from normprobe.inputs.on_device import inputs_for
from normprobe.measurements import measurement
from normprobe.measurements.check.baseline import (
    DIFFERENT,
    SAME,
    UNKNOWN,
    Baseline,
    checked,
    read_baseline,
)
from normprobe.model.measured_model import MeasuredModel

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
