"""What a run of ``layers`` says."""

import numpy as np
import pandas as pd

from normprobe.measurements.layers.accounted import accounted_findings
from normprobe.measurements.layers.assumptions import theory_findings
from normprobe.measurements.layers.branches import branches_findings
from normprobe.measurements.layers.headroom import headroom_words
from normprobe.measurements.layers.massive import massive_findings
from normprobe.measurements.layers.turns import turns_findings
from normprobe.report.ratio_words import (
    ALIKE,
    Ratio,
    Words,
    brackets,
    ratio_after,
    ratio_in_words,
    ratios_to_text,
    times,
    visual_states_are_attended,
)
from normprobe.report.readable import significant
from normprobe.report.sentences import (
    LayerPhrases,
    broken_findings,
    carried_findings,
    in_some_samples,
    layer_findings,
    layers_headline,
    other_media,
)
from normprobe.report.verdict import OPEN, Finding, Verdict, verdict_of
from normprobe.runs.run_folder import RunStore
from normprobe.schema import ATTENTION_INPUT, RATIOS_TO_TEXT, SPECIAL, TEXT, VISUAL
from normprobe.tidy import along, select


def verdict(run: RunStore) -> Verdict:
    """How norms and turning compare, what was asked for beside, and what the theory says."""
    layers, loudest = run.table("layers"), run.rows_of("loudest")
    headline, findings = layers_sentences(layers, loudest)
    placement = placement_sentence(str(run.record.get("norm_placement") or ""))
    said = [*broken_findings(layers, run.record.get("doubts", ())), *findings, *_beside(run)]
    if placement and any(each.words for each in said):
        said.append(Finding("placement", placement))
    asked = run.record.get("intervals", {}) is not None
    return verdict_of(headline, said, _closing(layers, asked=asked))


def _beside(run: RunStore) -> list[Finding]:
    """Of the tables beside ``layers.csv``."""
    found: list[Finding] = []
    if run.has_table("accounted"):
        found += accounted_findings(run.table("accounted"))
    if run.has_table("branches"):
        found += branches_findings(run.table("branches"))
    if run.has_table("massive"):
        named = run.table("massive_tokens") if run.has_table("massive_tokens") else None
        found += massive_findings(run.table("massive"), run.table("dimensions"), named)
    if headroom := headroom_words(run):
        found.append(Finding("headroom", headroom))
    if run.has_table("turns"):
        found += turns_findings(run.table("turns"))
    assumptions = run.rows_of("assumptions")
    # Which of them, and where: ``--theory`` and the page tell.
    return found if assumptions is None else [*found, *theory_findings(assumptions)[:1]]


def layers_sentences(
    layers: pd.DataFrame, loudest: pd.DataFrame | None = None
) -> tuple[str, list[Finding]]:
    """The headline, and how norms and turning of visual and text tokens compare in every layer."""
    entry, norms, angles = ratio_after(layers, 0), *_by_layer(layers, VISUAL)
    media = other_media(layers)
    held = {group: ratio_after(layers, 0, group=group) for group in media}
    if not any(each.usable for each in (entry, *norms.values(), *angles.values(), *held.values())):
        return _text_alone(layers, loudest)
    states = "states" if visual_states_are_attended(layers) else "tokens"
    findings = [*_entry(layers, entry, states), *layer_findings(norms, _NORM)]
    findings += layer_findings(angles, turning(VISUAL))
    if visual_states_are_attended(layers):
        findings.append(Finding("angle", _NOT_TURNED))
    findings += layer_findings(ratios_to_text(layers, ATTENTION_INPUT), _ATTENTION_INPUT)
    for group, ratio in held.items():
        if ratio.usable:
            findings.append(_norm_at_input(group, ratio))
            findings += layer_findings(_by_layer(layers, group)[1], turning(group))
    samples = layers.groupby("group")["samples"].max()
    tokens = {f"{group} tokens": float(samples.get(group, 0)) for group in (VISUAL, TEXT, *media)}
    findings += carried_findings(layers, loudest)
    findings.append(in_some_samples(tokens, layers["samples"].max()))
    return _headline(layers, entry, angles), findings


def _by_layer(layers: pd.DataFrame, group: str) -> tuple[dict[int, Ratio], dict[int, Ratio]]:
    """Norms and angles against text tokens."""
    return ratios_to_text(layers, "norm", group), ratios_to_text(layers, "angle", group)


_NOT_TURNED = "Text attends to the visual states: of their turning this run says nothing."
_NO_PICTURE = (
    "No row that enters the decoder is a picture's: of visual tokens and their inertia this run "
    "says nothing."
)
_NORM = LayerPhrases(
    "norm",
    "Visual tokens have a larger norm than text tokens",
    "Visual tokens have a smaller norm than text tokens",
    "Norm of visual and text tokens",
    "after",
)
_ATTENTION_INPUT = LayerPhrases(
    "attention_input",
    "Attention reads visual tokens at a larger norm than text",
    "Attention reads visual tokens at a smaller norm than text",
    "Norm that attention reads, of visual and text tokens",
)


def turning(group: str, than: str = "text tokens") -> LayerPhrases:
    """How turning is told of tokens of a group."""
    return LayerPhrases(
        "angle" if group == VISUAL else f"angle.{group}",
        f"{group.capitalize()} tokens turn more quickly than {than}",
        f"{group.capitalize()} tokens turn more slowly than {than}",
        f"Angle of {group} tokens and {than}",
    )


def _headline(layers: pd.DataFrame, entry: Ratio, angles: dict[int, Ratio]) -> str:
    """E.g. "Visual tokens enter with 57 x the norm of text and turn up to 9 x more slowly ..."."""
    attended = visual_states_are_attended(layers)
    verb = "Text attends to visual states" if attended else "Visual tokens enter the decoder"
    norms = {0: "about the norm of text", None: f"a norm {OPEN} against text"}
    first = ""
    if entry.usable:
        norm = norms.get(entry.state) or f"{times(entry.value)} the norm of text"
        first = f"{verb} with {norm}"
    turn, unclear = layers_headline(angles, "turn ", Words("more quickly", "more slowly"))
    if not turn:
        told = first or "Visual and text tokens are not shown to turn differently"
        return f"{told}; {unclear and 'turning is inconclusive'}".rstrip("; ") + "."
    said = f"{first} and {turn}" if first else f"Visual tokens {turn}"
    return f"{said}{f'; {unclear}' * bool(unclear)}."


def _entry(layers: pd.DataFrame, entry: Ratio, states: str) -> list[Finding]:
    """Norms at the decoder input; by arithmetic means where these tell something else."""
    if not entry.usable:
        return []
    means = ratio_after(layers, 0, RATIOS_TO_TEXT["norm"])
    found = [_norm_at_input(VISUAL, entry, states)]
    if means.usable and (means.state != entry.state or apart(means.value, entry.value)):
        told = f"By arithmetic means that is {ratio_in_words(means)}."
        found.append(Finding("norm_at_input.arithmetic", told, {RATIOS_TO_TEXT["norm"]: means}))
    return found


def apart(one: float, other: float) -> bool:
    """Whether two ratios are further apart than those that are called the same."""
    return max(one / other, other / one) > ALIKE


def _norm_at_input(group: str, ratio: Ratio, states: str = "tokens") -> Finding:
    told = ratio_in_words(ratio, than="that of text tokens")
    name = "norm_at_input" if group == VISUAL else f"norm_at_input.{group}"
    return Finding(name, f"Norm of {group} {states} at the decoder input: {told}.", {name: ratio})


def _closing(layers: pd.DataFrame, *, asked: bool) -> str:
    """What the brackets are; empty where nothing is compared."""
    groups = [VISUAL, *other_media(layers)]
    several = [r for group in groups for of in _by_layer(layers, group) for r in of.values()]
    told = [*several, *(ratio_after(layers, 0, group=group) for group in groups)]
    told = [ratio for ratio in told if ratio.usable]
    if not told:
        return ""
    samples = int(layers["samples"].max()) if asked else None
    return brackets(told, samples, "layers" if any(r.usable for r in several) else "")


def _text_alone(layers: pd.DataFrame, loudest: pd.DataFrame | None) -> tuple[str, list[Finding]]:
    """Of prompts without pictures: how text tokens grow, and which special token is loud."""
    text = layers[layers["group"] == TEXT]
    text = along(select(text, "norm"), text["layer"])
    norms, numbers = text["mean"].to_numpy(float), text["layer"].to_numpy(int)
    known = len(norms) > 1 and np.isfinite(norms).all() and norms.min() > 0
    if (layers["group"] == VISUAL).any() or not known:
        return "", []
    grown = norms[1:] / norms[:-1]
    headline = (
        f"Text tokens leave layer {numbers[-1]} with {times(norms[-1] / norms[0])} the norm that "
        f"they enter with; layer {numbers[1:][grown.argmax()]} alone makes it {times(grown.max())}."
    )
    ends = f"from {significant(norms[0])} to {significant(norms[-1])}"
    found = [Finding("norm", f"The mean norm of text tokens goes {ends}.")]
    angles = select(layers[layers["group"] == TEXT], "angle")["mean"].dropna()
    if len(angles):
        least, most = significant(angles.min(), 2), significant(angles.max(), 2)
        found.append(Finding("angle", f"Text tokens turn by {least} to {most} radians a layer."))
    found += carried_findings(layers, loudest, [SPECIAL])
    return headline, [*found, Finding("visual", _NO_PICTURE)]


def placement_sentence(norm_placement: str) -> str:
    """Where the norms of the decoder stand, if the paper's theory is not about such decoders."""
    placement, _, theory = norm_placement.partition(": ")
    if not placement or theory.endswith("applies"):
        return ""
    return f"Norm placement of this decoder: {placement}. The paper's theory is about pre-norm."
