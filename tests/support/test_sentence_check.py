"""The checker rejects what a reviewer would, and each for its own reason."""

import math

import pytest

from support.sentence_check import complaints, layer_complaints, own_state, sentences

pytestmark = pytest.mark.slow  # no behaviour of the package

CLOSING = " In brackets: 95 % intervals over images."
NONE = math.nan

GOOD = [
    "Visual tokens are 57 x [49, 66] louder than text tokens." + CLOSING,
    "They are about as loud as text tokens (1.01 x [0.97, 1.05])." + CLOSING,
    "They are at norms not told apart from text tokens (40 x [0.90, 200])." + CLOSING,
    "They are 57 x louder than text tokens. One image, no intervals.",
    "They turn 2.00 to 12.00 x [1.67, 14.00] more slowly in layers 1-3, 5, about as fast (1.00 x "
    "[0.99, 1.02] as fast) in layer 4 and at rates not told apart (1.1 x [0.9, 1.3] as fast) in "
    "layers 6, 8." + CLOSING,
    "They turn more slowly in 5 of 8 layers, from layer 1 to 8 (2.0 to 5.0 x); about as fast in 2 "
    "of 8 layers, from layer 3 to 5 (1.00 x as fast); more quickly in 1 of 8 layers, in layer 6 "
    "(3.0 x); the direction changes 2 times. One image, no intervals.",
    "They turn 3.0 x [2.0, 4.0] more slowly in layers 1-2. In Eq. 13's arithmetic of turning 3.1 x "
    "[2.9, 3.3] more slowly in layers 1-2, norms account for 81 % [74, 88]." + CLOSING,
    "Inertia goes with disparity: rank correlation 0.85 [0.20, 0.98] over 9 models (95 % interval "
    "over models).",
    "They are closer to the word after layers 2-6 (cosine gap 0.010 to 0.030 [0.004, 0.050]) and "
    "not told apart from them after layers 0, 1 (cosine gap 0.001 [-0.002, 0.003])." + CLOSING,
    'The mean norm of text tokens is 22 x their median: "a [1.0, 2.0] x louder" at position 3.',
    "The mean norm of text tokens is 1.60 x their median: the loudest token of a sample holds 19 % "
    "of it.",
    "Visual tokens of turn 2 from 1 of 5 conversations enter 2.0 x quieter than those of turn 1, "
    "and turn about as fast (1.00 x) in layers 1-3. One image, no intervals.",
    "The largest miss of Eq. 15 is 0.27 [-1.90, 2.00], in layer 3." + CLOSING,
]


@pytest.mark.parametrize("text", GOOD)
def test_what_the_rule_allows(text: str) -> None:
    assert complaints(text) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("They are about as loud (40 x [0.90, 200]).", "not inside 0.80 to 1.25"),
        ("They are 1.25 x [1.00, 1.60] louder.", "not above 1"),
        ("They are 1.10 x [1.05, 1.15] louder.", "different, and inside 0.80 to 1.25"),
        ("They are 99.6 x [99, 99.8] louder.", "decimals differ"),
        ("They are 2.0 x [2.1, 2.4] louder.", "out of order"),
        ("They are at norms not told apart (1.10 x [1.05, 1.20]).", "told apart"),
        ("They are at norms not told apart (3.0 x [2.0, 4.0]).", "told apart"),
        ("They are 3.0 x [2.0, 4.0] in layer 1.", "no state is said"),
        (
            "They turn 2.00 x [1.50, 3.00] more slowly in layers 1-3 and about as fast (1.00 x "
            "[0.90, 1.10] as fast) in layer 3.",
            "named twice",
        ),
        (
            "They turn 3.0 x [2.0, 4.0] more slowly in layers 1-4. In Eq. 13's arithmetic of "
            "turning 3.0 x [2.0, 4.0] more slowly in layers 1-2, 4, norms account for 93 %.",
            "other layers",
        ),
        ("Norms explain 93 % [85, 104] of it.", "word for interventions"),
        ("Norms account for -0 % [-3, 2] of it.", "minus zero"),
        ("Norms account for 1 % [-0, 2] of it.", "minus zero"),
        ("One image, no intervals. 3 of 4 assumptions hold in every layer.", "and yet"),
        ("One image, no intervals. They are 2.00 x [1.50, 3.00] louder.", "one image, and yet"),
        ("The paper's theory is about pre-norm. 2 of 3 assumptions hold.", "and yet"),
        (
            "They turn more slowly in 5 of 9 layers, from layer 1 to 9 (2.00 x [1.50, 3.00]); "
            "about as fast in 3 of 9 layers, from layer 2 to 6 (1.00 x [0.90, 1.10] as fast).",
            "do not add up",
        ),
        (
            "They turn "
            + ", ".join(
                f"{layer}.0 x [1.90, 20] more slowly in layer {layer}" for layer in range(2, 7)
            )
            + ".",
            "5 blocks",
        ),
        (
            "Inertia goes with disparity: rank correlation 0.50 [-0.20, 0.90].",
            "ranks say otherwise",
        ),
        ("It is closer to the word after layer 1 (cosine gap 0.01 [-0.01, 0.03]).", "gap says"),
        ("It is higher in layer 1 (gap 0.01).", "gap says"),
        ("They are many times [1.50, 9.0] louder.", "behind no number"),
        (
            "They are 1.21 x [1.10, 1.30] quieter after layer 1 and about as loud (1.03 x "
            "[1.00, 1.10]) after layer 2.",
            "not turned round",
        ),
        ("They are not told apart from text tokens (1.10 x [0.70, 1.50]).", "of what is nothing"),
        ("Image tokens from 5 of 5 samples enter.", "tells nothing"),
        ("Image tokens from 0 of 5 samples enter.", "tells nothing"),
        (
            "It is 1.50 x their median: the loudest token of a sample holds 3 % of it.",
            "carries nothing",
        ),
        ("The largest miss of Eq. 15 is 0.3 [-24.0, 24.0], in layer 1.", "no difference"),
        ("Norms account for nan % of it.", "no number"),
    ],
)
def test_what_it_forbids(text: str, why: str) -> None:
    said = complaints(text if "One image" in text else text + CLOSING)
    assert len(said) == 1, said
    assert why in said[0]


def test_brackets_are_explained_and_so_is_their_absence() -> None:
    (said,) = complaints("They are 57 x [49, 66] louder.")
    assert "brackets of what" in said
    (said,) = complaints("They are 57 x louder.")
    assert "nobody says why" in said


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
    "2.5 to 3.0 x [2.0, 4.0] louder in layers 1-2 and about as loud (1.00 x [0.90, 1.10]) in layer "
    "3 (no ratio in layer 4)"
)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (RIGHT, None),
        (RIGHT.replace("layers 1-2", "layer 1").replace("2.5 to ", ""), "layer 2 is not named"),
        (RIGHT.replace("layer 3", "layers 3-4"), "layer 4 has no ratio"),
        (RIGHT.replace(" (no ratio in layer 4)", ""), "layers without a ratio"),
        (RIGHT.replace("about as loud", "not told apart"), "layer 3 is equal"),
        (RIGHT.replace("[2.0, 4.0]", "[2.4, 4.0]"), "2 is printed as 2.4"),
        (RIGHT.replace("2.5 to ", ""), "2.5 is printed as 3"),
        (RIGHT.replace("3.0 x [2.0, 4.0]", "3.0 x"), "too few"),
    ],
)
def test_every_layer_is_told_by_its_own_bracket(told: str, why: str | None) -> None:
    found = layer_complaints(told, BANDS)
    assert found == [] if why is None else any(why in complaint for complaint in found), found


def test_layers_that_are_told_by_state() -> None:
    ratios = {layer: ((0.5, 1.0, 2.0)[layer % 3], NONE, NONE) for layer in range(1, 7)}
    told = (
        "more slowly in 2 of 6 layers, from layer 3 to 6 (2.0 x); about as fast in 2 of 6 layers, "
        "from layer 1 to 4 (1.00 x); more quickly in 2 of 6 layers, from layer 2 to 5 (2.0 x); the "
        "direction changes 3 times"
    )
    assert layer_complaints(told, ratios) == []
    (said,) = layer_complaints(told.replace("3 times", "2 times"), ratios)
    assert "changes 3 times" in said
    (said,) = layer_complaints(told.replace("layer 3 to 6", "layer 2 to 6"), ratios)
    assert "layers 3 to 6" in said
    (said,) = layer_complaints(told.replace("quickly in 2", "quickly in 1"), ratios)
    assert "2 of 6" in said


def test_sentences_end_at_full_stops_that_end_sentences() -> None:
    assert sentences("By Eq. 15 it is 1.5.\nThen (Eq. 17) more.") == [
        "By Eq. 15 it is 1.5.",
        "Then (Eq. 17) more.",
    ]
