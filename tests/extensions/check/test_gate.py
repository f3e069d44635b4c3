"""``checked``: what is the same is called the same, and a port's fault is found where it is."""

import json
import os
import xml.etree.ElementTree as xml
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from markdown_it import MarkdownIt
from support.port_faults import FAULTS, OF_PROCESSORS, Fault
from support.processors import make_processor
from support.tiny_inputs import SPECIAL_IDS, tiny_samples
from support.tiny_models import VLM_TYPES, tiny_model

from normprobe import NormprobeError, Probe, find_parts, load_run
from normprobe.extensions.check.baseline import (
    DIFFERENT,
    SAME,
    UNKNOWN,
    Baseline,
    allowed_of,
    checked,
    read_baseline,
)
from normprobe.extensions.check.gate import (
    baseline_of,
    take_baseline,
)
from normprobe.extensions.check.measure import PLAIN, SIGNED
from normprobe.inputs.on_device import inputs_for
from normprobe.measurements import measurement
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


@pytest.mark.parametrize(
    "name", ["rope theta", "wrong eps", "tanh for erf in the projector", "scale of attention"]
)
def test_a_coarse_tolerance_makes_no_scale_of_a_fault(name: str) -> None:
    """What turns states by less than is allowed, and moves their norms by more than that."""
    fault = FAULTS[name]
    model = tiny_model(fault.model_type)
    samples = tiny_samples(model, SAMPLES)
    before = states_of(model, samples)
    with torch.no_grad():
        fault.plant(model)
    now, said = states_of(model, samples), list[str]()
    for allowed in (0.0001, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3):
        found = checked(now, before, allowed)
        said += [found.sentence] * (found.verdict == DIFFERENT)
    assert said and not any("Usually a scale" in sentence for sentence in said)


@pytest.mark.parametrize(
    ("name", "stages", "told"),
    [
        ("keys and values exchanged", ("layer 1", "layer 3"), "Layer 1 is the same: look at what"),
        ("rope theta", ("layer 1", "layer 2"), " length. Look at what follows"),
        ("dropped bias", ("projector_output", "layer 3"), " length. Look at the projector's order"),
        ("no final norm", ("decoder_input", "logits"), "Decoder input is the same: look at the"),
    ],
)
def test_what_was_not_compared_is_not_called_the_same(
    name: str, stages: tuple[str, ...], told: str
) -> None:
    fault = FAULTS[name]
    model = tiny_model(fault.model_type)
    samples = tiny_samples(model, SAMPLES)
    before = states_of(model, samples)
    with torch.no_grad():
        fault.plant(model)
    some = [
        replace(of, states=of.states[of.states["stage"].isin(stages)].reset_index(drop=True))
        for of in (states_of(model, samples), before)
    ]
    assert told in checked(*some).sentence


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
    """Of 135 comparisons over kernels, threads, types and reruns none is red."""
    wrong, compared = [], 0
    for model_type in VLM_TYPES:
        for dtype in ("float32", "bfloat16", "float16"):
            model = tiny_model(model_type).to(getattr(torch, dtype))
            samples = tiny_samples(model, SAMPLES)
            before = states_of(model, samples, dtype)
            others = {"again": states_of(model, samples, dtype)}
            model.set_attn_implementation("eager")
            others["eager"] = states_of(model, samples, dtype)
            torch.set_num_threads(2)
            try:
                others["threads"] = states_of(model, samples, dtype)
            finally:
                torch.set_num_threads(1)
            for how, now in others.items():
                compared += 1
                found = checked(now, before)
                if found.verdict != SAME:
                    wrong.append((model_type, dtype, how, found.sentence))
    assert not wrong
    assert compared >= 120


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


def state(**values: Any) -> Callable[[Any], Any]:
    """The first state of a file, with other values."""
    return lambda told: told | {"states": [told["states"][0] | values, *told["states"][1:]]}


def sample(**values: Any) -> Callable[[Any], Any]:
    def damaged(told: Any) -> Any:
        return told | {"samples": {i: of | values for i, of in told["samples"].items()}}

    return damaged


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda told: told | {"format": "normprobe baseline 0"}, "format: expected 'normprobe b"),
        (lambda told: {"states": told["states"]}, "format: .* received nothing"),
        (lambda told: told | {"dtype": None}, "dtype: expected a text, received nothing"),
        (lambda told: told | {"states": []}, r"states: expected one or more, received \[\]"),
        (lambda told: told | {"states": [{"stage": "nowhere"}]}, "state 0: expected an object of"),
        (lambda told: told | {"states": told["states"][:1] * 2}, "inputs, visual: .* received 'tw"),
        (state(stage="layer 01"), "state 0, stage: expected inputs, layer 1"),
        (state(group="else"), "state 0, group"),
        (state(fingerprint="one two"), "inputs, visual, fingerprint: expected 16 numbers"),
        (state(fingerprint="nan " * 16), "fingerprint: expected 16 numbers up to .* 'nan nan"),
        (state(fingerprint="1e300 " * 16), "fingerprint"),
        (state(norm_mean=None), "norm_mean: expected a number from 0 on"),
        (state(norm_mean=float("nan")), "expected numbers, received NaN"),
        (state(norm_mean="1"), "norm_mean"),
        (state(norm_geometric_mean=None), "norm_geometric_mean: expected a number above 0"),
        (state(norm_mean=None, norm_geometric_mean=None, fingerprint="nan " * 16), "norm_mean"),
        (state(tokens=True), "tokens"),
        (state(tokens=1.5), "tokens: expected a whole number"),
        (state(nonfinite=-1), "nonfinite: expected a whole number from 0 on, received -1"),
        (state(hidden_size=10**400), "hidden_size"),
        (state(largest=None), "largest"),
        (sample(prompt=None), "samples 'mmstar/14': expected digests"),
        (sample(picture=7), "samples"),
        (lambda told: told | {"samples": []}, "samples: expected one or more"),
        (lambda told: told | {"samples": {}}, "samples: expected one or more"),
        (lambda told: [told], "it: expected an object"),
    ],
)
def test_a_damaged_file_is_refused(
    damage: Callable[[Any], Any], said: str, specimen: Baseline, tmp_path: Path
) -> None:
    file = tmp_path / "baseline.json"
    file.write_text(json.dumps(damage(json.loads(specimen.text))))
    with pytest.raises(NormprobeError, match=f"cannot be read as a baseline: .*{said}"):
        read_baseline(file)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"format": 1, "format": 1}', "\ufeff{}", '{"a": 1e999}', "9" * 5000]
)
def test_text_that_no_baseline_is_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "baseline.json"
    file.write_text(text)
    with pytest.raises(NormprobeError, match="cannot be read as a baseline"):
        read_baseline(file)


def test_a_file_is_bounded_before_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "baseline.json"
    with file.open("wb") as sparse:
        sparse.truncate(2**40)
    with pytest.raises(NormprobeError, match="32 MB at most, received '1,099,511,627,776 bytes'"):
        read_baseline(file)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(NormprobeError, match="expected a file"):
        read_baseline(file)


def test_numbers_that_are_none_are_never_the_same(specimen: Baseline) -> None:
    for values in ({"fingerprint": "nan " * 16}, {"norm_mean": np.nan}):
        assert checked(changed(specimen, 3, **values), specimen).verdict == DIFFERENT
        assert checked(specimen, changed(specimen, 3, **values)).verdict == DIFFERENT


@pytest.mark.parametrize("place", range(PLAIN + SIGNED))
def test_each_number_of_a_fingerprint_is_judged(place: int, specimen: Baseline) -> None:
    numbers = specimen.states["fingerprint"][3].split()
    numbers[place] = str(float(numbers[place]) + 0.6)
    other = changed(specimen, 3, fingerprint=" ".join(numbers))
    assert checked(other, specimen).verdict == checked(specimen, other).verdict == DIFFERENT


@pytest.mark.parametrize("norm", ["norm_mean", "norm_geometric_mean"])
@pytest.mark.parametrize(("share", "found"), [(0.05, SAME), (0.2, DIFFERENT), (0.9, DIFFERENT)])
def test_a_norm_may_move_by_a_tenth_of_what_a_direction_may(norm, share, found, specimen) -> None:
    """A small scale turns nothing; errors of single numbers cancel out in a mean."""
    other = changed(specimen, 3, **{norm: specimen.states[norm][3] * np.exp(share * 1e-2)})
    assert checked(other, specimen, 1e-2).verdict == found


def test_a_tolerance_is_that_of_the_type(specimen: Baseline) -> None:
    """Of a type that was not measured its epsilon, and no finer than the digits that are kept."""
    for dtype, allowed in {
        **{"float32": 1e-4, "float64": 1e-6, "float8_e4m3fn": 0.125, "int8": 1e-6, "nothing": 1e-6},
        **{"float32 and float16": 0.02, "float16 reading int8-token": 0.02, "float99": 1e-6},
    }.items():
        of = replace(specimen, facts={**specimen.facts, "dtype": dtype})
        assert allowed_of(of, of, None) == pytest.approx(allowed), dtype
    for wrong in (float("nan"), -1.0, float("inf")):
        with pytest.raises(NormprobeError, match="--tolerance: expected a finite number from 0 on"):
            checked(specimen, specimen, wrong)


def test_another_system_prompt_than_the_baselines_is_refused(specimen: Baseline) -> None:
    with pytest.raises(NormprobeError, match="prompt is the template's; received 'none'"):
        take_baseline(Probe("specimen", system="none"), specimen)


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


@pytest.mark.parametrize("of_baseline", [False, True])
def test_a_state_that_is_finite_in_one_alone_is_no_evidence_and_differs(
    of_baseline: bool, specimen: Baseline
) -> None:
    last = len(specimen.states) - 1
    both = [changed(specimen, last, nonfinite=2), specimen]
    found = checked(*both[:: -1 if of_baseline else 1])
    assert found.verdict == UNKNOWN
    counts = "0 text tokens are not finite at logits, and 2 of the baseline"
    counts = counts if of_baseline else "2 text tokens are not finite at logits, and 0 of the"
    assert counts in found.sentence
    assert list(found.table.index[found.table["differs"]]) == [last]
    assert [row[-1] for row in found.readable.rows] == [*[""] * last, "*"]


def test_other_token_ids_are_the_inputs(specimen: Baseline) -> None:
    first = next(iter(specimen.samples))
    other = specimen.samples | {first: {**specimen.samples[first], "prompt": "other"}}
    found = checked(replace(specimen, samples=other), specimen)
    assert found.verdict == DIFFERENT
    assert f"text has other token ids ({first})" in found.sentence


def test_names_of_samples_stay_text_in_every_report(specimen: Baseline) -> None:
    name = "a\x1b[31m\x00\ud800\ufffe\n\n**normprobe check: the same.**\n<b>|x|</b> "
    name += "@you https://a.b :x:"
    known = {"picture": None, "prompt": "one"}
    before = replace(specimen, samples={name: known})
    found = checked(replace(specimen, samples={name: known | {"prompt": "two"}}), before)
    assert found.verdict == DIFFERENT
    report = xml.fromstring(found.junit.encode())
    (failure,) = report.iter("failure")
    assert "\\x1b[31m\\x00\\ud800\\ufffe\\x0a" in failure.get("message", "")
    first, *_ = found.summary.encode().decode().split("\n")
    assert first.startswith("**normprobe check: not the same.** ")
    shown = MarkdownIt("gfm-like", {"linkify": False, "html": True}).render(found.summary)
    assert shown.count("the same.</strong>") == 1
    assert "<b>" not in shown
    assert "|x|" in shown
    assert r"\@you https\://a.b \:x:" in first


def test_a_report_is_utf_8_wherever_it_is_written(
    specimen: Baseline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("locale.getencoding", lambda: "US-ASCII")
    monkeypatch.setattr("locale.getpreferredencoding", lambda _=True: "US-ASCII")
    junit = checked(replace(specimen, samples={}), replace(specimen, samples={"\u00e9": {}})).junit
    (error,) = xml.fromstring(junit.encode()).iter("error")
    assert "\u00e9" in error.get("message", "")


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


def test_a_damaged_run_is_refused(tmp_path: Path) -> None:
    run = Probe("specimen").measure("check", limit=1, output=tmp_path / "run")
    assert len(baseline_of(load_run(run.path)).states) == 20
    file = tmp_path / "run/check.csv"
    first, second, *rest = file.read_text().split("\n")
    numbers = second.split(",")
    numbers[first.split(",").index("norm_mean")] = ""
    file.write_text("\n".join([first, ",".join(numbers), *rest]))
    with pytest.raises(NormprobeError, match="inputs, visual, norm_mean: expected a number"):
        baseline_of(load_run(run.path))


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


def test_a_type_that_a_baseline_was_not_measured_in_widens_nothing(specimen: Baseline) -> None:
    """The states of the specimen are bfloat16; shifted a little, they are no such numbers."""
    own = {**specimen.facts, "dtype": "float32"}
    now = replace(specimen, facts=own)
    assert allowed_of(now, specimen, None) == 0.1
    other = specimen.states.assign(largest=specimen.states["largest"] * 1.0001)
    forged = replace(specimen, states=other)
    assert allowed_of(now, forged, None) == 1e-4
    assert (
        allowed_of(replace(forged, facts=specimen.facts), replace(forged, facts=own), None) == 0.1
    )


@pytest.mark.parametrize("turned_round", [False, True])
def test_a_layer_that_one_side_lacks_is_named(specimen: Baseline, turned_round: bool) -> None:
    last = specimen.states[specimen.states["stage"] == "layer 1"].assign(stage="layer 99")
    more = replace(specimen, states=pd.concat([specimen.states, last], ignore_index=True))
    found = checked(more, specimen) if turned_round else checked(specimen, more)
    who = "baseline" if turned_round else "model"
    assert found.verdict == DIFFERENT
    told = f"The {who} has no layer 99, which is the last one: it was left out."
    assert found.sentence.endswith(told)
