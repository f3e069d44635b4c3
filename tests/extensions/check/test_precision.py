"""``against_precision``: what rounding does to states, and what it costs, beside NumPy."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.decoder_by_hand import linear_by_hand
from support.processors import make_processor
from support.tiny_inputs import SPECIAL_IDS
from support.tiny_models import tiny_model

from normprobe import Probe
from normprobe.data.data_set import open_data
from normprobe.extensions.check.baseline import (
    DIFFERENT,
    MEASURED,
    UNKNOWN,
)
from normprobe.extensions.check.gate import take_baseline
from normprobe.extensions.check.precision import (
    _answered,
    _cost,
    _cost_words,
    _costs,
    against_precision,
    headroom,
)
from normprobe.inputs.answers import AnswerTokens
from normprobe.inputs.on_device import inputs_for
from normprobe.model.load.required_tensors import everything
from normprobe.report.readable import significant
from normprobe.schema import TOKEN_GROUPS


def logits_by_hand(probe: Probe, sample: Any, text: str = "") -> Any:
    """Logarithms of probabilities by transformers and NumPy, in float64, and the ids."""
    model, builder = probe.source.measured([everything]).model, probe.source.builder
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
    for name in ("nll", "accuracy"):
        change = np.mean(by_hand[name, "now"]) - np.mean(by_hand[name, "before"])
        assert means.loc[("all", name), "mean"] == pytest.approx(change, abs=1e-6)


@pytest.mark.parametrize("was", [[0.7, 0.2, 0.06, 0.04], [0.5, 0.3, 0.2, 0.0]])
def test_a_divergence_is_a_mean_over_tokens_as_likely_as_they_were(was: list[float]) -> None:
    now = [0.1, 0.25, 0.6, 0.05]
    logs = [torch.tensor([of], dtype=torch.float64).log() for of in (was, now)]
    found = _cost(*logs, AnswerTokens())
    by_hand = sum(p * np.log(p / q) for p, q in zip(was, now, strict=True) if p)
    assert found == {"kl": pytest.approx(by_hand, rel=1e-12), "changed": 1.0}


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
    assert (again.verdict, again.table.loc[again.table["differs"], "stage"].iloc[0]) == (
        DIFFERENT,
        "layer 1",
    )
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
    measured = probe.source.measured([everything])
    sums: dict[tuple[str, str, str], Any] = {}
    for sample in open_data("sample", limit=2):
        inputs = inputs_for(model, probe.source.builder.build([sample]))
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
    assert _cost_words(_costs(one)) == ""


def test_without_visual_tokens_all_are_rounded_or_none() -> None:
    probe = Probe("specimen", dtype="float32")
    found = against_precision(probe, probe, "int8-token", data="text", limit=1)
    assert found.costs is not None
    assert set(found.costs["rounded"]) == {"all"}
    assert "Lowest SQNR of what they read: text " in found.sentence


def test_headroom_is_told_where_it_is_little() -> None:
    specimen = take_baseline(Probe("specimen"), limit=1)
    assert headroom(specimen) == ""
    facts = {**specimen.facts, "dtype": "float16"}
    assert headroom(replace(specimen, facts=facts)) == ""
    states = specimen.states.copy()
    states.loc[3, "largest"] = 32752.0
    near = replace(specimen, facts=facts, states=states)
    assert headroom(near) == (
        "Headroom: at projector input visual tokens come within a factor of 2.0 of the largest "
        "float16 number."
    )
