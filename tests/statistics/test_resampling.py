"""Intervals of the tables against repeating the rows of each drawn image, draw by draw."""

import numpy as np
import pandas as pd
import pytest
from normprobe.analyses import confidence

from normprobe.measurements.interface.intervals import interface_intervals
from normprobe.measurements.interface.table import interface_table
from normprobe.measurements.layers.intervals import layer_intervals
from normprobe.measurements.layers.table import layers_table
from normprobe.schema import DECODER_INPUT, INJECTION, TEXT, TOKEN_METRICS, VISUAL
from normprobe.statistics.bootstrap import draw_weights
from normprobe.statistics.sample_statistics import statistics_of

SAMPLES = [("a", "x"), ("b", "x"), ("c", "y"), ("d", None), ("e", "z"), ("f", "z"), ("g", None)]
UNITS = sorted({image or sample for sample, image in SAMPLES})
LAYER_METRICS = (*TOKEN_METRICS, INJECTION)


DRAWS = 40  # each is a table of its own here


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confidence, "draw_weights", lambda units: draw_weights(units, DRAWS))


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
                    | ({"pooled_cosine": random.uniform()} if layer else {})
                )
    return pd.DataFrame(made)


def repeated(rows: pd.DataFrame, counts: np.ndarray) -> pd.DataFrame:
    unit = rows["image_hash"].fillna(rows["sample_id"])
    parts = [rows[unit == name] for name, n in zip(UNITS, counts, strict=True) for _ in range(n)]
    return pd.concat(parts, ignore_index=True)


def slow_draws(rows: pd.DataFrame, table_of, keys: list[str]) -> pd.DataFrame:
    """The table of every draw, below each other."""
    draws = draw_weights(len(UNITS), DRAWS).astype(int)
    return pd.concat([table_of(repeated(rows, counts)) for counts in draws]).groupby(keys)


def assert_intervals(table: pd.DataFrame, slow, keys: list[str], columns: list[str]) -> None:
    for column in columns:
        expected = slow[column].quantile([0.025, 0.975]).unstack()
        found = table.set_index(keys)
        for end, level in (("ci_low", 0.025), ("ci_high", 0.975)):
            both = pd.concat([found[f"{column}_{end}"], expected[level]], axis=1)
            np.testing.assert_allclose(both.iloc[:, 0], both.iloc[:, 1], rtol=1e-9, err_msg=column)


def test_layers() -> None:
    rows = layer_rows()
    table = layer_intervals(layers_table(rows), rows)
    columns = [column for column in layers_table(rows) if column.endswith("_mean")]
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


def interface_rows(scale: float) -> pd.DataFrame:
    random = np.random.default_rng(1)
    made = [
        {"sample_id": sample, "image_hash": image, "stage": DECODER_INPUT, "group": group}
        | {"hidden_size": 16, "embedding_scale": scale}
        | statistics_of(random.gamma(3.0, 1.0, (1, random.integers(2, 9))), ["norm"])
        for sample, image in SAMPLES
        for group in ((VISUAL, TEXT) if image else (TEXT,))
    ]
    return pd.DataFrame(made)


@pytest.mark.parametrize("scale", [2.0, float("nan")])
def test_interface(scale: float) -> None:
    """With a scale the table's norms are constants; without, the prompts' rows stand for them."""
    embedding = pd.DataFrame(
        {"stage": "text_embedding_table", "group": ["all_rows", "nonzero_rows"], "tokens": 9}
        | {"hidden_size": 16, "norm_mean": [1.0, 1.5], "norm_std": 0.1}
    )
    rows = interface_rows(scale)
    table = interface_intervals(interface_table(rows, embedding), rows)
    at_door = table[table["stage"] == DECODER_INPUT]
    keys = ["stage", "group"]
    slow = slow_draws(
        rows,
        lambda drawn: interface_table(drawn, embedding).query("stage == 'decoder_input'"),
        keys,
    )
    columns = ["norm_mean", "norm_sample_mean", "rms_mean", "ratio_to_table", "ratio_to_prompt"]
    assert_intervals(at_door, slow, keys, columns)
    weights = table[table["stage"] == "text_embedding_table"]
    assert weights["norm_mean_ci_low"].isna().all()
    assert weights["ratio_to_prompt_ci_low"].notna().all()
