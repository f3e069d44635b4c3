"""What is said of a vision tower, of tables that are made by hand."""

import pandas as pd
import pytest

from normprobe.measurements.layers.tower.words import growth, loud_rows, norms_of_blocks, reading


def table(quantity: str, *means: float, group: str = "visual") -> pd.DataFrame:
    rows = {"layer": range(len(means)), "group": group, "quantity": quantity, "mean": means}
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("group", "modality", "called"),
    [("visual", "vision", "visual patches"), ("audio", "audio", "rows of a sound")],
)
def test_the_block_that_changes_norms_most_is_named(group: str, modality: str, called: str) -> None:
    found = growth(table("norm", 2.0, 2.2, 5.5, 5.0, group=group), modality)
    assert [finding.words for finding in found] == [
        f"In the {modality} tower {called} have a mean norm of 2.000 before the first block and "
        "5.000 behind the last, block 3.",
        "Block 2 alone makes it 2.5 x as large.",
    ]


@pytest.mark.parametrize(
    ("means", "sentences"),
    [
        ((2.0, 3.0), 2),  # one block, which changes it by half: it is named from there
        ((3.0, 2.0), 2),
        ((2.0, 2.9), 1),
        ((2.9, 2.0), 1),
        ((2.0,), 0),
        ((2.0, float("nan")), 0),
        ((2.0, 0.0), 0),
    ],
)
def test_what_hardly_changes_is_not_named(means: tuple[float, ...], sentences: int) -> None:
    found = growth(table("norm", *means), "vision")
    assert len([finding for finding in found if finding.words]) == sentences


def test_which_block_the_projector_reads_is_said_where_it_is_not_the_last() -> None:
    assert reading({"read": [3], "depth": 4}) == (
        "The projector reads block 3 of 4: what follows it is not used."
    )
    assert reading({"read": [1, 4], "depth": 4}) == "The projector reads blocks 1, 4 side by side."
    for nothing in ({"read": [4], "depth": 4}, {"read": [], "depth": 4}, {}):
        assert reading(nothing) == ""


def test_the_block_behind_which_most_patches_are_loud() -> None:
    rows = [table("high_norm_a_picture", 9.0, 0.5, 2.0), table("high_norm", 0.9, 0.01, 0.04)]
    assert loud_rows(pd.concat(rows)) == (
        "Most patches of 3 x the median norm or more are behind block 2: 2.000 a picture or tile, "
        "4.0% of them."
    )
    assert loud_rows(table("high_norm_a_picture", 9.0, 0.0, 0.0)) == ""


@pytest.mark.parametrize(
    ("placement", "said"),
    [
        ("pre: the paper's theory applies", ""),
        (None, ""),
        (
            "post: it does not apply",
            "Norm placement of its blocks: post. The paper's theory is about pre-norm.",
        ),
    ],
)
def test_blocks_that_the_theory_is_not_about(placement: str | None, said: str) -> None:
    assert norms_of_blocks({"norm_placement": placement}) == said
