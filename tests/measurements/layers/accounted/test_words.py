"""What is said of the parts of Eq. 13, at the borders of what may be said."""

import re

import numpy as np
import pandas as pd
import pytest

from normprobe.measurements.layers.accounted import PARTS, accounted_verdict

SHARES = (0.81, 0.12, 0.03, 0.04)
ENDS = ("", "_ci_low", "_ci_high")


def accounted(
    *scopes: str, layers: str = "1-2", ratio: float = 3.1, shares: tuple[float, ...] = SHARES
) -> pd.DataFrame:
    row: dict[str, object] = {"layers": layers, "angle_ratio": ratio}
    row |= {"angle_ratio_ci_low": 0.9 * ratio, "angle_ratio_ci_high": 1.1 * ratio}
    for part, share in zip(PARTS, shares, strict=True):
        row[f"{part}_share"] = share
        row |= {f"{part}_share_ci_low": share - 0.02, f"{part}_share_ci_high": share + 0.02}
    row |= {f"norm_share_absolute{end}": n for end, n in zip(ENDS, (0.7, 0.6, 0.8), strict=True)}
    return pd.DataFrame([{"scope": scope, **row} for scope in ("layer", *scopes)])


def test_the_shares_with_their_intervals() -> None:
    assert accounted_verdict(accounted("slower")) == (
        "In Eq. 13's arithmetic of turning 3.1 x [2.8, 3.4] more slowly in layers 1-2, norms "
        "account for 81 % [79, 83] (70 % [60, 80] where over- and undershoot do not cancel), sizes "
        "of updates for 12 % [10, 14], their directions for 3 % [1, 5], the rest for 4 % [2, 6]."
    )


def test_an_identity_is_no_cause() -> None:
    words = accounted_verdict(accounted("slower")).lower()
    assert not any(word in words for word in ("explain", "why", "cause", "because", "due to"))


@pytest.mark.parametrize(("layers", "several"), [("3", False), ("1-2", True), ("1, 4", True)])
def test_in_one_layer_nothing_can_cancel(layers: str, several: bool) -> None:
    assert ("cancel" in accounted_verdict(accounted("slower", layers=layers))) == several


def test_a_part_that_works_against_it_is_called_that() -> None:
    sentence = accounted_verdict(accounted("slower", shares=(1.3, -0.3, 0.0, 0.0)))
    assert "norms account for 130 % [128, 132] (70 %" in sentence
    assert ", sizes of updates for -30 % [-32, -28], " in sentence
    assert sentence.endswith("; below 0: against it.")


@pytest.mark.parametrize(
    ("share", "interval", "against"),
    [
        (-0.01, (-0.03, 0.01), False),  # an interval that holds 0 works neither way
        (-0.03, (-0.05, -0.01), True),
        (-0.012, (-0.02, -0.003), False),  # printed as 0
        (-0.01, (np.nan, np.nan), True),  # one image
        (-0.004, (np.nan, np.nan), False),
        (0.01, (np.nan, np.nan), False),
    ],
)
def test_what_is_printed_below_0_is_against_it(
    share: float, interval: tuple[float, float], against: bool
) -> None:
    table = accounted("slower", shares=(1.0 - share, share, 0.0, 0.0))
    table[["update_norm_share_ci_low", "update_norm_share_ci_high"]] = interval
    sentence = accounted_verdict(table)
    assert ("against it" in sentence) == against
    assert not re.search(r"-0\b", sentence)


def test_faster_visual_tokens_are_told_by_the_inverse_ratio() -> None:
    sentence = accounted_verdict(accounted("faster", layers="3", ratio=0.5))
    assert sentence.startswith(
        "In Eq. 13's arithmetic of turning 2.00 x [1.82, 2.22] more quickly in layer 3, norms "
    )


def test_slower_and_faster_layers_have_a_sentence_each() -> None:
    slower, faster = accounted("slower"), accounted("faster", layers="3", ratio=0.5)
    sentences = accounted_verdict(pd.concat([slower, faster]))
    assert sentences == f"{accounted_verdict(slower)} {accounted_verdict(faster)}"
    assert sentences.count("In Eq. 13's arithmetic") == 2


@pytest.mark.parametrize(
    ("scope", "ratio", "shown"),
    [("slower", 1.2, True), ("slower", 1.1, False), ("faster", 0.85, True), ("faster", 1.2, False)],
)
def test_no_interval_that_holds_1_is_told_of_slower_layers(
    scope: str, ratio: float, shown: bool
) -> None:
    """Samples without an image have a say in the layers, and none in Eq. 13."""
    sentence = accounted_verdict(accounted(scope, ratio=ratio))
    assert sentence.startswith("In Eq. 13's arithmetic") == shown
    way = {"slower": "more slowly", "faster": "more quickly"}[scope]
    assert sentence.endswith(f"it is not shown that they turn {way} in layers 1-2.") != shown


def test_where_nothing_differs_nothing_is_said() -> None:
    assert accounted_verdict(accounted()) == ""
    assert accounted_verdict(pd.DataFrame(columns=["scope", "layers"])) == ""


def test_one_image_has_no_brackets() -> None:
    table = accounted("slower")
    table[[name for name in table if "_ci_" in name]] = np.nan
    sentence = accounted_verdict(table)
    assert "turning 3.1 x more slowly in layers 1-2, norms account for 81 % (70 % " in sentence
    assert "[" not in sentence
