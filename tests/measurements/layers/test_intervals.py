"""Intervals of layers.csv against repeating the rows of each drawn image, draw by draw."""

import numpy as np
import pandas as pd
import pytest
from support.slow_bootstrap import SAMPLES, assert_intervals, slow_draws, use_few_draws

from normprobe.measurements.layers.table import layer_intervals, layers_table
from normprobe.schema import (
    GEOMETRIC_RATIOS,
    OTHER_TOKEN_METRICS,
    RATIOS_TO_TEXT,
    SAMPLE_METRICS,
    TEXT,
    TOKEN_METRICS,
    VISUAL,
)
from normprobe.statistics.sample_statistics import statistics_of

LAYER_METRICS = (*TOKEN_METRICS, *OTHER_TOKEN_METRICS)


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    use_few_draws(monkeypatch)


def layer_rows() -> pd.DataFrame:
    random = np.random.default_rng(0)
    made = []
    for sample, image in SAMPLES:
        for group in (VISUAL, TEXT) if image else (TEXT,):
            for layer in range(3):
                metrics = LAYER_METRICS if layer else TOKEN_METRICS[:1]
                values = random.gamma(3.0, 1.0, (len(metrics), random.integers(2, 9)))
                made.append(
                    {"sample_id": sample, "image_hash": image, "layer": layer, "group": group}
                    | {"hidden_size": 16, "dtype": "float32", **statistics_of(values, metrics)}
                    | (dict.fromkeys(SAMPLE_METRICS, random.uniform()) if layer else {})
                    | {"loudest_share": 0.5, "loudest_position": 3, "loudest_id": 7}
                )
    return pd.DataFrame(made)


def test_every_mean_and_ratio_has_its_interval() -> None:
    rows = layer_rows()
    table = layer_intervals(layers_table(rows), rows)
    columns = [column for column in layers_table(rows) if column.endswith("_mean")]
    columns += RATIOS_TO_TEXT.values()
    assert {f"{column}_ci_low" for column in columns} <= set(table.columns)
    keys = ["layer", "group"]
    assert_intervals(table, slow_draws(rows, layers_table, keys), keys, columns)


def test_the_order_of_the_rows_changes_nothing() -> None:
    rows = layer_rows()
    shuffled = rows.sample(frac=1.0, random_state=0)
    pd.testing.assert_frame_equal(
        layer_intervals(layers_table(rows), rows), layer_intervals(layers_table(rows), shuffled)
    )


def test_one_image_has_no_interval() -> None:
    rows = layer_rows().query("image_hash == 'x'")
    table = layer_intervals(layers_table(rows), rows)
    assert table["norm_mean_ci_low"].isna().all()
    assert table["norm_mean"].notna().all()


def test_ratios_are_of_means_over_tokens_of_one_layer() -> None:
    rows = layer_rows()
    table = layer_intervals(layers_table(rows), rows)
    visual = table[table["group"] == VISUAL].set_index("layer")
    text = table[table["group"] == TEXT].set_index("layer")
    for kind, ratios in (("mean", RATIOS_TO_TEXT), ("geometric_mean", GEOMETRIC_RATIOS)):
        for metric, column in ratios.items():
            expected = visual[f"{metric}_{kind}"] / text[f"{metric}_{kind}"]
            np.testing.assert_allclose(visual[column], expected, rtol=1e-12)
    assert visual["norm_ratio_to_text_ci_low"].lt(visual["norm_ratio_to_text"]).all()


def test_without_text_there_is_nothing_to_divide_by() -> None:
    rows = layer_rows().query("group == 'visual'")
    table = layer_intervals(layers_table(rows), rows)
    for column in RATIOS_TO_TEXT.values():
        assert table[[column, f"{column}_ci_low", f"{column}_ci_high"]].isna().all(axis=None)
