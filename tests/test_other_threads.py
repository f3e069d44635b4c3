"""Beside other threads: a server on the same model, a training, a second probe."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from threading import Event, current_thread
from typing import Any

import pandas as pd
import pytest
import torch
from support.processors import make_processor
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs
from support.tiny_models import tiny_model
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from normprobe import NormprobeError, Probe, align_norms
from normprobe.data.data_set import open_data
from normprobe.hooks import observing
from normprobe.run import Run

pytestmark = pytest.mark.usefixtures("unrendered")

ANSWERED_WITHIN = 20.0  # seconds, else threads wait for each other


@cache
def inputs() -> Any:
    return tiny_inputs(tiny_model("llava"))


def sample() -> Any:
    return next(iter(open_data("sample", limit=1)))


#: Whatever a probe does to a model in memory: hooks, operations that are followed, replaced
#: forwards, random numbers, a norm for a while, attention functions.
MEASURED: dict[str, Callable[[Probe], Run]] = {
    "layers": lambda probe: probe.layers(inputs(), also="branches,massive"),
    "verified": lambda probe: probe.layers(inputs(), verify=True),
    "aligned": lambda probe: probe.layers(inputs(), align="table"),
    "interface": lambda probe: probe.interface(inputs()),
    "attention": lambda probe: probe.attention(sample()),
    "cause": lambda probe: probe.cause(limit=1, do="scale-to-text,gain,freeze,norm-at-layer"),
    "grounding": lambda probe: probe.grounding(limit=1),
}


@pytest.fixture
def model() -> nn.Module:
    return tiny_model("llava").eval()


def probe_of(model: nn.Module) -> Probe:
    return Probe(model, make_processor("llava"), special_token_ids=SPECIAL_IDS)


@pytest.fixture
def server() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1, "server") as thread:
        yield thread


@torch.no_grad()
def answer(model: nn.Module) -> Tensor:
    logits: Tensor = model(**inputs()).logits
    return logits


def assert_same(run: Run, expected: Run) -> None:
    """The rows of the samples tell all; attention has none."""
    rows, wanted = (r.table if r.samples.empty else r.samples for r in (run, expected))
    pd.testing.assert_frame_equal(rows, wanted, check_exact=True)


@contextmanager
def meanwhile(model: nn.Module, at: str, thread: str, act: Callable[[], None]) -> Iterator[None]:
    """Do something each time that a thread is about to run modules of a name."""

    def here(*_: Any) -> None:
        if current_thread().name.startswith(thread):
            act()

    modules = [module for name, module in model.named_modules() if name.endswith(at)]
    handles = [module.register_forward_pre_hook(here) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize(
    ("measured", "carries_a_norm"), [*((name, False) for name in MEASURED), ("aligned", True)]
)
def test_a_server_answers_inside_each_layer_that_is_measured(
    measured: str, carries_a_norm: bool, model: nn.Module, server: ThreadPoolExecutor
) -> None:
    if carries_a_norm:
        align_norms(model, 5.0)
    alone, expected = MEASURED[measured](probe_of(model)), answer(model)
    answers: list[Tensor] = []

    def serve() -> None:
        answers.append(server.submit(answer, model).result(ANSWERED_WITHIN))

    with meanwhile(model, "layers.0.self_attn", "MainThread", serve):
        run = MEASURED[measured](probe_of(model))
    assert len(answers) > 1
    assert all(torch.equal(logits, expected) for logits in answers)
    assert_same(run, alone)
    assert torch.equal(answer(model), expected)


@pytest.mark.parametrize("measured", MEASURED)
def test_a_measurement_begins_and_ends_inside_a_forward_of_a_server(
    measured: str, model: nn.Module, server: ThreadPoolExecutor
) -> None:
    alone, expected = MEASURED[measured](probe_of(model)), answer(model)
    inside, measured_it = Event(), Event()

    def pause() -> None:
        inside.set()
        assert measured_it.wait(ANSWERED_WITHIN)

    with meanwhile(model, "layers.0.self_attn", "server", pause):
        answered = server.submit(answer, model)
        assert inside.wait(ANSWERED_WITHIN)
        run = MEASURED[measured](probe_of(model))
        measured_it.set()
        assert torch.equal(answered.result(ANSWERED_WITHIN), expected)
    assert_same(run, alone)


def side_by_side(*loops: Callable[[], None]) -> None:
    """Run loops in threads that take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        with ThreadPoolExecutor(len(loops)) as threads:
            ended: list[Future[None]] = [threads.submit(loop) for loop in loops]
            for each in ended:
                each.result()
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("times", [3, pytest.param(200, marks=pytest.mark.slow)])
def test_a_server_beside_a_probe(times: int, model: nn.Module) -> None:
    probe, expected = probe_of(model), answer(model)
    alone = probe.layers(inputs())
    done = Event()

    def serve() -> None:
        while not done.is_set():
            assert torch.equal(answer(model), expected)

    def measure() -> None:
        try:
            for _ in range(times):
                assert_same(probe.layers(inputs()), alone)
        finally:
            done.set()

    side_by_side(serve, measure)


@pytest.mark.parametrize("times", [2, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("probes", [1, 2])
def test_two_threads_measure_one_model(probes: int, times: int, model: nn.Module) -> None:
    model.train()  # each switches it to evaluation, and back
    made = [probe_of(model) for _ in range(probes)]
    alone = probe_of(model).layers(inputs())
    aligned = probe_of(model).layers(inputs(), align="table")

    def measure() -> None:
        for _ in range(times):
            assert_same(made[0].layers(inputs()), alone)

    def measure_aligned() -> None:
        for _ in range(times):
            assert_same(made[-1].layers(inputs(), align="table"), aligned)

    side_by_side(measure, measure_aligned)
    assert all(module.training for module in model.modules())


def test_two_threads_watch_the_attention_of_two_models() -> None:
    functions = dict(ALL_ATTENTION_FUNCTIONS)
    models = [tiny_model("llava", seed).eval() for seed in (0, 1)]
    alone = [probe_of(model).attention(sample()) for model in models]

    def measured(place: int) -> Callable[[], None]:
        return lambda: assert_same(probe_of(models[place]).attention(sample()), alone[place])

    side_by_side(measured(0), measured(1))
    assert dict(ALL_ATTENTION_FUNCTIONS) == functions


# --- a model in training -----------------------------------------------------------------------


class WithDropout(nn.Module):
    """Tells in which mode each forward ran."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.modes: dict[str, bool] = {}

    def forward(self, x: Tensor) -> Tensor:
        self.modes[current_thread().name] = self.dropout.training
        return self.dropout(x)  # type: ignore[no-any-return]


def test_a_training_step_waits_until_the_modes_are_back(server: ThreadPoolExecutor) -> None:
    model = WithDropout().train()
    with observing(model):
        step = server.submit(model, torch.ones(4))
        model(torch.ones(4))
        assert not step.done()
    step.result(ANSWERED_WITHIN)
    assert list(model.modes.values()) == [False, True]
    assert not model._forward_pre_hooks


class Stubborn(nn.Dropout):
    """As towers that are frozen by taking ``train`` away, which is what eval() calls."""

    def train(self, mode: bool = True) -> "Stubborn":
        return self


def test_a_part_that_eval_does_not_reach_is_evaluated() -> None:
    model = WithDropout()
    model.dropout = Stubborn(0.5)
    with observing(model):
        assert torch.equal(model(torch.ones(64)), torch.ones(64))
    assert model.dropout.training


def test_a_training_that_begins_while_a_model_is_measured_is_an_error(
    model: nn.Module, server: ThreadPoolExecutor
) -> None:
    def begin() -> None:
        server.submit(model.train).result(ANSWERED_WITHIN)

    with (
        meanwhile(model, "layers.0.self_attn", "MainThread", begin),
        pytest.raises(NormprobeError, match="switched to training while it was measured"),
    ):
        probe_of(model).layers(inputs())
    assert model.training  # as the other thread wants it
