"""What is said of cause.csv rests on its intervals, and on doses that are on the map."""

import re

import numpy as np
import pandas as pd
import pytest
from support.made_cause import ACCURACY, NLL, cause, row

from normprobe.measurements.cause.words import OPENED_BY_A_NORM, main_sentences, verdict
from normprobe.model.find.norms import WITHOUT_INPUT_NORM
from normprobe.report.ranking import wider_for
from normprobe.runs.run_folder import RunStore


def said(table: pd.DataFrame, placement: str = "") -> str:
    return verdict(store(table, placement))


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
        | {"effect_band_low": low, "effect_band_high": high}
        for layer, (effect, low, high) in enumerate(effects, start=1)
    ]
    return pd.DataFrame(rows)


def share(value: float, half: float) -> pd.DataFrame:
    """The made table with another share that norms remove."""
    table = cause()
    chosen = (table["quantity"] == "share_removed") & (table["intervention"] == "norm-at-layer")
    table.loc[chosen, ["effect", "effect_ci_low", "effect_ci_high"]] = [
        value,
        value - half,
        value + half,
    ]
    return table


@pytest.mark.parametrize(
    ("value", "half", "expected"),
    [
        (0.83, 0.03, "norms cause 83 % [80, 86] of the difference"),
        (0.02, 0.03, "that norms cause any of the difference (2 % [-1, 5]) is not shown"),
        (-0.4, 0.1, "norms cause none of the difference, but hide some (-40 % [-50, -30])"),
        # Ends that print as 0 are no proof.
        (0.03, 0.029, "that norms cause any of the difference (3 % [0, 6]) is not shown"),
    ],
)
def test_norms_are_a_cause_where_their_share_is_shown(
    value: float, half: float, expected: str
) -> None:
    assert expected in said(share(value, half))


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        (
            (0.047, 0.029, -0.085, 0.05),
            "costs 0.047 nats [0.018, 0.076] and 8.5 points [3.5, 13.5]: all that",
        ),
        (
            (0.047, 0.029, -0.005, 0.01),
            "costs 0.047 nats [0.018, 0.076] and is not shown to change accuracy "
            "(0.5 points [-0.5, 1.5]): all that",
        ),
        (
            (0.004, 0.009),
            "is not shown to change the probability of right answers "
            "(0.004 nats [-0.005, 0.013]) or accuracy (0.0 points [-1.0, 1.0]): all that",
        ),
        ((-0.05, 0.02, 0.05, 0.02), "gains 0.050 nats [0.030, 0.070] and 5.0 points [3.0, 7.0]. "),
    ],
)
def test_what_freezing_costs_is_a_bound_unless_it_helps(
    numbers: tuple[float, ...], expected: str
) -> None:
    assert f"Freezing them in all layers {expected}" in said(frozen(*numbers))


def test_layers_are_named_by_their_band_not_by_their_interval() -> None:
    told = said(at_layers((0.02, 0.01, 0.03), (0.02, -0.01, 0.05), (-0.03, -0.04, -0.02)))
    assert "costs 0.020 nats [0.010, 0.030] in layer 1," in told
    assert "(0.020 nats [-0.010, 0.050]) in layer 2 " in told
    assert "and gains 0.030 nats [0.020, 0.040] in layer 3." in told


def test_doses_have_ends_that_hold_for_all_of_them() -> None:
    rows = [
        row("scale", "nll", NLL, effect, 0.01, NLL, dose=d) for d, effect in ((2, 0.011), (8, 0.05))
    ]
    assert wider_for(2) > 1.1  # so that 0.011 is none of those that are told apart
    told = said(pd.DataFrame(rows))
    assert "(0.011 nats [0.000, 0.022]) by 2" in told
    assert "costs 0.050 nats [0.039, 0.061] by 8." in told
    alone = said(pd.DataFrame(rows[:1]))
    assert "costs 0.011 nats [0.001, 0.021] by 2." in alone


def test_nothing_rests_on_what_is_off_the_map() -> None:
    table = cause()
    told = said(table)
    assert "scale by 0.125, 0.25; scale-to-text." in told
    assert not re.search(
        r"\d nats[^.]*\] by 0\.(125|25)\b(?!, 2)", told.split("Scaling as many")[0]
    )
    assert "Making them as loud as text" not in told
    louder = said(table.assign(off_map=False))
    assert "Making them as loud as text at the decoder input costs" in louder
    assert "Off the map" not in louder


def test_own_answers_are_called_so() -> None:
    told = said(cause(right=False))
    assert "changes 8.5 % [5.6, 11.4] of the model's own answers" in told
    assert "right answers" not in told and "points" not in told


def test_one_image_shows_nothing() -> None:
    told = said(cause(intervals=False))
    assert "costs" not in told and "norms cause 83" not in told
    assert told.endswith("One image, no intervals.")


def test_where_scaling_is_no_gain_it_is_said() -> None:
    behind = "branch-post: the paper's theory is about pre-norm"
    assert "decoder: branch-post. A scale need not be a gain" in said(cause(), behind)
    assert "need not be" not in said(cause(), "sandwich: the paper's theory is about pre-norm")
    no_scale = cause().query("intervention != 'scale' and intervention != 'scale-to-text'")
    assert "need not be" not in said(no_scale, behind)
    assert not WITHOUT_INPUT_NORM & set(OPENED_BY_A_NORM)


def test_the_first_screen_tells_turning_and_the_bound() -> None:
    told = main_sentences(store(cause()))
    assert "norms cause" in told and "Freezing them in all layers" in told
    assert "grey" not in told and "Scaling" not in told


def test_unknown_effects_are_left_out() -> None:
    table = cause()
    table.loc[table["quantity"] == "accuracy", "effect"] = np.nan
    assert "points" not in said(table)
