"""What cause.csv says."""

import re

import pandas as pd

from normprobe.extensions.cause.caveats import OFF, caveats, closing, scale_placement
from normprobe.extensions.cause.effect_numbers import (
    RIGHT,
    TURNING_DOSES,
    Outcome,
    base_of,
    by_turning,
    effect_rows,
    effects,
    in_words,
    on_map,
    outcomes,
    rounded,
    which,
)
from normprobe.model.intervention_plan import read_label
from normprobe.report.ratio_words import Estimate, agreeing, ratios_by_layer
from normprobe.report.sentences import LayerPhrases, layer_findings
from normprobe.report.verdict import OPEN, Finding, Verdict, verdict_of
from normprobe.runs.run_folder import RunStore
from normprobe.statistics.loud_tokens import LOUDEST_CALLED, QUIET
from normprobe.tidy import BAND, QUANTITY, select

#: Interventions as subjects of a sentence, in order.
SUBJECTS = {
    "freeze": "Freezing visual tokens",
    "freeze-layer": "Freezing visual tokens in one layer",
    "freeze-text": "Freezing random text rows",
    "freeze-attention": "Leaving out what attention adds to visual tokens",
    "freeze-mlp": "Leaving out what MLPs add to visual tokens",
    "random-updates": "Replacing updates of visual tokens by random ones of the same size",
    "knockout": "Hiding visual tokens from the attention of others",
    "knockout-layer": "Hiding visual tokens from the attention of others in one layer",
    "swap": "Visual norms on the directions of another picture's tokens",
    "swap-norms": "Visual directions with the norms of another picture's tokens",
    "patch-layer": "Giving visual tokens the states of another picture from one layer on",
    "permute": "Putting visual tokens in another order",
    "blank": "A grey picture",
    "scale-text": "Scaling all text rows",
    "placebo": "The placebo, rescaling random text tokens,",
    "scale": "Scaling visual tokens at the decoder input",
    "scale-to-text": "Giving visual tokens the norm of text at the decoder input",
    "gain": "A gain on the updates of visual tokens",
}
#: Of a class of visual tokens, where that is another sentence.
_OF_CLASSES = {"blank": "Giving visual tokens the states of a grey picture"}
_CLASSES = {name: f"the {called} of visual tokens" for name, called in LOUDEST_CALLED.items()}
_CLASSES[QUIET] = "quiet visual tokens beside the loudest"
#: Those that are done in all layers, or in some.
_LAYERED = (
    *("freeze", "freeze-text", "freeze-attention", "freeze-mlp", "random-updates"),
    *("knockout", "gain"),
)
#: Those of one layer after another: told of the first outcome alone.
_SWEPT = ("freeze-layer", "knockout-layer", "patch-layer")
_TURNING = LayerPhrases(
    "turning",
    "Read at the norm of text, visual tokens turn more quickly than untouched",
    "Read at the norm of text, visual tokens turn more slowly than untouched",
    "Angle of visual tokens read at the norm of text, and untouched",
)
_WORTH = "Freezing tells what turning is worth as the model is, not what inertia costs."


def verdict(run: RunStore) -> Verdict:
    """What turning comes from, and what it is worth to the answers."""
    cause = run.table("cause")
    turning, costs, frozen = _turning(cause), _costs(cause), _effects(cause, "freeze")
    done = cause["intervention"].unique()
    # What doses that change all turning do is in ``costs`` where answers are right or wrong.
    told = [each for each in done if base_of(each) not in TURNING_DOSES or ":" in each]
    told = told if RIGHT[0] in outcomes(cause) else [*done]
    findings = [*turning, *costs]
    findings += [
        finding
        for name in SUBJECTS
        for each in told
        if base_of(each) == name
        for finding in _effects(cause, each)
    ]
    if any("[" in each.words and " gains " not in each.words for each in frozen):
        findings.append(Finding("freeze.worth", _WORTH))
    findings += [*_rows_changed(cause), Finding("placement", scale_placement(run))]
    findings += caveats(cause)
    return verdict_of(_headline(turning, costs or frozen), findings, closing(cause))


def _headline(turning: list[Finding], costs: list[Finding]) -> str:
    """What norms have to do with turning, and what turning has to do with answers."""
    of_norms = {
        "share": "Matching norms removes {:.0f} % of the difference in turning",
        "share.none": "Matching norms removes none of the difference in turning",
        f"share.{OPEN}": f"What norms have to do with turning is {OPEN}",
    }
    parts = [
        of_norms[each.name].format(100 * each.numbers["share_removed"].value)
        for each in turning
        if each.name in of_norms
    ]
    if costs:
        first = costs[0].words.removesuffix(".")
        parts.append(re.split(r" \[| \(|: ", first)[0])
    told = "; ".join([*parts[:1], *(part[:1].lower() + part[1:] for part in parts[1:])])
    return f"{told}." if told else ""


def _turning(cause: pd.DataFrame) -> list[Finding]:
    """What becomes of turning where each layer by itself reads visual rows at the norm of text."""
    rows = effect_rows(cause, "norm-at-layer", "visual_angle")
    found = layer_findings(ratios_by_layer(rows), _TURNING)
    apart = effect_rows(cause, "norm-at-layer", "layers_apart")
    if not found or apart.empty:
        return found
    count, layers = int(apart["mean"].iloc[0]), len(rows)
    if not count:
        told = "Untouched, text and visual tokens are not shown to turn differently."
        return [*found, Finding("text", told)]
    text = effect_rows(cause, "norm-at-layer", "angle_ratio")
    before, after = (
        " to ".join(dict.fromkeys(agreeing([text[name].min(), text[name].max()])))
        for name in ("untouched", "value")
    )
    told = f"Text turns {before} x as fast as visual tokens; once norms match, {after} x."
    found.append(Finding("text", told))
    shares = {
        name: effects(effect_rows(cause, name, "share_removed"))
        for name in ("norm-at-layer", "scale-to-text")
    }
    (direct,), _ = rounded(shares["norm-at-layer"], 100, 0)
    percent = in_words([direct], 0, "%")
    name, told = {
        1: ("share", f"That removes {percent} of the difference in turning"),
        -1: ("share.none", f"That removes none of the difference, it adds to it: {percent}"),
        None: (f"share.{OPEN}", f"That removes an {OPEN} share of the difference: {percent}"),
    }[direct.sign]
    where = f"in the {count} of {layers} layers that have one"
    numbers = {"share_removed": shares["norm-at-layer"][0]}
    found.append(Finding(name, f"{told}, {where}.", numbers))
    if shares["scale-to-text"]:
        total, _ = rounded(shares["scale-to-text"], 100, 0)
        told = f"At the decoder input, with all that follows: {in_words(total, 0, '%')}."
        found.append(Finding("through", told, {"share_removed": shares["scale-to-text"][0]}))
    return found


def _costs(cause: pd.DataFrame) -> list[Finding]:
    """Whether inertia costs answers: what more turning gains, and what less of it costs.

    Of all doses the largest; that one costs, or the other gains, is said where it is shown.
    """
    right = [one for one in outcomes(cause) if one in RIGHT]
    found = []
    for rows, subject, asked in zip(by_turning(cause), ("More", "Less"), (-1, 1), strict=True):
        for sign in (asked, -asked):
            found += _largest(rows, right, subject, sign, asked=sign == asked)
    return found


def _largest(
    rows: pd.DataFrame, right: list[Outcome], subject: str, sign: int, *, asked: bool
) -> list[Finding]:
    """``More turning gains 23 points [10, 36] of accuracy (scale 0.5)``; sign -1: a gain."""
    told: dict[bool, tuple[Outcome, Estimate, str]] = {}
    numbers: dict[bool, dict[str, Estimate]] = {True: {}, False: {}}
    for outcome in right:
        of_one = rows[rows[QUANTITY] == outcome.quantity]
        found = effects(of_one, BAND)
        printed = [rounded([each], outcome.scale, outcome.decimals)[0][0] for each in found]
        shown = [place for place, each in enumerate(printed) if each.sign == sign]
        if not len(of_one):
            continue
        sizes = (of_one["mean"] * outcome.scale * sign).to_numpy()
        place = max(shown or range(len(of_one)), key=lambda place: float(sizes[place]))
        if shown or bool(shown) not in told:  # what is shown is told of accuracy, else of the first
            told[bool(shown)] = outcome, found[place], _named(of_one.iloc[[place]])
        numbers[bool(shown)][outcome.quantity] = found[place]
    way = f"{subject.lower()}.{'gains' if sign < 0 else 'costs'}"
    verb = "gains" if sign < 0 else "costs"
    findings = []
    if True in told:
        outcome, number, name = told[True]
        words = f"{subject} turning of visual tokens {_does(outcome, [number])} ({name})."
        findings.append(Finding(way, words, numbers[True]))
    if asked and False in told:
        outcome, number, name = told[False]
        none = (
            f"no measurable {outcome.named}:"
            if True in told
            else f"nothing measurable: {outcome.named}"
        )
        words = f"{subject} turning of visual tokens {verb} {none}"
        words += f" {_as_in_the_table(outcome, number)} ({name})."
        findings.append(Finding(f"{way}.{OPEN}", words, numbers[False]))
    return findings


def _named(rows: pd.DataFrame) -> str:
    """``scale 0.5, outside the usual range``."""
    (name,) = rows["intervention"].unique()
    dose = which(rows).removeprefix(" by")
    return f"{name}{dose}{f', {OFF}' * bool((~on_map(rows)).all())}"


def _effects(cause: pd.DataFrame, intervention: str) -> list[Finding]:
    """What an intervention does to the answers; of doses, or layers, those alike together."""
    parts: dict[object, list[tuple[Outcome, pd.DataFrame, list[Estimate]]]] = {}
    off = False
    for outcome in outcomes(cause)[: 1 if intervention in _SWEPT else None]:
        rows = effect_rows(cause, intervention, outcome.quantity).sort_values(["layer", "dose"])
        numbers = effects(rows, BAND)
        alike: dict[int | None, list[int]] = {}
        for row, number in enumerate(numbers):
            (printed,), _ = rounded([number], outcome.scale, outcome.decimals)
            alike.setdefault(printed.sign, []).append(row)
        for state, these in alike.items():
            told = outcome, rows.iloc[these], [numbers[row] for row in these]
            parts.setdefault((state, *these), []).append(told)
        off |= len(rows) > 0 and not on_map(rows).any()
    name, tokens, layers = read_label(intervention)
    where = f" in layer{'s' * ('-' in layers)} {layers}" if layers else " in all layers"
    subject = (_OF_CLASSES.get(name) or SUBJECTS[name]) if tokens else SUBJECTS[name]
    subject = subject.replace("visual tokens", _CLASSES[tokens]) if tokens else subject
    subject += where * (name in _LAYERED) + f" ({OFF})" * off
    return [_effect(intervention, subject, told) for told in parts.values()]


def _effect(
    name: str, subject: str, told: list[tuple[Outcome, pd.DataFrame, list[Estimate]]]
) -> Finding:
    """Of outcomes that say the same: what is shown is told of the last of them, accuracy."""
    outcome, rows, numbers = told[-1] if told[-1][0] in RIGHT else told[0]
    (first, *_), _ = rounded(numbers, outcome.scale, outcome.decimals)
    if first.sign is None:
        outcome, rows, numbers = told[0]
    *others, last = dict.fromkeys(of.changed for of, *_ in told)
    changed = " or ".join(filter(None, (", ".join(others), last)))
    words = f"{subject} {_does(outcome, numbers, changed)}{which(rows)}."
    held = {
        f"{of.quantity}{which(these.iloc[[place]])}": number
        for of, these, found in told
        for place, number in enumerate(found)
    }
    return Finding(f"{name}.{OPEN}" if first.sign is None else name, words, held)


def _rows_changed(cause: pd.DataFrame) -> list[Finding]:
    """Of random text rows how many: prompts may have fewer of them than visual ones."""
    rows = select(cause, "touched", layer=0)
    of_text = rows["intervention"].map(base_of).isin(["placebo", "scale-text", "freeze-text"])
    visual = rows.loc[~of_text, "mean"].max()
    found = []
    for name, energy in (("placebo", ", by as much energy"), ("freeze-text", "")):
        changed = rows.loc[rows["intervention"].map(base_of) == name, "mean"].max()
        if changed > 0 and visual > changed:
            told = f"Of text tokens, {name} changes {changed:.0f} where {visual:.0f} are visual"
            found.append(Finding(f"{name}.rows", f"{told}{energy}."))
    return found


def _does(outcome: Outcome, numbers: list[Estimate], changed: str = "") -> str:
    """The largest of numbers of one sign, in the words of that sign."""
    printed, _ = rounded(numbers, outcome.scale, outcome.decimals)
    sign = printed[0].sign
    largest = max(numbers, key=lambda number: abs(number.value))
    up_to = "up to " * (len(numbers) > 1)
    if sign is None:
        told = f"{up_to}{_as_in_the_table(outcome, largest)}"
        measured = (
            "has no measurable effect on" if largest.has_interval else "is not shown to change"
        )
        return f"{measured} {changed or outcome.changed} ({told})"
    ends, decimals = rounded([largest], outcome.scale * sign, outcome.decimals)
    told = f"{up_to}{in_words(ends, decimals, outcome.unit)}"
    of = {"%": outcome.changed, "points": outcome.named}.get(outcome.unit)
    return f"{outcome.more if sign == 1 else outcome.less} {told}{f' of {of}' if of else ''}"


def _as_in_the_table(outcome: Outcome, number: Estimate) -> str:
    """What is inconclusive has the sign that it has in the table."""
    ends, decimals = rounded([number], abs(outcome.scale), outcome.decimals)
    return in_words(ends, decimals, outcome.unit)
