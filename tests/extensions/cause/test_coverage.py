"""How often the intervals of effects hold the truth, and which layer they name."""

from pathlib import Path

import pandas as pd
import pytest
from support.planted import planted, write_pictures
from support.processors import make_processor

from experiments.effects import WORLDS, claims, coverage, null_run
from normprobe import Probe
from normprobe.extensions.cause.effect_intervals import FEWEST_SHOWN, unseen_share

SETS = 60  # of 200 in docs/explanation/statistics.md


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("images", [25, 100, 150])
def test_intervals_hold_the_true_effect(world, images):
    """Or there is none. Where rare images may hide, the sentence says so."""
    found = coverage(world, images, SETS)
    if world == "4 % of images" and images < FEWEST_SHOWN:
        assert (found.loc[["nll", "kl"], "printed"] < 0.5).all()  # most have too few carriers
        found = found.drop(["nll", "kl"])
    missed = (found["below"] + found["above"]) * found["printed"]
    assert (missed <= 0.12).all()  # 5 % and two and a half standard errors
    assert (found["above"] * found["printed"] <= 0.12).all()


def test_what_no_image_shows_may_be_in_one_of_so_many():
    assert FEWEST_SHOWN == 113
    assert unseen_share(25) == pytest.approx(0.1682, abs=1e-4)  # Clopper and Pearson, one-sided
    assert (1 - unseen_share(FEWEST_SHOWN)) ** FEWEST_SHOWN == pytest.approx(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "skewed"])
def test_a_run_without_effects_claims_none(kind):
    """No cost, no gain and no share, of any intervention or dose, in 95 % of runs."""
    said = [null_run(50, seed, kind) for seed in range(60)]
    assert sum(bool(claims(sentence)) for sentence in said) <= 7
    assert all("not shown to turn differently" in sentence for sentence in said[:10])


# --- planted truth -------------------------------------------------------------------------------


def effects_of_freezing(deciding: int | None, seed: int, folder: Path) -> pd.DataFrame:
    """Rows of ``nll`` by layer, the largest effect first."""
    probe = Probe(planted(deciding, seed), make_processor("llava"))
    data = str(write_pictures(folder, 48, seed))
    table = probe.cause(data, do="freeze-layer", batch_size=48).tables["cause"]
    table = table[(table["intervention"] == "freeze-layer") & (table["quantity"] == "nll")]
    return table.sort_values("mean", key=abs, ascending=False, ignore_index=True)


@pytest.mark.slow
def test_the_layer_that_decides_is_found(tmp_path):
    found = 0
    for seed in range(20):
        deciding = 1 + seed % 4
        first = effects_of_freezing(deciding, seed, tmp_path).iloc[0]
        found += first["layer"] == deciding and first["band_low"] > 0
    assert found >= 19


@pytest.mark.slow
def test_where_no_layer_decides_none_is_named(tmp_path):
    named = 0
    for seed in range(20):
        table = effects_of_freezing(None, seed, tmp_path)
        assert (table.set_index("layer").loc[:4, "mean"] != 0).all()  # noise there is
        named += ((table["band_low"] > 0) | (table["band_high"] < 0)).any()
    assert named <= 3  # 95 % bands name one of twenty by chance, four once in a hundred times
