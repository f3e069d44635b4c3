"""Residual layers that do what Section 3.1 assumes, and layers that do not, measured as a model is.

Each layer adds an update of one size, at one angle to each token, in a random direction: then the
measured cross-modal cosine is that of Eq. 15 up to sampling error.
"""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from normprobe.measurements.layers.assumptions import assumptions_table
from normprobe.measurements.layers.measure import sample_rows
from normprobe.measurements.layers.table import layers_table
from normprobe.measurements.layers.theory import theory_table
from normprobe.model.find.parts import Part, Parts
from normprobe.model.measured_model import MeasuredModel
from normprobe.schema import TEXT, VISUAL

WIDTH, TOKENS, SAMPLES, LAYERS = 1024, 48, 4, 6
SIZE, GEOMETRY = 3.0, 1.4  # of the update, and radians between it and the state
NORMS = {VISUAL: 20.0, TEXT: 4.0}
IMAGE, WORD = 1, 2  # token ids
INITIAL = 0.5  # cross-modal cosine at the decoder input


class Layer(nn.Module):
    """One residual update of every token; ``size``, ``angle`` and ``drift`` are by token."""

    def __init__(self, size: Tensor, angle: Tensor, drift: float, seed: int) -> None:
        super().__init__()
        self.size, self.angle, self.drift = size[:, None], angle[:, None], drift
        self.random = torch.Generator().manual_seed(seed)

    def forward(self, hidden_states: Tensor) -> Tensor:
        along = nn.functional.normalize(hidden_states, dim=-1)
        turn = torch.randn(hidden_states.shape, generator=self.random)
        # Against the assumption: everything turns towards the mean state of the other half.
        other = along.roll(TOKENS, dims=1).reshape(SAMPLES, 2, TOKENS, WIDTH).mean(2)
        turn = nn.functional.normalize(turn, dim=-1)
        turn = turn + self.drift * other.repeat_interleave(TOKENS, dim=1)
        turn = turn - (turn * along).sum(-1, keepdim=True) * along
        turn = nn.functional.normalize(turn, dim=-1)
        return hidden_states + self.size * (self.angle.cos() * along + self.angle.sin() * turn)


class Simulation(nn.Module):
    def __init__(self, layers: list[Layer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, input_ids: Tensor, states: Tensor) -> Tensor:
        """The ids only tell which tokens are visual."""
        for layer in self.layers:
            states = layer(states)
        return states


def states() -> Tensor:
    """Visual tokens first; a shared direction gives all pairs a cosine of about ``INITIAL``."""
    random = torch.Generator().manual_seed(7)
    shared = torch.randn(WIDTH, generator=random)
    own = torch.randn(SAMPLES, 2 * TOKENS, WIDTH, generator=random)
    unit = nn.functional.normalize(INITIAL**0.5 * shared + (1 - INITIAL) ** 0.5 * own, dim=-1)
    return unit * by_token(NORMS[VISUAL], NORMS[TEXT])[:, None]


def by_token(visual: float, text: float) -> Tensor:
    return torch.tensor([visual] * TOKENS + [text] * TOKENS)


def simulated(
    size: tuple[float, float] = (SIZE, SIZE),
    angle: tuple[float, float] = (GEOMETRY, GEOMETRY),
    drift: float = 0.0,
) -> pd.DataFrame:
    """Sample rows of the simulation, visual and text value of each parameter given."""
    layers = [Layer(by_token(*size), by_token(*angle), drift, seed) for seed in range(LAYERS)]
    model = Simulation(layers)
    stack = Part("layers", model.layers)
    parts = Parts(None, None, None, stack, None, image_token_ids=(IMAGE,))
    ids = torch.tensor([[IMAGE] * TOKENS + [WORD] * TOKENS] * SAMPLES)
    inputs = {"input_ids": ids, "states": states()}
    return sample_rows(MeasuredModel(model, parts), inputs, list("abcd"))


@pytest.fixture(scope="module")
def faithful() -> pd.DataFrame:
    return theory_table(simulated())


def predicted_by_hand(norms: dict[str, float]) -> list[float]:
    """Eq. 13, 15 and 16 from the parameters alone."""
    cosine, now, predictions = INITIAL, dict(norms), [INITIAL]
    for _ in range(LAYERS):
        for group, norm in now.items():
            along, across = norm + SIZE * np.cos(GEOMETRY), SIZE * np.sin(GEOMETRY)
            cosine *= np.cos(np.arctan2(across, along))
            now[group] = float(np.hypot(along, across))
        predictions.append(cosine)
    return predictions


def test_eq_15_follows_the_parameters_and_the_measurement(faithful: pd.DataFrame) -> None:
    by_hand = predicted_by_hand(NORMS)
    # One cosine of two random directions deviates by 1 / sqrt(WIDTH); these are means of many.
    error = 3 / np.sqrt(WIDTH * TOKENS)
    predicted = faithful["predicted_cross_modal_cosine_mean"]
    np.testing.assert_allclose(predicted, by_hand, atol=error)
    np.testing.assert_allclose(faithful["cross_modal_cosine_mean"], by_hand, atol=error)
    assert by_hand[-1] < 0.7 * by_hand[0]  # so that an unchanged cosine would not pass


def test_every_assumption_is_said_to_hold(faithful: pd.DataFrame) -> None:
    table = assumptions_table(faithful).set_index("assumption")
    assert set(table["verdict"]) == {"holds"}, table
    assert table.loc["Uniform Update Magnitude", "median"] == pytest.approx(1.0, abs=1e-6)
    assert table.loc["Consistent Update Geometry", "worst"] == pytest.approx(0.0, abs=1e-6)
    assert (table["fails_in"] == "").all()


def test_louder_tokens_turn_less_by_eq_13_and_14() -> None:
    table = layers_table(simulated()).set_index(["layer", "group"])
    for group, norm in NORMS.items():
        expected = np.arctan2(SIZE * np.sin(GEOMETRY), norm + SIZE * np.cos(GEOMETRY))
        assert table.loc[(1, group), "angle_mean"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("violation", "assumption"),
    [
        ({"size": (2 * SIZE, SIZE)}, "Uniform Update Magnitude"),
        ({"angle": (GEOMETRY, 1.0)}, "Consistent Update Geometry"),
        ({"drift": 0.4}, "Random Rotational Direction"),
    ],
)
def test_a_violation_is_detected_and_no_other(
    violation: dict[str, object], assumption: str
) -> None:
    table = assumptions_table(theory_table(simulated(**violation))).set_index("assumption")
    assumed = table[table["source"] == "Section 3.1"]["verdict"]
    assert assumed[assumption] == "fails"
    assert (assumed.drop([assumption, "Modality Norm Imbalance"]) == "holds").all(), table


def test_tokens_that_turn_to_the_other_modality_break_eq_15() -> None:
    table = assumptions_table(theory_table(simulated(drift=0.4))).set_index("assumption")
    row = table.loc["cross-modal cosine"]
    assert row["worst"] > 0.1
    assert row["worst_layer"] == LAYERS
    assert f"{LAYERS}" in row["fails_in"]


def test_equal_norms_are_no_imbalance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NORMS, VISUAL, NORMS[TEXT])
    table = assumptions_table(theory_table(simulated())).set_index("assumption")
    assert table.loc["Modality Norm Imbalance", "verdict"] == "fails"
    lag = theory_table(simulated())["lag_angle_mean"]
    np.testing.assert_allclose(lag, 0.0, atol=1e-5)
