"""The checker rejects what a reviewer would, and each for its own reason."""

import math

import pytest

from support.sentence_check import (
    complaints,
    layer_complaints,
    numbers_of,
    own_state,
    words_of,
)

pytestmark = pytest.mark.slow  # no behaviour of the package

CLOSING = "[ ]: 95 % interval (bootstrap over images)."
ALONE = "One image, no intervals."
SAME = "About the same: within 0.80 to 1.25, the whole interval if there is one."
NONE = math.nan


def said(*findings: str, headline: str = "Visual tokens enter with 57 x the norm of text.") -> str:
    same = [SAME] * any("about the same" in finding for finding in findings)
    closing = [] if any(ALONE in each or "over models" in each for each in findings) else [CLOSING]
    return "\n- ".join([headline, *findings, *same, *closing])


GOOD = [
    ["Norm of visual tokens at the decoder input: 57 x [49, 66] as large as that of text tokens."],
    ["Norm at the decoder input: about the same as that of text tokens (1.01 x [0.97, 1.05])."],
    ["Norm at the decoder input: inconclusive against that of text tokens (40 x [0.90, 200])."],
    ["Norm at the decoder input: 57 x as large as that of text tokens.", ALONE],
    [
        "Visual tokens turn more slowly than text in layers 1-3, 5: 2.0 to 12.0 x [9.0, 14.0] "
        "(layer 2).",
        "Angle of visual tokens and text tokens: about the same in layer 4 (1.00 x).",
        "Angle of visual tokens and text tokens: inconclusive in layers 6, 8.",
    ],
    ["Visual tokens turn more slowly than text in 5 of 8 layers, from 1 to 8: 2.0 x.", ALONE],
    [
        "Inertia goes with disparity: rank correlation 0.85 [0.20, 0.98] over 9 models (95 % "
        "interval over models)."
    ],
    ['The mean norm of text tokens is 22 x their median: "a [1.0, 2.0] x larger" at position 3.'],
    [
        "The mean norm of text tokens is 1.60 x their median: the loudest token of a sample holds "
        "19 % of it."
    ],
    ["One layer on from the cosine, Eq. 15 misses by up to 0.27 [-1.90, 2.00], in layer 3."],
]


@pytest.mark.parametrize("findings", GOOD, ids=lambda findings: findings[0][:30])
def test_what_the_rule_allows(findings: list[str]) -> None:
    assert complaints(said(*findings)) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("It is about the same (40 x [0.90, 200]).", "not inside 0.80 to 1.25"),
        ("It is 1.25 x [1.00, 1.60] larger.", "not above 1"),
        ("It is 1.10 x [1.05, 1.15] larger.", "different, and inside 0.80 to 1.25"),
        ("It is 99.6 x [99, 99.8] larger.", "decimals differ"),
        ("It is 2.0 x [2.1, 2.4] larger.", "out of order"),
        ("It is inconclusive (1.10 x [1.05, 1.20]).", "and it is not"),
        ("It is inconclusive (3.0 x [2.0, 4.0]).", "and it is not"),
        (
            "They turn more slowly in layers 1-2: 2.0 to 3.0 x [2.0, 4.0] (layer 4).",
            "another layer",
        ),
        ("They turn more slowly in layers 1-2: 0.5 x [0.4, 0.6].", "not above 1"),
        ("Norms explain 93 % [85, 104] of it.", "word for interventions"),
        ("Norms account for -0 % [-3, 2] of it.", "minus zero"),
        ("Norms account for 1 % [-0, 2] of it.", "minus zero"),
        ("Norms account for nan % of it.", "no number"),
        ("It is 3.0 x [2.0, 4.0] larger, or 4.0 x [3.0, 5.0] larger.", "several intervals"),
        ("They turn more slowly in layer 1 and more quickly in layer 2.", "direction flips"),
        ("Freezing costs 1.0 nats and gains 2.0 points.", "direction flips"),
        ("They are many times [1.50, 9.0] larger.", "behind no number"),
        ("Image tokens are in 5 of 5 samples.", "tells nothing"),
        ("Image tokens are in 0 of 5 samples.", "tells nothing"),
        (
            "It is 1.50 x their median: the loudest token of a sample holds 3 % of it.",
            "carries nothing",
        ),
        ("Eq. 15 misses by up to 0.3 [-24.0, 24.0], in layer 1.", "no difference"),
        (" ".join(["word"] * 31) + ".", "31 words"),
        ("It is 1, 2, 3, 4 and 5.", "5 numbers"),
    ],
)
def test_what_it_forbids(text: str, why: str) -> None:
    found = complaints(said(text))
    assert len(found) == 1, found
    assert why in found[0]


@pytest.mark.parametrize(
    ("findings", "why"),
    [
        (["One image judges no assumption.", "Holds in every layer: Eq. 15."], "and yet"),
        (["The paper's theory is about pre-norm.", "Of its assumptions, 2 of 3 hold."], "and yet"),
        ([ALONE, "It is 2.00 x [1.50, 3.00] larger."], "one image, and yet"),
    ],
)
def test_what_findings_forbid_together(findings: list[str], why: str) -> None:
    (found,) = complaints(said(*findings))
    assert why in found


@pytest.mark.parametrize(
    ("headline", "why"),
    [
        (" ".join(["word"] * 26) + ".", "26 words"),
        ("It is 1 x, 2 x and 3 x.", "3 numbers"),
        ("It is so. It is not.", "several sentences"),
        ("It is 2.0 x [1.0, 3.0] of that.", "headline with an interval"),
    ],
)
def test_what_a_headline_may_not(headline: str, why: str) -> None:
    (found,) = complaints(said(headline=headline))
    assert why in found


def test_layers_steps_and_doses_are_no_numbers_of_a_line() -> None:
    line = "It costs 2.0 to 9.0 nats [1.0, 12] in layers 1-3, 5 (layer 2) at step 7 by 0.5, 2."
    assert numbers_of(line) == 1
    assert words_of(line) == 10


def test_brackets_are_explained_and_so_is_their_absence() -> None:
    (found,) = complaints("A headline.\n- It is 57 x [49, 66] larger.")
    assert "brackets of what" in found
    (found,) = complaints("A headline.\n- It is 57 x larger.")
    assert "nobody says why" in found
    (found,) = complaints(f"A headline.\n- It is about the same (1.00 x).\n- {ALONE}")
    assert "nobody says what that is" in found


@pytest.mark.parametrize(
    ("ratio", "state"),
    [
        ((1.3,), "above"),
        ((0.5,), "below"),
        ((1.0,), "equal"),
        ((40, 0.9, 200), "open"),
        ((1.25, 1.001, 1.6), "open"),  # printed, it begins at 1
        ((1.25, 1.006, 1.6), "above"),
        ((0.9, 0.5, 0.997), "open"),
        ((0.9, 0.5, 0.994), "below"),
        ((1, 0.7951, 1.2549), "equal"),
        ((1, 0.79, 1.2), "open"),
        ((1.1, 1.02, 1.2), "equal"),
    ],
)
def test_the_state_of_one_ratio(ratio: tuple[float, ...], state: str) -> None:
    assert own_state(*ratio) == state


BANDS = {1: (3.0, 2.0, 4.0), 2: (2.5, 2.0, 3.0), 3: (1.0, 0.9, 1.1), 4: (NONE, NONE, NONE)}
RIGHT = (
    "It is larger in layers 1-2: 2.5 to 3.0 x [2.0, 4.0] (layer 1).|"
    "Norm: about the same in layer 3 (1.00 x).|"
    "Norm: no ratio in layer 4."
)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (RIGHT, None),
        (RIGHT.replace("layers 1-2", "layer 1"), "layers [1, 2] are above"),
        (RIGHT.replace("layer 3", "layers 3-4"), "layers [3] are equal"),
        (RIGHT.replace("|Norm: no ratio in layer 4.", ""), "layers [4] are unknown"),
        (RIGHT.replace("about the same in layer 3 (1.00 x)", "inconclusive in layer 3"), "[3] are"),
        (RIGHT.replace("[2.0, 4.0]", "[2.4, 4.0]"), "2 is printed as 2.4"),
        (RIGHT.replace("2.5 to ", ""), "2.5 is printed as 3"),
        (RIGHT.replace("3.0 x [2.0, 4.0]", "3.0 x"), "too few"),
        (f"{RIGHT}|Norm: about the same in layer 3 (1.00 x).", "told twice"),
    ],
)
def test_every_layer_is_told_by_its_own_bracket(told: str, why: str | None) -> None:
    found = layer_complaints(told.split("|"), BANDS)
    assert found == [] if why is None else any(why in complaint for complaint in found), found


def test_layers_that_are_counted() -> None:
    ratios = {layer: ((0.5, 1.0)[layer % 2], NONE, NONE) for layer in range(1, 11)}
    told = [
        "They turn more slowly in 5 of 10 layers, from 2 to 10: 2.0 x.",
        "Angle: about the same in 5 of 10 layers, from 1 to 9 (1.00 x).",
    ]
    assert layer_complaints(told, ratios) == []
    for wrong in ("from 1 to 10", "from 2 to 9"):
        (found,) = layer_complaints([told[0].replace("from 2 to 10", wrong), told[1]], ratios)
        assert "are below" in found
