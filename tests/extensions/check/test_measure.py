"""Fingerprints against float64 NumPy: what they say of states, and what they notice."""

from typing import Any

import numpy as np
import pytest
import torch
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs
from support.tiny_models import tiny_model
from xxhash import xxh3_64_intdigest

from normprobe import find_parts
from normprobe.extensions.check.measure import PLAIN, SIGNED, place_of, reduced, signs
from normprobe.measurements import measurement
from normprobe.model.measured_model import MeasuredModel
from normprobe.schema import TOKEN_GROUPS

CHECK = measurement("check")


def fingerprint_of(states: Any, sample: str = "0") -> Any:
    """By hand, in float64, of ``[rows, hidden]``."""
    units = states / np.linalg.norm(states, axis=-1, keepdims=True)
    by_token = signs(xxh3_64_intdigest(sample.encode()), len(states))
    by_number = signs(251208374, states.shape[-1])
    found = []
    for place in range(PLAIN + SIGNED):
        projected = units @ by_number[:, place]
        if place < PLAIN:
            found.append(projected.sum() / len(states))
        else:
            found.append((by_token[:, place] * projected).sum() / len(states) ** 0.5)
    return np.array(found)


def test_signs_are_the_same_for_ever() -> None:
    drawn = signs(251208374, 64)
    assert set(drawn.flatten()) == {-1.0, 1.0}
    first = ["".join("-+"[int(sign > 0)] for sign in row) for row in drawn[:2]]
    assert first == ["----+++---+---+-", "++---++--+---++-"]
    assert abs(drawn.mean()) < 0.1


def states_of_llava() -> tuple[Any, Any, Any]:
    model = tiny_model("llava")
    inputs = tiny_inputs(model)
    found = MeasuredModel(model, find_parts(model), SPECIAL_IDS)
    rows = CHECK.sample_rows(found, inputs, ["0"])
    with torch.no_grad():
        output = model(**inputs, output_hidden_states=True)
    return CHECK.tables(rows, found)["check"], output, found.batch(inputs).prompt_groups[0]


def test_norms_and_fingerprints_are_those_of_the_states() -> None:
    table, output, groups = states_of_llava()
    table = table.set_index(["stage", "group"])
    for stage, state in (
        ("decoder_input", output.hidden_states[0]),
        ("layer 1", output.hidden_states[1]),
        ("layer 2", output.hidden_states[2]),
        ("logits", None),
    ):
        for group in ("visual", "text"):
            if state is None and group == "visual":
                assert (stage, group) not in table.index
                continue
            chosen = groups == TOKEN_GROUPS.index(group)
            states = output.logits[0, -1:] if state is None else state[0, chosen]
            states = states.double().numpy()
            row, norms = table.loc[(stage, group)], np.linalg.norm(states, axis=-1)
            assert row["tokens"] == len(states)
            assert row["norm_mean"] == pytest.approx(norms.mean(), rel=1e-6)
            expected = np.exp(np.log(norms).mean())
            assert row["norm_geometric_mean"] == pytest.approx(expected, rel=1e-6)
            assert row["largest"] == pytest.approx(np.abs(states).max(), rel=1e-6)
            told = [float(number) for number in row["fingerprint"].split()]
            np.testing.assert_allclose(told, fingerprint_of(states), atol=2e-6)


def test_stages_stand_in_the_order_of_the_forward() -> None:
    table, _, _ = states_of_llava()
    assert list(dict.fromkeys(table["stage"])) == [
        "inputs",
        "vision_encoder",
        "projector_input",
        "projector_output",
        "decoder_input",
        *(f"layer {number}" for number in (1, 2, 3)),
        "logits",
    ]
    assert place_of("layer 9") < place_of("layer 10") < place_of("logits")


def apart(first: Any, second: Any) -> float:
    """The distance of directions that fingerprints tell: root mean square over tokens."""
    return float(np.mean((fingerprint_of(first) - fingerprint_of(second))[PLAIN:] ** 2)) ** 0.5


@pytest.mark.parametrize("far", [1e-4, 1e-2, 0.5])
def test_a_fingerprint_tells_how_far_directions_are_apart(far: float) -> None:
    """Over many pairs it is right on average, and seldom off by more than three quarters."""
    random = np.random.default_rng(0)
    told = []
    for _ in range(200):
        states = random.normal(size=(50, 64))
        other = states + far * random.normal(size=states.shape)
        units = [x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (states, other)]
        true = np.mean(np.sum((units[0] - units[1]) ** 2, axis=-1)) ** 0.5
        told.append(apart(states, other) / true)
    assert np.mean(np.square(told)) == pytest.approx(1, abs=0.1)
    assert np.quantile(told, [0.005, 0.995]) == pytest.approx([1, 1], abs=0.75)


def test_rows_that_change_places_or_turn_together_are_noticed() -> None:
    random = np.random.default_rng(0)
    states = random.normal(size=(16, 8))
    turn = np.linalg.qr(random.normal(size=(8, 8)))[0]
    assert apart(states, states[::-1]) > 0.5
    assert apart(states, states @ turn) > 0.5
    assert apart(states, 7 * states) == pytest.approx(0, abs=1e-12)
    moved = fingerprint_of(states) - fingerprint_of(states[::-1])
    assert moved[:PLAIN] == pytest.approx(0, abs=1e-12)  # their mean is the same


def test_zero_huge_and_broken_rows() -> None:
    states = torch.tensor([[0.0, 0], [3e30, 4e30], [torch.inf, 1], [3e-30, 4e-30]])
    found = reduced(states).double().numpy()
    assert found[:, 0] == pytest.approx([0, 5e30, np.inf, 5e-30])
    assert found[:, 1] == pytest.approx([0, 4e30, np.inf, 4e-30])
    assert np.isnan(found[0, 2:]).all()
    assert found[1, 2:] == pytest.approx(found[3, 2:])
    assert np.isfinite(found[1, 2:]).all()
