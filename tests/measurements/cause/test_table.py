"""cause.csv against plain NumPy over the same sample rows."""

import numpy as np
import pandas as pd
import pytest

from normprobe.errors import NormprobeError
from normprobe.measurements.cause import table as table_module
from normprobe.measurements.cause.table import tables

SAMPLES, LAYERS = 12, 3
OUTCOMES = ("nll", "correct", "kl", "changed", "text_moved")
DONE = [
    ("untouched", np.nan), ("scale", 0.5), ("scale", 8.0), ("freeze", np.nan), ("blank", np.nan),
    ("placebo", 8.0), ("norm-at-layer", np.nan), ("freeze-layer", np.nan),
]  # fmt: skip


def made(seed=0) -> pd.DataFrame:
    """Sample rows of each forward; a sample has as many tokens in each."""
    random = np.random.default_rng(seed)
    rows = []
    for sample in range(SAMPLES):
        tokens = {"visual_tokens": 4.0 + sample, "text_tokens": 20.0 - sample}
        base = random.random()
        for name, dose in DONE:
            key = {"sample_id": f"s{sample}", "image_hash": f"i{sample // 2}"}
            key |= {"intervention": name, "dose": dose}
            layers = range(1, LAYERS + 1) if name == "freeze-layer" else [0]
            for layer in layers if name != "norm-at-layer" else []:
                kl = {"untouched": 0.0, "scale": dose, "blank": 2.0}.get(name, 0.5)
                noise = random.random()
                told = {"nll": base + noise, "correct": float(noise < 0.7), "kl": kl * noise}
                moved = {"changed": float(noise > 0.5), "text_moved": 0.1 * noise}
                rows.append({**key, "layer": layer, **told, **moved})
            for layer in range(1, LAYERS + 1) if name != "freeze-layer" else []:
                means = random.normal(size=2)
                angles = {"visual_angle_log_mean": means[0], "text_angle_log_mean": means[1]}
                rows.append({**key, "layer": layer, **angles, **tokens})
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return made()


def told(table, name, quantity, layer=0, dose=np.nan) -> pd.Series:
    chosen = table[(table["intervention"] == name) & (table["quantity"] == quantity)]
    chosen = chosen[chosen["layer"] == layer]
    chosen = chosen[chosen["dose"].isna() if np.isnan(dose) else chosen["dose"] == dose]
    assert len(chosen) == 1
    return chosen.iloc[0]


def of(rows, name, dose, column, layer=0) -> np.ndarray:
    chosen = rows[(rows["intervention"] == name) & (rows["layer"] == layer)]
    chosen = chosen[chosen["dose"].isna() if np.isnan(dose) else chosen["dose"] == dose]
    chosen = chosen[chosen["nll" if column in OUTCOMES else "visual_tokens"].notna()]
    return chosen.set_index("sample_id").loc[[f"s{n}" for n in range(SAMPLES)], column].to_numpy()


@pytest.mark.parametrize(("name", "dose"), [(n, d) for n, d in DONE[1:6]])
@pytest.mark.parametrize(
    ("column", "quantity"),
    [("nll", "nll"), ("correct", "accuracy"), ("kl", "kl"), ("text_moved", "text_moved")],
)
def test_outcomes_are_paired_by_sample(rows, name, dose, column, quantity):
    # Without its third sample, as where another picture has other tokens.
    kept = rows[(rows["sample_id"] != "s2") | (rows["intervention"] != name)]
    row = told(tables(kept)["cause"], name, quantity, dose=dose)
    places = np.arange(SAMPLES) != 2
    now, before = (
        of(rows, name, dose, column)[places],
        of(rows, "untouched", np.nan, column)[places],
    )
    differs = quantity in ("nll", "accuracy")
    assert row["samples"] == SAMPLES - 1
    assert row["value"] == pytest.approx(now.mean(), rel=1e-12)
    assert row["untouched"] == pytest.approx(before.mean() if differs else 0.0, rel=1e-12)
    wanted = (now - before).mean() if differs else now.mean()
    assert row["effect"] == pytest.approx(wanted, rel=1e-9)
    assert row["effect_ci_low"] < row["effect"] < row["effect_ci_high"]


@pytest.mark.parametrize("layer", range(1, LAYERS + 1))
def test_a_frozen_layer_is_compared_with_the_whole_untouched_forward(rows, layer):
    row = told(tables(rows)["cause"], "freeze-layer", "nll", layer)
    now, before = (
        of(rows, "freeze-layer", np.nan, "nll", layer),
        of(rows, "untouched", np.nan, "nll"),
    )
    assert row["effect"] == pytest.approx((now - before).mean(), rel=1e-9)
    assert row["effect_band_low"] <= row["effect_ci_low"]
    assert row["effect_band_high"] >= row["effect_ci_high"]


def test_angles_are_geometric_means_over_tokens(rows):
    table = tables(rows)["cause"]
    logs = {}
    for name in ("untouched", "norm-at-layer"):
        for layer in range(1, LAYERS + 1):
            for group in ("visual", "text"):
                means = of(rows, name, np.nan, f"{group}_angle_log_mean", layer)
                tokens = of(rows, name, np.nan, f"{group}_tokens", layer)
                logs[name, layer, group] = np.average(means, weights=tokens)
    sums = {"untouched": 0.0, "norm-at-layer": 0.0}
    for name in sums:
        for layer in range(1, LAYERS + 1):
            ratio = logs[name, layer, "text"] - logs[name, layer, "visual"]
            sums[name] += abs(ratio)
            row = told(table, "norm-at-layer", "angle_ratio", layer)
            column = "value" if name == "norm-at-layer" else "untouched"
            assert row[column] == pytest.approx(np.exp(ratio), rel=1e-12)
            row = told(table, "norm-at-layer", "visual_angle", layer)
            assert row[column] == pytest.approx(np.exp(logs[name, layer, "visual"]), rel=1e-12)
            assert row["effect"] == pytest.approx(row["value"] / row["untouched"], rel=1e-12)
    removed = told(table, "norm-at-layer", "share_removed")
    wanted = 1 - sums["norm-at-layer"] / sums["untouched"]
    assert removed["effect"] == pytest.approx(wanted, rel=1e-12)


def test_an_image_counts_for_the_share_where_it_holds_one_layer(rows, monkeypatch):
    """The intervals of few images are widened by how many there are."""
    counted = []
    real = table_module.interval
    monkeypatch.setattr(
        table_module, "interval", lambda *given: counted.append(given[-1]) or real(*given)
    )
    lost = (rows["image_hash"] == "i0") & (rows["layer"] == 2)
    tables(rows[~(lost & (rows["intervention"] == "norm-at-layer"))])
    assert [SAMPLES // 2] in [np.ravel(images).tolist() for images in counted]
    assert not any(np.ravel(images).tolist() == [SAMPLES // 2 - 1] for images in counted)


def test_a_dose_beyond_blank_and_placebo_is_off_the_map(rows):
    table = tables(rows)["cause"]
    off = table.groupby(["intervention", "dose"], dropna=False)["off_map"].agg(["min", "max"])
    assert off.loc[("scale", 8.0)].tolist() == [True, True]
    assert off["max"].sum() == 1
    alone = rows[~rows["intervention"].isin(["blank", "placebo"])]
    assert not tables(alone)["cause"]["off_map"].any()  # nothing to compare with


@pytest.mark.parametrize(("further", "off"), [(1.0, False), (100.0, True)])
def test_text_may_move_as_far_as_by_the_dose_of_the_placebo_that_moves_it_most(rows, further, off):
    faint = rows[rows["intervention"] == "placebo"].assign(dose=0.125)
    faint = faint.assign(text_moved=faint["text_moved"] / 100)
    scaled = (rows["intervention"] == "scale") & (rows["dose"] == 0.5)
    moved = rows["text_moved"].where(~scaled, rows["text_moved"] * further)
    both = pd.concat([rows.assign(text_moved=moved), faint], ignore_index=True)
    table = tables(both)["cause"]
    found = told(table, "scale", "text_moved", dose=0.5)
    ends = [
        told(table, "placebo", "text_moved", dose=dose)["effect_ci_high"] for dose in (0.125, 8.0)
    ]
    assert [end < found["effect"] for end in ends] == [True, off]
    assert found["off_map"] == off


@pytest.mark.parametrize(
    ("column", "of_images", "end"),
    [
        # Draws without the last three are 0, which has no logarithm: an interval of another scale.
        ("kl", np.arange(SAMPLES).clip(SAMPLES - 4) - SAMPLES + 4.0, "low"),
        # A band lies evenly around an effect, and an interval where its draws do: of one image.
        ("nll", np.arange(SAMPLES) // (SAMPLES - 1) * 1.0, "high"),
    ],
)
def test_a_band_reaches_as_far_as_the_interval_of_one_layer(rows, column, of_images, end):
    chosen = rows[(rows["intervention"] != "freeze-layer") | (rows["layer"] == 1)]
    number = chosen["sample_id"].str[1:].astype(int)
    before = of(rows, "untouched", np.nan, column)
    now = pd.Series((before + of_images)[number], chosen.index)
    now = chosen[column].where(chosen["intervention"] != "freeze-layer", now)
    chosen = chosen.assign(**{column: now, "image_hash": number.map("{:02}".format)})
    row = told(tables(chosen)["cause"], "freeze-layer", column, 1)
    assert row["effect"] == pytest.approx(of_images.mean(), rel=1e-12)
    assert row[f"effect_band_{end}"] == row[f"effect_ci_{end}"]
    assert row["effect_band_low"] <= row["effect_ci_low"]
    assert row["effect_band_high"] >= row["effect_ci_high"]


def test_of_one_picture_there_is_no_interval(rows):
    one = tables(rows.assign(image_hash="i"))["cause"]
    assert one[["effect_ci_low", "effect_ci_high", "effect_band_low"]].isna().all(axis=None)


def test_samples_without_pictures_alone_are_refused(rows):
    numbers = ["nll", "correct", "kl", "changed", "text_moved"]
    numbers += ["visual_angle_log_mean", "text_angle_log_mean"]
    with pytest.raises(NormprobeError, match="none has a picture"):
        tables(rows.assign(**dict.fromkeys(numbers, np.nan)))
