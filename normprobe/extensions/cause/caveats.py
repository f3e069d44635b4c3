"""What a run of ``cause`` does not show: of controls, samples, images and the model."""

import pandas as pd

from normprobe.extensions.cause.effect_intervals import FEWEST_SHOWN, unseen_share
from normprobe.extensions.cause.effect_numbers import effects, on_map, outcomes, which
from normprobe.report.ratio_words import brackets
from normprobe.report.verdict import Finding
from normprobe.runs.run_folder import RunStore
from normprobe.tidy import QUANTITY, select

#: What others are read against, and how it is named.
CONTROL_WORDS = {"blank": "a grey picture", "placebo": "the placebo"}
#: Where each branch reads states behind a norm, a scale s is a gain of 1/s on what is added.
OPENED_BY_A_NORM = ("pre", "pre-parallel", "sandwich")
OFF = "outside the usual range"


def caveats(cause: pd.DataFrame) -> list[Finding]:
    """All of them, in order; without words where there is nothing to say."""
    few, without_end = _rare(cause)
    return [
        Finding("added", _added(cause)),
        Finding("labelled", _labelled(cause)),
        Finding("left_out", _lost(cause)),
        *_off_map(cause),
        Finding("few_images", few),
        Finding("without_end", without_end),
        Finding("nats", "Nats: a token of the answer, and the one that ends it."),
    ]


def scale_placement(run: RunStore) -> str:
    """Where scales are no gains on updates."""
    named = str(run.record.get("norm_placement") or "").partition(":")[0]
    scaled = run.table("cause")["intervention"].isin(["scale", "scale-to-text"]).any()
    if not named or named in OPENED_BY_A_NORM or not scaled:
        return ""
    return (
        f"Norm placement of this decoder: {named}. There a scale need not be a gain on updates, "
        "and inertia alone."
    )


def _added(cause: pd.DataFrame) -> str:
    """Where layers are entered by more than left the one before."""
    places = select(cause, "added", layer=0)["mean"].max()
    if not places > 0:
        return ""
    return (
        f"Between layers, in {places:.3g} places, the model adds to visual tokens (DeepStack): "
        "freezing leaves that, scaling does not reach it."
    )


def _labelled(cause: pd.DataFrame) -> str:
    """Where some samples alone have a right answer."""
    counts = cause[cause["mean"].notna()].groupby(QUANTITY)["samples"].max()
    known, samples = (int(counts.get(name, 0)) for name in ("nll", "kl"))
    if not 0 < known < samples:
        return ""
    return f"The right answer is known of {known} of {samples} samples: costs and gains are theirs."


def _lost(cause: pd.DataFrame) -> str:
    """Which interventions some samples lack: not to be made there, or without a finite answer."""
    told = []
    for outcome in outcomes(cause)[:1]:
        rows = cause[(cause[QUANTITY] == outcome.quantity) & (cause["layer"] == 0)]
        most = rows["samples"].max()
        for name, doses in rows[rows["samples"] < most].groupby("intervention", sort=False):
            fewest = int(most - doses["samples"].min())
            told.append(f"{name}{which(doses)} ({fewest} of {int(most)})")
    if not told:
        return ""
    return (
        "Left out on both sides, as not to be made there or without a finite answer: "
        f"{', '.join(told)}."
    )


def _off_map(cause: pd.DataFrame) -> list[Finding]:
    """What moves untouched rows further than the controls do, or that there are none of these."""
    ran = [words for name, words in CONTROL_WORDS.items() if (cause["intervention"] == name).any()]
    if not ran:
        told = f"Nothing is marked as {OFF}: no control was run ({', '.join(CONTROL_WORDS)})."
        return [Finding("outside", told)]
    rows = cause[~on_map(cause) & (cause["layer"] == 0)].drop_duplicates(["intervention", "dose"])
    named = _each(rows.sort_values("dose"))
    if not named:
        return []
    why = f"{OFF.capitalize()}: it moves untouched rows further than {' and '.join(ran)}."
    return [
        Finding("outside", f"Not interpreted, as {OFF}: {'; '.join(named)}."),
        Finding("outside.why", why),
    ]


def _rare(cause: pd.DataFrame) -> tuple[str, str]:
    """Of few images, and of effects that few carry, how little is known."""
    first = [one.quantity for one in outcomes(cause)[:1]]
    rows = cause[cause[QUANTITY].isin(first) & cause["mean"].notna()]
    images = cause.loc[cause[QUANTITY] == "images", "mean"].max()
    few = without_end = ""
    if rows["low"].notna().any() or images > 1:
        if 1 < images < FEWEST_SHOWN:
            few = (
                f"{images:.0f} images are too few to bound what rare ones cost: up to "
                f"{100 * unseen_share(images):.0f} % of all may be unlike these."
            )
        endless = rows[rows["low"].isna()].sort_values(["layer", "dose"])
        if len(endless):
            some = f": {'; '.join(_each(endless))}" if len(endless) < len(rows) else ""
            without_end = f"No interval, as too few images carry the effect{some}."
    return few, without_end


def _each(rows: pd.DataFrame) -> list[str]:
    """``scale by 2, 4``: each intervention with its doses, or layers."""
    by_name = rows.groupby("intervention", sort=False)
    return [f"{name}{which(of_one)}" for name, of_one in by_name]


def closing(cause: pd.DataFrame) -> str:
    """What numbers in brackets are."""
    return brackets(effects(cause), int(cause["samples"].max()), "interventions, doses and layers")
