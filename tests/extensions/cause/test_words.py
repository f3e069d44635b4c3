"""What is said of cause.csv rests on its bands, and names its controls."""

import re

import numpy as np
import pandas as pd
import pytest
from support.made_cause import ACCURACY, NLL, cause, row

from normprobe.extensions.cause.caveats import OPENED_BY_A_NORM
from normprobe.extensions.cause.words import verdict
from normprobe.model.find.norms import WITHOUT_INPUT_NORM
from normprobe.runs.run_folder import RunStore
from normprobe.tidy import BAND, INTERVAL


def said(table: pd.DataFrame, placement: str = "") -> str:
    return str(verdict(store(table, placement)))


def store(table: pd.DataFrame, placement: str = "") -> RunStore:
    run = RunStore({"command": "cause", "norm_placement": placement})
    run.write_table("cause", table)
    return run


def frozen(
    nll: float, half: float, accuracy: float = 0.0, half_share: float = 0.01
) -> pd.DataFrame:
    """cause.csv of one intervention."""
    return pd.DataFrame(
        [
            row("freeze", "nll", NLL + nll, nll, half, NLL),
            row("freeze", "accuracy", ACCURACY + accuracy, accuracy, half_share, ACCURACY),
        ]
    )


def at_layers(*effects: tuple[float, float, float], quantity: str = "nll") -> pd.DataFrame:
    """cause.csv of layers frozen one by one: effect and its band."""
    rows = [
        row("freeze-layer", quantity, effect, effect, 0.0001, layer=layer)
        | {"band_low": low, "band_high": high}
        for layer, (effect, low, high) in enumerate(effects, start=1)
    ]
    return pd.DataFrame(rows)


def share(value: float, half: float) -> pd.DataFrame:
    """The made table with another share that norms remove."""
    table = cause()
    chosen = (table["quantity"] == "share_removed") & (table["intervention"] == "norm-at-layer")
    table.loc[chosen, ["mean", "low", "high"]] = [value, value - half, value + half]
    return table


@pytest.mark.parametrize(
    ("value", "half", "expected"),
    [
        (0.83, 0.03, "That removes 83 % [80, 86] of the difference in turning, in the 6 of 6"),
        (0.02, 0.03, "That removes an inconclusive share of the difference: 2 % [-1, 5], in"),
        (-0.4, 0.1, "That removes none of the difference, it adds to it: -40 % [-50, -30], in"),
        # Ends that print as 0 are no proof.
        (0.03, 0.029, "That removes an inconclusive share of the difference: 3 % [0, 6], in"),
    ],
)
def test_norms_remove_a_share_where_it_is_shown(value: float, half: float, expected: str) -> None:
    told = said(share(value, half))
    assert expected in told
    assert "At the decoder input, with all that follows: 92 % [90, 94]." in told
    assert told.startswith("Matching norms removes 83 % of") == (value == 0.83)


def test_of_no_difference_there_is_no_share() -> None:
    table = cause()
    table.loc[table["quantity"] == "layers_apart", "mean"] = 0.0
    told = said(table[table["quantity"] != "share_removed"])
    assert "text and visual tokens are not shown to turn differently." in told
    assert "remove" not in told


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((0.047, 0.029, -0.085, 0.05), ["costs 8.5 points [3.5, 13.5] of accuracy."]),
        (
            (0.047, 0.029, -0.005, 0.01),
            [
                "costs 0.047 nats [0.018, 0.076].",
                "has no measurable effect on accuracy (-0.5 points [-1.5, 0.5]).",
            ],
        ),
        (
            (0.004, 0.009),
            ["has no measurable effect on NLL or accuracy (0.004 nats [-0.005, 0.013])."],
        ),
        ((-0.05, 0.02, 0.05, 0.02), ["gains 5.0 points [3.0, 7.0] of accuracy."]),
    ],
)
def test_what_freezing_costs_is_said_to_be_no_bound(
    numbers: tuple[float, ...], expected: list[str]
) -> None:
    told = said(frozen(*numbers)).splitlines()
    assert told[1 : 1 + len(expected)] == [
        f"- Freezing visual tokens in all layers {each}" for each in expected
    ]
    worth = "- Freezing tells what turning is worth as the model is, not what inertia costs."
    assert (worth in told) == ("gains" not in expected[0])


def test_outcomes_that_say_the_same_are_one_finding_with_both_numbers() -> None:
    (finding, *_) = verdict(store(frozen(0.047, 0.029, -0.085, 0.05))).findings
    assert finding.name == "freeze"
    assert {of: number.value for of, number in finding.numbers.items()} == {
        "nll": 0.047,
        "accuracy": -0.085,
    }


def test_three_outcomes_that_say_the_same_are_a_list() -> None:
    own = pd.DataFrame([row("freeze", "greedy_accuracy", ACCURACY, 0.0, 0.01, ACCURACY)])
    told = said(pd.concat([frozen(0.0, 0.01), own], ignore_index=True))
    listed = "no measurable effect on NLL, accuracy or accuracy of its own answers"
    assert listed in told and " or accuracy or " not in told


def test_layers_are_named_by_their_band_not_by_their_interval() -> None:
    told = said(at_layers((0.02, 0.01, 0.03), (0.02, -0.01, 0.05), (-0.03, -0.04, -0.02)))
    assert "in one layer costs 0.020 nats [0.010, 0.030] in layer 1." in told
    assert "in one layer has no measurable effect on NLL (0.020 nats [-0.010, 0.050]) in la" in told
    assert "in one layer gains 0.030 nats [0.020, 0.040] in layer 3." in told


# --- does inertia cost answers? ------------------------------------------------------------------


def dosed(*doses: tuple[str, float, float, float, float]) -> pd.DataFrame:
    """cause.csv of doses: name, dose, the visual angle's factor, NLL, and half of its band."""
    rows = []
    for name, dose, angle, nll, half in doses:
        more = {"dose": dose}
        rows.append(row(name, "visual_angle", angle, angle, 0, 1.0, layer=1, **more))
        rows.append(row(name, "nll", NLL + nll, nll, half, NLL, **more))
        rows.append(row(name, "accuracy", ACCURACY - nll, -nll, half, ACCURACY, **more))
    return pd.DataFrame(rows)


def test_what_inertia_costs_is_what_restored_turning_gains() -> None:
    """Planted: fully inert, so that freezing costs nothing, and 0.234 nats are to be gained."""
    table = dosed(
        ("scale-to-text", np.nan, 20.0, -0.234, 0.05),
        ("scale", 0.5, 2.0, -0.01, 0.02),
        ("scale", 8.0, 0.1, 0.002, 0.003),
    )
    told = said(pd.concat([table, frozen(0.001, 0.002)]))
    assert (
        "More turning of visual tokens gains 23.4 points [18.4, 28.4] of accuracy (scale-to-text)."
        in told
    )
    assert "Less turning of visual tokens costs nothing measurable: NLL 0.0020 nats" in told
    assert "not what inertia costs" in told
    assert told.startswith("More turning of visual tokens gains 23.4 points.\n")


def test_the_dose_that_harms_most_is_said_wherever_it_lies() -> None:
    """Planted: freezing costs nothing, scale 2 costs 9 nats."""
    table = dosed(("scale", 0.5, 2.0, 0.3, 0.1), ("scale", 2.0, 0.5, 9.0, 1.0))
    told = said(table.assign(off_map=True))
    outside = "(scale 0.5, outside the usual range)."
    assert (
        "More turning of visual tokens gains nothing measurable: NLL 0.30 nats [0.20, 0.40] "
        f"{outside}" in told
    )
    assert (
        f"More turning of visual tokens costs 30.0 points [20.0, 40.0] of accuracy {outside}"
        in told
    )
    assert "Less turning of visual tokens costs 900.0 points" in told
    assert "(scale 2, outside the usual range)." in told


def test_a_gain_that_is_inconclusive_is_none() -> None:
    table = dosed(("scale", 0.5, 2.0, -0.01, 0.02), ("gain", 2.0, 1.5, 0.02, 0.03))
    told = said(table)
    assert (  # as in the table, in which less NLL is a gain
        "More turning of visual tokens gains nothing measurable: NLL -0.010 nats [-0.030, 0.010] "
        "(scale 0.5)." in told
    )
    assert "Less turning" not in told and "costs" not in told


def test_an_outcome_without_a_gain_stands_beside_one_with_it() -> None:
    table = dosed(("scale", 0.5, 2.0, -0.2, 0.1))
    of_accuracy = table["quantity"] == "accuracy"
    for end, value in zip([*INTERVAL, *BAND], (-0.1, 0.5) * 2, strict=True):
        table.loc[of_accuracy, end] = value
    told = said(table)
    assert "More turning of visual tokens gains 0.20 nats [0.10, 0.30] (scale 0.5)." in told
    assert "gains no measurable accuracy: 20.0 points [-10.0, 50.0]" in told


def test_which_way_a_dose_goes_is_what_turning_says() -> None:
    told = said(dosed(("scale", 8.0, 3.0, -0.2, 0.1)))
    assert "More turning of visual tokens gains 20.0 points [10.0, 30.0]" in told


# --- controls ------------------------------------------------------------------------------------


def test_what_is_outside_the_usual_range_is_marked_wherever_it_is_said() -> None:
    told = said(cause())
    assert "(scale-to-text, outside the usual range)" in told
    assert (
        "Not interpreted, as outside the usual range: scale by 0.125, 0.25; scale-to-text.\n"
        "- Outside the usual range: it moves untouched rows further than a grey picture and the "
        "placebo." in told
    )
    assert "usual range" not in said(cause().assign(off_map=False)).lower()


def test_frozen_tokens_may_be_outside_the_usual_range_too() -> None:
    told = said(frozen(0.05, 0.01).assign(off_map=True))
    assert "Freezing visual tokens in all layers (outside the usual range) costs 0.050 na" in told


@pytest.mark.parametrize(
    ("left_out", "expected"),
    [
        (
            ("blank", "placebo"),
            "Nothing is marked as outside the usual range: no control was run (blank,",
        ),
        (("blank",), "it moves untouched rows further than the placebo."),
    ],
)
def test_controls_that_were_not_run_are_named(left_out: tuple[str, ...], expected: str) -> None:
    table = cause()
    table = table[~table["intervention"].isin(left_out)]
    assert expected in said(table)


def test_how_many_rows_the_placebo_scales_is_said() -> None:
    table = cause()
    rows = "Of text tokens, placebo changes 6 where 64 are visual, by as much energy."
    assert rows in said(table)
    many = (table["quantity"] == "touched") & (table["intervention"] == "placebo")
    table.loc[many, "mean"] = 64.0
    assert "Of text tokens" not in said(table)


# --- what is not known ---------------------------------------------------------------------------


def test_of_few_images_it_is_said_what_may_be_unseen() -> None:
    table = cause()
    assert "too few" not in said(table)
    table.loc[table["quantity"] == "images", "mean"] = 25.0
    assert (
        "25 images are too few to bound what rare ones cost: up to 17 % of all may be unlike these."
        in said(table)
    )
    table.loc[table["quantity"] == "images", "mean"] = 112.0
    assert "112 images are too few to bound what rare ones cost: up to 4 %" in said(table)


def test_an_effect_that_few_images_carry_has_no_end() -> None:
    table = cause()
    rare = (table["quantity"] == "nll") & (table["intervention"] == "freeze")
    table.loc[rare, [*INTERVAL, *BAND]] = np.nan
    told = said(table)
    assert "is not shown to change NLL (0.047 nats)" in told
    assert "- No interval, as too few images carry the effect: freeze.\n" in told


def test_a_band_without_end_is_no_crash() -> None:
    table = cause()
    table.loc[table["quantity"] == "nll", ["band_high", "high"]] = np.inf
    assert "inf]" in said(table)


def test_layers_and_doses_of_ones_own_are_named() -> None:
    table = pd.concat([frozen(0.05, 0.01), frozen(0.02, 0.03)], ignore_index=True)
    table["intervention"] = ["freeze@2-4"] * 2 + ["knockout@3"] * 2
    told = said(table)
    assert "Freezing visual tokens in layers 2-4 costs 0.050 nats" in told
    assert (
        "Hiding visual tokens from the attention of others in layer 3 has no measurable effect on "
        "NLL or accuracy (0.020 nats [-0.010, 0.050])" in told
    )
    gained = dosed(("gain@2-3", 3.0, 2.0, -0.2, 0.1))
    assert "gains 20.0 points [10.0, 30.0] of accuracy (gain@2-3 3)." in said(gained)


def test_classes_of_visual_tokens_are_named_and_say_nothing_of_inertia() -> None:
    table = pd.concat([frozen(0.05, 0.01), frozen(0.02, 0.03)], ignore_index=True)
    table["intervention"] = ["freeze:loudest_5"] * 2 + ["freeze:quiet@2-3"] * 2
    told = said(table)
    assert "Freezing the loudest 5 % of visual tokens in all layers costs 0.050 nats" in told
    assert "Freezing quiet visual tokens beside the loudest in layers 2-3 has no" in told
    gained = dosed(("scale:loudest_1", 0.25, 2.0, -0.2, 0.1))
    assert "turning of visual tokens" not in said(gained)
    assert "Scaling the loudest 1 % of visual tokens at the decoder input gains" in said(gained)


def test_fewer_frozen_text_rows_are_said_to_be_so() -> None:
    table = frozen(0.05, 0.01).assign(intervention="freeze-text")
    counts = pd.concat([cause(), table], ignore_index=True)
    counts.loc[len(counts)] = row("freeze-text", "touched", 60.0, 60.0, np.nan)
    told = said(counts)
    assert "Freezing random text rows in all layers costs" in told
    assert "Of text tokens, freeze-text changes 60 where 64 are visual." in told


def test_what_freezing_leaves_is_named() -> None:
    table = cause()
    assert "DeepStack" not in said(table)
    table.loc[table["quantity"] == "added", "mean"] = 3.0
    assert "Between layers, in 3 places, the model adds to visual tokens (DeepStack)" in said(table)


def test_few_right_answers_do_not_speak_for_all() -> None:
    table = cause()
    right = table["quantity"].isin(["nll", "accuracy"])
    table.loc[right, "samples"] = 1
    told = said(table)
    assert "The right answer is known of 1 of 200 samples: costs and gains are theirs." in told
    assert "is known of" not in said(cause())


def test_own_answers_are_called_so() -> None:
    told = said(cause(right=False))
    assert (
        "Freezing visual tokens in all layers changes 8.5 % [5.6, 11.4] of the model's own" in told
    )
    assert "right answers" not in told and "points" not in told


def test_one_image_shows_nothing() -> None:
    told = said(cause(intervals=False))
    assert not re.search(r"(costs|removes|gains) \d", told)
    assert told.endswith("- One image, no intervals.")


def test_where_scaling_is_no_gain_it_is_said() -> None:
    behind = "branch-post: the paper's theory is about pre-norm"
    assert "decoder: branch-post. There a scale need not be a gain" in said(cause(), behind)
    assert "need not be" not in said(cause(), "sandwich: the paper's theory is about pre-norm")
    no_scale = cause().query("intervention != 'scale' and intervention != 'scale-to-text'")
    assert "need not be" not in said(no_scale, behind)
    assert not WITHOUT_INPUT_NORM & set(OPENED_BY_A_NORM)


def test_the_headline_tells_what_norms_and_what_turning_do() -> None:
    assert verdict(store(cause())).headline == (
        "Matching norms removes 83 % of the difference in turning; more turning of visual tokens "
        "gains nothing measurable."
    )


def test_unknown_effects_are_left_out() -> None:
    table = cause()
    table.loc[table["quantity"] == "accuracy", "mean"] = np.nan
    assert "points" not in said(table)
