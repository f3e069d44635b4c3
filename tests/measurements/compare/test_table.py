"""Joining, ranking and labelling runs, by tables and records made by hand."""

import numpy as np
import pandas as pd
import pytest

from normprobe.measurements.compare.labels import labels_of, step_of
from normprobe.measurements.compare.table import joined, ranking


def layers(visual: list[float], text: list[float], turns: tuple[float, float]) -> pd.DataFrame:
    rows = []
    for group, norms, turn in (("visual", visual, turns[0]), ("text", text, turns[1])):
        for layer, norm in enumerate(norms):
            angle = turn * layer if layer else np.nan
            rows.append({"layer": layer, "group": group, "norm_mean": norm, "angle_mean": angle})
    rows.append({"layer": 0, "group": "special", "norm_mean": 1e6, "angle_mean": 9.0})
    return pd.DataFrame(rows)


LOUD = layers([80.0, 81.0, 82.0, 83.0], [1.0, 2.0, 4.0, 8.0], (0.1, 0.4))
EVEN = layers([2.0, 2.0, 2.0], [1.0, 1.0, 2.0], (0.1, 1.0))
TEXT_ONLY = LOUD[LOUD["group"] == "text"]


def test_runs_are_joined_in_order_with_their_label_first() -> None:
    table = joined([LOUD, EVEN], ["b", "a"])
    assert table.columns[0] == "run"
    assert table["run"].tolist() == ["b"] * len(LOUD) + ["a"] * len(EVEN)
    pd.testing.assert_frame_equal(table[table["run"] == "b"].drop(columns="run"), LOUD)


def test_layers_rank_by_disparity_at_the_input_and_by_inertia() -> None:
    table = ranking("layers", [EVEN, TEXT_ONLY, LOUD], ["even", "text", "loud"])
    assert table["run"].tolist() == ["loud", "even", "text"]
    assert table["rank"].tolist()[:2] == [1, 2]
    assert pd.isna(table["rank"].iloc[2])
    loud, even, lonely = (row for _, row in table.iterrows())
    assert loud["disparity_input"] == 80.0
    assert loud["disparity_middle"] == 82.0 / 4.0  # after layer 2 of 3
    assert loud["disparity_last"] == 83.0 / 8.0
    assert loud["inertia_gap"] == pytest.approx(np.mean([0.3, 0.6, 0.9]))
    assert even["disparity_middle"] == 2.0  # after layer 1 of 2
    assert even["inertia_gap"] == pytest.approx(np.mean([0.9, 1.8]))
    assert (loud["inertia_rank"], even["inertia_rank"]) == (2, 1)
    assert np.isnan(lonely["inertia_gap"])


def test_interface_ranks_by_the_decoder_input() -> None:
    def table(ratio: float) -> pd.DataFrame:
        return pd.DataFrame(
            {
                "stage": ["decoder_input", "decoder_input", "projector_output"],
                "group": ["visual", "text", "visual"],
                "norm_mean": [ratio * 2, 2.0, 99.0],
                "ratio_to_prompt": [ratio, 1.0, 99.0],
                "ratio_to_table": [ratio / 2, 0.5, 99.0],
            }
        )

    found = ranking("interface", [table(3.0), table(5.0)], ["three", "five"])
    assert found["run"].tolist() == ["five", "three"]
    assert found.loc[0, ["disparity_input", "ratio_to_table", "text_norm"]].tolist() == [5, 2.5, 2]


def test_embeddings_rank_by_how_far_the_loudest_row_stands_out() -> None:
    def table(loudest: float) -> pd.DataFrame:
        rows = {"norm_mean": [2.0, 4.0], "norm_max": [loudest, 5.0], "norm_std": [1.0, 1.0]}
        return pd.DataFrame({"table": ["text", "visual"], "rows": "nonzero_rows", **rows})

    found = ranking("embeddings", [table(4.0), table(6.0)], ["a", "b"])
    assert found["run"].tolist() == ["b", "a"]
    assert found.loc[0, "loudest_ratio"] == 3.0
    assert found.loc[0, "visual_ratio"] == 2.0


@pytest.mark.parametrize(
    ("records", "folders", "expected"),
    [
        (
            [{"model": "org/llava"}, {"model": "/data/other/qwen"}],
            ["x", "y"],
            ["llava", "qwen"],
        ),
        # The same model: what differs tells.
        (
            [{"model": "m", "step": 0}, {"model": "m", "step": 100}],
            ["x", "y"],
            ["step 0", "step 100"],
        ),
        ([{"model": "m", "data": "pope"}, {"model": "m"}], ["x", "y"], ["pope", "run"]),
        ([{"model": "m"}, {"model": "m"}], ["before", "after"], ["before", "after"]),
        # Two facts where one is not enough.
        (
            [
                {"model": "a", "dtype": "float32"},
                {"model": "a", "dtype": "bfloat16"},
                {"model": "b", "dtype": "float32"},
            ],
            ["x", "y", "z"],
            ["a float32", "a bfloat16", "b float32"],
        ),
        ([{"model": "m"}, {"model": "m"}], ["run", "run"], ["m", "m #2"]),
    ],
)
def test_labels_say_what_differs(records, folders, expected) -> None:
    assert labels_of(records, folders) == expected


def test_long_labels_are_cut_and_stay_unique() -> None:
    names = [f"org/a-very-long-name-of-a-model-{end}-instruct-hf" for end in ("7b", "8b", "9b")]
    labels = labels_of([{"model": name} for name in names], ["x"] * 3)
    assert len(set(labels)) == 3
    assert all(len(label) <= 28 for label in labels)


@pytest.mark.parametrize(
    ("record", "folder", "label", "step"),
    [
        ({"step": 0}, "step-000100", "", 0),
        ({"model": "checkpoint-500"}, "layers", "", 500),
        ({"options": {"model": "out/checkpoint-1200"}, "model": "x"}, "layers", "", 1200),
        ({"model": "x"}, "step-000250", "", 250),
        ({"model": "x"}, "global_step40", "", 40),
        ({"model": "checkpoint-500"}, "layers", "7", 7),
        ({"model": "llava-1.5-7b"}, "layers-sample-20260101T000000Z", "before", None),
        ({"model": "footstep-3"}, "layers", "", None),
    ],
)
def test_a_step_comes_from_label_record_or_name(record, folder, label, step) -> None:
    assert step_of(record, folder, label) == step
