"""Sample rows of ``grounding`` to its tables: means, intervals, and what was left out."""

import numpy as np
import pandas as pd
import pytest
from support.flat import flat, flat_name
from support.slow_bootstrap import SAMPLES, assert_intervals, slow_draws, use_few_draws

from normprobe import NormprobeError
from normprobe.extensions.pictures.grounding.measure import QUANTITIES, SIDES, tables
from normprobe.tidy import select

MEANS = [f"{quantity}_{side}" for quantity in QUANTITIES for side in SIDES]


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    use_few_draws(monkeypatch)


def rows(left_out: str = "") -> pd.DataFrame:
    random = np.random.default_rng(0)
    made = []
    for sample, image in SAMPLES:
        for layer in range(3):
            row = {"sample_id": sample, "image_hash": image, "layer": layer, "left_out": left_out}
            made.append(row | dict(zip(MEANS, random.normal(size=len(MEANS)), strict=True)))
    found = pd.DataFrame(made)
    scores = found["layer"].eq(0) | found["sample_id"].eq("c")
    found.loc[scores, [name for name in MEANS if "score" in name]] = np.nan
    return found


def test_means_are_over_samples_that_have_a_number() -> None:
    table = tables(rows())["grounding"]
    for name in MEANS:
        found = select(table, name)
        layers, samples = ([1, 2], 6) if "score" in name else ([0, 1, 2], 7)
        assert found["layer"].tolist() == layers
        assert found["samples"].tolist() == [samples] * len(layers)
        for layer, mean in zip(layers, found["mean"], strict=True):
            values = [row[name] for _, row in rows().iterrows() if row["layer"] == layer]
            known = [value for value in values if value == value]
            assert mean == pytest.approx(sum(known) / len(known))


def test_every_mean_has_the_interval_of_drawn_images() -> None:
    table = flat(tables(rows())["grounding"])
    columns = {name: flat_name(name, "mean") for name in MEANS}

    def means(drawn: pd.DataFrame) -> pd.DataFrame:
        return drawn.groupby("layer")[MEANS].mean().rename(columns=columns).reset_index()

    slow = slow_draws(rows(), means, ["layer"])
    scores = [name for name in columns.values() if "score" in name]
    cosines = [name for name in columns.values() if name not in scores]
    assert_intervals(table, slow, ["layer"], cosines)
    known = slow._replace(held=slow.held - 1)  # the only sample of an image has none
    assert_intervals(table, known, ["layer"], scores)


def test_samples_that_were_left_out_are_listed_and_not_counted() -> None:
    out = pd.DataFrame(
        [{"sample_id": "h", "image_hash": "w", "layer": 0, "left_out": "no visual token"}]
    )
    found = tables(pd.concat([rows(), out], ignore_index=True))
    assert found["left_out"].to_dict("records") == [{"sample_id": "h", "reason": "no visual token"}]
    pd.testing.assert_frame_equal(found["grounding"], tables(rows())["grounding"])
    assert "left_out" not in tables(rows())


def test_a_run_of_which_all_was_left_out_is_refused() -> None:
    with pytest.raises(NormprobeError, match="no sample could be measured; a: too small"):
        tables(rows("too small"))
