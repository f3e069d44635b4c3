"""Watchers: what a measurement looks at besides, where it is asked to."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import pytest
from support.tiny_inputs import tiny_inputs
from support.tiny_models import tiny_model
from torch import Tensor, nn

from normprobe import NormprobeError, Probe, find_parts, measurements
from normprobe.measurements.layers import Layers, also
from normprobe.model.measured_model import MeasuredModel


class Sums:
    """The sum of each state."""

    metrics = ("sum",)

    def watching(self, layers: Sequence[nn.Module]) -> AbstractContextManager[object]:
        return nullcontext()

    def see(self, number: int, x: Tensor, h: Tensor) -> Tensor:
        return h.float().sum(-1).unsqueeze(0)


@pytest.fixture
def layers(monkeypatch: pytest.MonkeyPatch) -> Layers:
    """The layers, with a watcher ``sums`` that nobody has asked for."""
    monkeypatch.setitem(also.BUILT_IN, "sums", lambda model: Sums())
    monkeypatch.setattr(measurements.layers, "WATCHERS", ("sums",))
    return Layers()


@pytest.mark.parametrize("asked", [(), ("sums",)])
def test_a_watcher_that_was_asked_for_adds_columns(layers: Layers, asked: tuple[str, ...]) -> None:
    model = tiny_model("llava")
    measured, inputs = MeasuredModel(model, find_parts(model), []), tiny_inputs(model)
    rows = layers.asking(also=asked).sample_rows(measured, inputs)
    assert ("sum_mean" in rows) == bool(asked)
    plain = layers.sample_rows(measured, inputs)
    assert plain.equals(rows[plain.columns])


def test_other_watchers_are_refused(layers: Layers) -> None:
    with pytest.raises(NormprobeError, match="layers does not measure heads: expected one of sums"):
        layers.asking(also=["sums", "heads"])


def test_a_measurement_without_them_says_so() -> None:
    with pytest.raises(NormprobeError, match="interface does not measure branches"):
        Probe(tiny_model("llava")).interface({}, also="branches")
