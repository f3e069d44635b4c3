"""cause.csv against plain NumPy over the same sample rows."""

import numpy as np
import pandas as pd
import pytest

from normprobe.errors import NormprobeError
from normprobe.extensions.cause import table as table_module
from normprobe.extensions.cause.table import tables
from normprobe.extensions.cause.words import verdict
from normprobe.runs.run_folder import RunStore

SAMPLES, LAYERS = 24, 3
OUTCOMES = ("nll", "correct", "kl", "changed", "moved", "touched", "added", "greedy")
DONE = [
    ("untouched", np.nan), ("scale", 0.5), ("scale", 8.0), ("freeze", np.nan), ("blank", np.nan),
    ("placebo", 8.0), ("norm-at-layer", np.nan), ("freeze-layer", np.nan),
]  # fmt: skip


def made(seed=0) -> pd.DataFrame:
    """Sample rows of each forward; a sample has as many tokens in each."""
    random = np.random.default_rng(seed)
    rows = []
    for sample in range(SAMPLES):
        tokens = {"visual_tokens": 4.0 + sample, "text_tokens": 30.0 - sample}
        base = random.random()
        for name, dose in DONE:
            key = {"sample_id": f"s{sample}", "image_hash": f"i{sample // 2:02}"}
            key |= {"intervention": name, "dose": dose}
            layers = range(1, LAYERS + 1) if name == "freeze-layer" else [0]
            for layer in layers if name != "norm-at-layer" else []:
                kl = {"untouched": 0.0, "scale": dose, "blank": 2.0}.get(name, 0.5)
                noise = random.random()
                told = {"nll": base + noise, "correct": float(noise < 0.7), "kl": kl * noise}
                moved = {"changed": float(noise > 0.5), "moved": kl * noise, "touched": 4.0}
                moved |= {"added": 0.0, "greedy": float(noise < 0.4)}
                rows.append({**key, "layer": layer, **told, **moved})
            for layer in range(1, LAYERS + 1) if name != "freeze-layer" else []:
                means = random.normal(size=2)
                # Untouched, text turns 7 times as fast.
                ahead = 2.0 if name in ("untouched", "norm-at-layer") else 0.0
                angles = {"visual_angle_log_mean": means[0], "text_angle_log_mean": means[1]}
                angles["text_angle_log_mean"] += ahead * (1.0 if name == "untouched" else 0.4)
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
    [
        ("nll", "nll"),
        ("correct", "accuracy"),
        ("greedy", "greedy_accuracy"),
        ("kl", "kl"),
        ("moved", "moved"),
    ],
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
    differs = quantity in ("nll", "accuracy", "greedy_accuracy")
    assert row["samples"] == SAMPLES - 1
    assert row["value"] == pytest.approx(now.mean(), rel=1e-12)
    assert row["untouched"] == pytest.approx(before.mean() if differs else 0.0, rel=1e-12)
    wanted = (now - before).mean() if differs else now.mean()
    assert row["mean"] == pytest.approx(wanted, rel=1e-9)
    assert row["low"] < row["mean"] < row["high"]


@pytest.mark.parametrize("layer", range(1, LAYERS + 1))
def test_a_frozen_layer_is_compared_with_the_whole_untouched_forward(rows, layer):
    row = told(tables(rows)["cause"], "freeze-layer", "nll", layer)
    now, before = (
        of(rows, "freeze-layer", np.nan, "nll", layer),
        of(rows, "untouched", np.nan, "nll"),
    )
    assert row["mean"] == pytest.approx((now - before).mean(), rel=1e-9)
    assert row["band_low"] <= row["low"]
    assert row["band_high"] >= row["high"]


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
            assert row["mean"] == pytest.approx(row["value"] / row["untouched"], rel=1e-12)
    removed = told(table, "norm-at-layer", "share_removed")
    wanted = 1 - sums["norm-at-layer"] / sums["untouched"]
    assert removed["mean"] == pytest.approx(wanted, rel=1e-12)


def test_an_image_counts_for_the_share_where_it_holds_one_layer(rows, monkeypatch):
    """The intervals of few images are widened by how many there are."""
    counted = []
    real = table_module.interval
    monkeypatch.setattr(
        table_module, "interval", lambda *given: counted.append(given[-1]) or real(*given)
    )
    lost = (rows["image_hash"] == "i00") & (rows["layer"] == 2)
    tables(rows[~(lost & (rows["intervention"] == "norm-at-layer"))])
    assert [SAMPLES // 2] in [np.ravel(images).tolist() for images in counted]
    assert not any(np.ravel(images).tolist() == [SAMPLES // 2 - 1] for images in counted)


def test_what_moves_untouched_rows_further_than_blank_and_placebo_is_off_the_map(rows):
    table = tables(rows)["cause"]
    off = table.groupby(["intervention", "dose"], dropna=False)["off_map"].agg(["min", "max"])
    assert off.loc[("scale", 8.0)].tolist() == [True, True]
    assert off["max"].sum() == 1
    alone = rows[~rows["intervention"].isin(["blank", "placebo"])]
    assert not tables(alone)["cause"]["off_map"].any()  # nothing to compare with


def test_answers_have_no_say_in_it(rows):
    """What harms most, or helps most, would be left out for that."""
    scaled = rows["intervention"] == "scale"
    calm = rows.assign(moved=rows["moved"].where(~scaled, 0.01))
    assert (tables(calm)["cause"].query("quantity == 'kl'")["mean"] > 2).any()
    assert not tables(calm)["cause"]["off_map"].any()


@pytest.mark.parametrize("name", ["freeze", "freeze-layer"])
def test_frozen_tokens_are_treated_alike(rows, name):
    """A frozen layer for itself."""
    chosen = (rows["intervention"] == name) & rows["layer"].isin([0, 2])
    far = rows.assign(moved=rows["moved"].where(~chosen, 1.9))
    off = tables(far)["cause"].query("off_map and intervention != 'scale'")
    assert {*off["intervention"]} == {name}
    assert {*off["layer"]} == ({0, 1, 2, 3} if name == "freeze" else {2})


@pytest.mark.parametrize(("further", "off"), [(1.0, False), (100.0, True)])
def test_text_may_move_as_far_as_by_the_dose_of_the_placebo_that_moves_it_most(rows, further, off):
    faint = rows[rows["intervention"] == "placebo"].assign(dose=0.125)
    faint = faint.assign(moved=faint["moved"] / 100)
    scaled = (rows["intervention"] == "scale") & (rows["dose"] == 0.5)
    moved = rows["moved"].where(~scaled, rows["moved"] * further)
    both = pd.concat([rows.assign(moved=moved), faint], ignore_index=True)
    table = tables(both)["cause"]
    found = told(table, "scale", "moved", dose=0.5)
    ends = [told(table, "placebo", "moved", dose=dose)["high"] for dose in (0.125, 8.0)]
    assert [end < found["mean"] for end in ends] == [True, off]
    assert found["off_map"] == off


@pytest.mark.parametrize(("sign", "end"), [(1.0, "high"), (-1.0, "low")])
def test_a_band_reaches_as_far_as_the_interval_of_one_layer(rows, sign, end):
    """A band lies evenly around an effect, an interval where its draws do: here of few images."""
    chosen = rows["intervention"].isin(["untouched", "freeze-layer"]) & (rows["layer"] <= 1)
    chosen = rows[chosen & rows["nll"].notna()]
    number = chosen["sample_id"].str[1:].astype(int)
    of_images = sign * (np.arange(SAMPLES) / SAMPLES) ** 3
    now = pd.Series((of(rows, "untouched", np.nan, "nll") + of_images)[number], chosen.index)
    now = chosen["nll"].where(chosen["intervention"] != "freeze-layer", now)
    chosen = chosen.assign(nll=now, correct=1.0, image_hash=number.map("{:02}".format))
    row = told(tables(chosen)["cause"], "freeze-layer", "nll", 1)
    assert row["mean"] == pytest.approx(of_images.mean(), rel=1e-12)
    assert row[f"band_{end}"] == row[end]
    assert row["band_low"] <= row["low"]
    assert row["band_high"] >= row["high"]


def test_one_band_holds_all_interventions_and_both_outcomes(rows):
    """Of more of them it is wider: some one would be named by chance."""
    table = tables(rows)["cause"]
    few = rows[rows["intervention"].isin(["untouched", "freeze"])]
    for quantity in ("nll", "accuracy"):
        all_of_them, alone = (
            told(each, "freeze", quantity) for each in (table, tables(few)["cause"])
        )
        assert all_of_them["low"] == alone["low"]
        assert all_of_them["band_low"] < alone["band_low"]
        assert all_of_them["band_high"] > alone["band_high"]
    both, one = (
        told(tables(each)["cause"], "freeze", "nll")
        for each in (few, few.assign(correct=few["correct"] * 0 + 1))
    )
    assert both["band_low"] < one["band_low"] and both["band_high"] > one["band_high"]


def test_shares_and_accuracies_end_at_their_limits(rows):
    right = rows["intervention"].map({"untouched": 1.0, "freeze": 0.0}).fillna(0.0)
    lost = rows.assign(
        correct=right.where(rows["correct"].notna()), changed=rows["changed"] * 0 + 1
    )
    table = tables(lost)["cause"]
    ends = table[table["quantity"] == "accuracy"][["low", "high", "band_low", "band_high"]]
    assert ends.stack().between(-1, 1).all() and (ends["low"] == -1).all()
    ends = table[table["quantity"] == "changed"][["low", "high", "band_low", "band_high"]]
    assert ends.stack().between(0, 1).all()
    assert (table[table["quantity"] == "share_removed"]["high"] <= 1).all()


def test_of_angles_that_hardly_differ_there_is_no_share(rows):
    """A log ratio of 0.02: what is gone of it is noise."""
    random = np.random.default_rng(3)
    noise = 0.02 + 0.1 * random.normal(size=len(rows))
    alike = rows.assign(text_angle_log_mean=rows["visual_angle_log_mean"] + noise)
    table = tables(alike)["cause"]
    assert "share_removed" not in set(table["quantity"])
    assert told(table, "norm-at-layer", "layers_apart")["mean"] == 0


def test_a_share_of_all_is_held_where_nothing_is_shown_to_be_left(rows):
    random = np.random.default_rng(4)
    norms = rows["intervention"] == "norm-at-layer"
    gone = rows["visual_angle_log_mean"] + 0.1 * random.normal(size=len(rows))
    gone = rows["text_angle_log_mean"].where(~norms, gone)
    share = told(
        tables(rows.assign(text_angle_log_mean=gone))["cause"], "norm-at-layer", "share_removed"
    )
    assert share["mean"] < 1.0
    assert share["high"] == 1.0


def test_of_one_picture_there_is_no_interval(rows):
    one = tables(rows.assign(image_hash="i"))["cause"]
    assert one[["low", "high", "band_low"]].isna().all(axis=None)


def test_samples_without_pictures_alone_are_refused(rows):
    numbers = ["nll", "correct", "kl", "changed", "moved", "touched", "added", "greedy"]
    numbers += ["visual_angle_log_mean", "text_angle_log_mean"]
    with pytest.raises(NormprobeError, match="in none a visual token was found"):
        tables(rows.assign(**dict.fromkeys(numbers, np.nan)))


@pytest.mark.parametrize("lost", [np.nan, np.inf])
def test_a_sample_that_overflows_is_left_out_on_both_sides(lost):
    """A true +0.10, and four samples of another level that are lost under the intervention."""
    rows = made()
    untouched = rows["intervention"] == "untouched"
    level = rows["sample_id"].str[1:].astype(int) * 1.0
    rows.loc[rows["nll"].notna(), "nll"] = level[rows["nll"].notna()]
    scaled = (rows["intervention"] == "scale") & rows["nll"].notna()
    rows.loc[scaled, "nll"] += 0.1
    gone = scaled & (level < 4)
    rows.loc[gone, ["nll", "kl"]] = lost
    row = told(tables(rows)["cause"], "scale", "nll", dose=8.0)
    assert row["mean"] == pytest.approx(0.1, rel=1e-9)
    assert row[["low", "high"]].to_list() == pytest.approx([0.1, 0.1], rel=1e-6)
    kept = rows[untouched & rows["nll"].notna() & (level >= 4)]["nll"].mean()
    assert row["untouched"] == pytest.approx(kept) and row["samples"] == SAMPLES - 4
    table = tables(rows)["cause"]
    run = RunStore({"command": "cause"})
    run.write_table("cause", table)
    sentence = str(verdict(run))
    said = "as not to be made there or without a finite answer: scale by 0.5, 8 (4 of 24)."
    assert f"Left out on both sides, {said}" in sentence
    run.write_table("cause", tables(made())["cause"])
    assert "Left out on both sides" not in str(verdict(run))
