"""What is said of branches: each against text tokens, with its layers and intervals."""

import pandas as pd

from normprobe.measurements.layers.branches import branches_verdict


def rows(branch: str, group: str, *layers: tuple[float, float], spread: float = 0.1) -> list[dict]:
    """One row a layer: how large updates are, and how fast tokens turn, against text."""
    return [
        {"layer": number, "branch": branch, "group": group}
        | {
            f"{metric}_geometric_ratio_to_text{end}": value * factor
            for metric, value in (("update_norm", size), ("angle", turn))
            for end, factor in (("", 1), ("_band_low", 1 - spread), ("_band_high", 1 + spread))
        }
        # Neither arithmetic means nor the interval of one layer alone are told.
        | {
            f"{metric}_{kind}": 77.0
            for metric in ("update_norm", "angle")
            for kind in ("ratio_to_text", "geometric_ratio_to_text_ci_low")
        }
        for number, (size, turn) in enumerate(layers, start=1)
    ]


def test_each_branch_has_its_sentence() -> None:
    made = rows("attention", "visual", (1.0, 0.5), (1.0, 0.25))
    made += rows("mlp", "visual", (3.0, 0.1), (1.0, 1.0)) + rows("mlp", "text", (1, 1), (1, 1))
    assert branches_verdict(pd.DataFrame(made)) == (
        "Against text tokens, what the attention adds to visual tokens is about as large (1.00 x "
        "[0.90, 1.10]) in layers 1-2, and it turns them 2.00 to 4.00 x [1.82, 4.44] more slowly in "
        "layers 1-2. What the MLP adds to visual tokens is 3.0 x [2.7, 3.3] larger in layer 1 and "
        "about as large (1.00 x [0.90, 1.10]) in layer 2, and it turns them 10.0 x [9.1, 11.1] "
        "more slowly in layer 1 and about as fast (1.00 x [0.90, 1.10]) in layer 2."
    )


def test_without_text_or_without_visual_tokens_nothing_is_said() -> None:
    alone = rows("mlp", "visual", (float("nan"), float("nan")))
    assert branches_verdict(pd.DataFrame(alone)) == ""
    assert branches_verdict(pd.DataFrame(rows("mlp", "text", (1, 1)))) == ""


def test_a_band_that_holds_1_and_more_tells_nothing_apart() -> None:
    made = rows("mlp", "visual", (1.5, 0.5), (1.5, 0.9), spread=0.4)
    assert branches_verdict(pd.DataFrame(made)) == (
        "Against text tokens, what the MLP adds to visual tokens is not told apart (1.50 x "
        "[0.90, 2.10]) in layers 1-2, and it turns them 2.00 x [1.43, 3.33] more slowly in layer 1 "
        "and at rates not told apart (0.90 x [0.54, 1.26]) in layer 2."
    )
