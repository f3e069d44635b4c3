"""What is said of models whose answer to "does inertia cost?" is set by hand."""

import re

import pytest
from support import planted
from support.processors import make_processor

from experiments.effects import claims
from normprobe import Probe

pytestmark = pytest.mark.slow
IMAGES = 48


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    """A run of ``cause`` of a model, on pictures that say A or B."""
    folder = tmp_path_factory.mktemp("pictures")

    def run(model, do=(), images=IMAGES):
        data = str(planted.write_pictures(folder, images, 1))
        return Probe(model, make_processor("llava")).cause(data, do=do, batch_size=images)

    return run


def effect(run, name, quantity="nll", dose=None):
    table = run.tables["cause"]
    rows = table[(table["intervention"] == name) & (table["quantity"] == quantity)]
    rows = rows[rows["layer"] == 0]
    return (rows if dose is None else rows[rows["dose"] == dose]).iloc[0]


def test_an_inert_model_gains_by_turning_and_loses_nothing_by_less_of_it(run_of):
    """Freezing bounds nothing: what inertia costs is 40 times as much."""
    run = run_of(planted.inert(1))
    gained, frozen = effect(run, "scale-to-text"), effect(run, "freeze")
    assert gained["mean"] < -0.3 and gained["band_high"] < 0
    assert abs(frozen["mean"]) < 0.01
    said = str(run.verdict)
    assert "More turning of visual tokens gains " in said
    (gain,) = (each for each in run.verdict.findings if each.name == "more.gains")
    assert gain.numbers["nll"].value == gained["mean"] and "accuracy" in gain.numbers
    assert "not what inertia costs" in said


@pytest.mark.parametrize("name", planted.CASES)
def test_the_four_answers_are_told_apart(run_of, name):
    """As docs/how-to/is-inertia-a-problem.md has them."""
    verdict = run_of(planted.CASES[name]()).verdict
    said, of = str(verdict), {each.name: each.numbers for each in verdict.findings}
    inert, harmful, used = (word in name.split("-") for word in ("inert", "harmful", "used"))
    turned = re.search(r"Text turns [\d.]+ to ([\d.]+) x as fast as visual tokens;", said)
    assert (float(turned[1]) > 20) == inert
    gained = of.get("more.gains", {}).get("nll")
    assert (gained is not None and round(-gained.value, 2) == 0.35) == harmful
    assert ("More turning of visual tokens gains nothing measurable" not in said) == (
        harmful or used
    )
    frozen = of.get("freeze", {}).get("nll")
    assert (frozen is not None and 0.345 < frozen.value < 0.365) == used
    no_effect = "Freezing visual tokens in all layers has no measurable effect on NLL" in said
    assert no_effect == (not used and not harmful)


def test_a_model_that_half_of_its_turning_turns_round_is_told_so(run_of):
    """Freezing costs nothing that is shown, scale 2 nearly all."""
    run = run_of(planted.bump(1))
    assert effect(run, "scale", dose=2.0)["mean"] > 2
    assert effect(run, "freeze")["band_low"] < 0 < effect(run, "freeze")["band_high"]
    assert re.search(
        r"Less turning of visual tokens costs 81\.2 points \[[^]]+\] of accuracy \(scale 2",
        str(run.verdict),
    )


def test_what_is_added_between_layers_is_no_turning_that_freezing_stops(run_of):
    run = run_of(planted.stacked(1))
    assert abs(effect(run, "freeze")["mean"]) < 0.01
    assert effect(run, "blank")["band_low"] > 0
    assert effect(run, "freeze", "added")["mean"] == 1
    assert "Between layers, in 1 places, the model adds to visual tokens" in str(run.verdict)
    assert "Between layers" not in str(run_of(planted.planted(1, 0), ("freeze",)).verdict)


def test_samples_that_overflow_are_left_out_of_every_number(run_of):
    """Those that say A, which is half of them."""
    run = run_of(planted.overflowing(1), ("scale", "freeze"))
    for quantity in ("nll", "accuracy", "kl", "changed"):
        row = effect(run, "scale", quantity, 8.0)
        assert row["samples"] == 23
        assert row["mean"] == pytest.approx(0.0, abs=1e-3)
    assert "without a finite answer: scale by 4, 8 (25 of 48)." in str(run.verdict)
    assert claims(str(run.verdict)) == []


def test_where_nothing_decides_nothing_is_claimed(run_of):
    """Eight models whose visual updates are noise: one of them in twenty may be named."""
    said = [
        claims(
            str(run_of(planted.planted(None, seed), ("scale", "scale-to-text", "freeze")).verdict)
        )
        for seed in range(8)
    ]
    costs = [[claim for claim in of if not claim.startswith("removes")] for of in said]
    assert sum(map(bool, costs)) <= 1
