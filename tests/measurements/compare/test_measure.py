"""A short name for each compared run, and the training step that it measured."""

from typing import Any

import pytest

from normprobe.measurements.compare.measure import alike, labels_of, step_of


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


def test_attention_by_part_is_one_word_where_the_parts_agree() -> None:
    same = {
        "model": "m",
        "attn_implementation": {"vision_encoder": "sdpa", "decoder_layers": "sdpa"},
    }
    apart = {
        "model": "m",
        "attn_implementation": {"vision_encoder": "sdpa", "decoder_layers": "eager"},
    }
    older = {"model": "m", "attn_implementation": "eager"}
    assert labels_of([same, apart, older], ["a", "b", "c"]) == ["sdpa", "sdpa/eager", "eager"]


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({}, ["same weights"]),
        ({"dtype": "float32"}, []),  # other numbers, whatever they were rounded from
        ({"weight_digests": {"x": "1"}}, ["other weights"]),
        (
            {"weight_digests": {"a": "1", "b": "3"}},
            ["other weights (1 of 2 tensors differ, first b)"],
        ),
    ],
)
def test_weights_are_compared_in_one_type(other: dict[str, Any], told: list[str]) -> None:
    record = {"dtype": "bfloat16", "weight_digests": {"a": "1", "b": "2"}}
    assert alike([record, record | other], ["first", "second"]) == told
