"""How often the intervals of effects hold the truth, and which layer they name."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.planted import planted, write_pictures
from support.processors import make_processor

from normprobe import Probe
from normprobe.measurements.cause.measure import ANGLES, OUTCOMES
from normprobe.measurements.cause.table import tables

#: Logarithms of the angle ratio by layer, untouched and made as loud as text.
BEFORE, AFTER = np.array([2.2, 1.0, 0.5, 0.7]), np.array([0.1, 0.3, -0.2, 0.15])
TRUE = {
    "nll": 0.05,
    "accuracy": 0.05 - 0.12,
    "kl": 0.2,
    "changed": 0.17,
    "text_moved": 0.1,
    "share_removed": 1 - np.abs(AFTER).sum() / np.abs(BEFORE).sum(),
}
DATA_SETS = 80  # of 200: 93 to 97 % with 200 pictures, 90 to 97 % with 25


def simulated(images: int, seed: int) -> pd.DataFrame:
    """Sample rows of one intervention: draws from a population whose effects are ``TRUE``."""
    random = np.random.default_rng(seed)
    nll, chance = random.gamma(0.5, 0.5, images), random.random(images)
    # 12 % of all answers are lost and 5 % won; 60 % of the others are right.
    lost, won = chance < 0.12, (chance >= 0.12) & (chance < 0.17)
    right = random.random(images) < 0.6
    before, after = np.where(won, False, right | lost), np.where(lost, False, right | won)
    moved = TRUE["nll"] + 0.2 * (random.gamma(1.0, 1.0, images) - 1.0)
    kl = random.gamma(0.7, TRUE["kl"] / 0.7, images)
    text_moved = random.gamma(4.0, TRUE["text_moved"] / 4.0, images)
    own = random.normal(0.0, 0.3, images)  # of a sample, in all its layers
    rows = []
    for name, ratios, told in (
        ("untouched", BEFORE, (nll, before, 0 * kl, 0 * kl, 0 * kl)),
        ("scale-to-text", AFTER, (nll + moved, after, kl, lost | won, text_moved)),
    ):
        key = {"intervention": name, "dose": np.nan, "sample_id": np.arange(images).astype(str)}
        key["image_hash"] = key["sample_id"]
        rows.append(pd.DataFrame(key | {"layer": 0} | dict(zip(OUTCOMES, told, strict=True))))
        for layer, ratio in enumerate(ratios, start=1):
            visual = random.normal(-3.0, 0.2, images)
            angles = (visual, 16.0, visual + ratio + own + random.normal(0, 0.2, images), 9.0)
            rows.append(
                pd.DataFrame(key | {"layer": layer} | dict(zip(ANGLES, angles, strict=True)))
            )
    return pd.concat(rows, ignore_index=True).astype(dict.fromkeys(OUTCOMES, float))


@pytest.mark.slow
@pytest.mark.parametrize(("images", "least"), [(25, 0.80), (200, 0.85)])
def test_intervals_hold_the_true_effect(images, least):
    """Of as many pictures as ``scenes`` has as often as they say; of 25 skewed ones less often."""
    held = pd.Series(0, TRUE)
    for seed in range(DATA_SETS):
        table = tables(simulated(images, seed))["cause"].set_index("quantity")
        for name, true in TRUE.items():
            row = table.loc[name]
            held[name] += row["effect_ci_low"] <= true <= row["effect_ci_high"]
    assert (held / DATA_SETS).between(least, 1.0).all()


# --- planted truth -------------------------------------------------------------------------------


def effects_of_freezing(deciding: int | None, seed: int, folder: Path) -> pd.DataFrame:
    """Rows of ``nll`` by layer, the largest effect first."""
    probe = Probe(planted(deciding, seed), make_processor("llava"))
    data = str(write_pictures(folder, 48, seed))
    table = probe.cause(data, do="freeze-layer", batch_size=48).tables["cause"]
    table = table[(table["intervention"] == "freeze-layer") & (table["quantity"] == "nll")]
    return table.sort_values("effect", key=abs, ascending=False, ignore_index=True)


@pytest.mark.slow
def test_the_layer_that_decides_is_found(tmp_path):
    found = 0
    for seed in range(20):
        deciding = 1 + seed % 4
        first = effects_of_freezing(deciding, seed, tmp_path).iloc[0]
        found += first["layer"] == deciding and first["effect_band_low"] > 0
    assert found >= 19


@pytest.mark.slow
def test_where_no_layer_decides_none_is_named(tmp_path):
    named = 0
    for seed in range(20):
        table = effects_of_freezing(None, seed, tmp_path)
        assert (table.set_index("layer").loc[:4, "effect"] != 0).all()  # noise there is
        named += ((table["effect_band_low"] > 0) | (table["effect_band_high"] < 0)).any()
    assert named <= 3  # 95 % bands name one of twenty by chance, four once in a hundred times
