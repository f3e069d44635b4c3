"""What interface.csv says."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from normprobe.report.ratio_words import (
    ALIKE,
    Ratio,
    brackets,
    ratio_in_words,
    ratio_of,
    times,
    usable,
)
from normprobe.report.readable import significant
from normprobe.report.sentences import (
    broken_findings,
    carried_findings,
    in_some_samples,
    other_media,
)
from normprobe.report.verdict import OPEN, Finding, Verdict, verdict_of
from normprobe.runs.run_folder import RunStore
from normprobe.schema import (
    DECODER_INPUT,
    NONZERO_ROWS,
    PROJECTOR_INPUT,
    PROJECTOR_OUTPUT,
    TEXT,
    VIDEO,
    VISION_ENCODER,
    VISUAL,
    VISUAL_EMBEDDING_TABLE,
)
from normprobe.tidy import select

_PROMPTS = "that of the prompts' text"


def verdict(run: RunStore) -> Verdict:
    """What the norms at the interface say, and which states are no vectors to measure."""
    interface = run.table("interface")
    counted = run.record.get("sample_ids") != []  # a batch of inputs is one row, whatever it holds
    loudest = run.rows_of("loudest")
    headline, findings, closing = interface_sentences(interface, loudest, counted=counted)
    findings = [*broken_findings(interface, run.record.get("doubts", ())), *findings]
    if _has(interface, DECODER_INPUT, VIDEO) and not _has(interface, PROJECTOR_OUTPUT, VIDEO):
        together = _has(interface, PROJECTOR_OUTPUT, VISUAL)
        told = (
            "Before the decoder images and videos cannot be told apart."
            if together
            else "What videos are before the decoder is left out: it cannot be told."
        )
        findings.append(Finding("videos", told))
    of_vision = {"vision_encoder", "projector"} & {*run.record.get("parts", ["projector"])}
    makes = bool(of_vision) or "discrete" in run.record["fusion"]
    if not makes and _has(interface, DECODER_INPUT, VISUAL):
        told = "Visual tokens before the decoder are left out: no part that makes them is known."
        findings.append(Finding("stages", told))
    if run.record.get("input_by_construction"):
        findings += _construction(run.record["before_layer_1"])
    return verdict_of(headline, findings, closing)


def _construction(before: Mapping[str, Any]) -> list[Finding]:
    """Whose norms set the ratio at the input, where both sides pass one."""
    visual, text = (before[group]["norm"] for group in (VISUAL, TEXT))
    told = (
        f"Both pass a norm right before layer 1 (visual: {visual}; text: {text}).",
        "Their ratio there is by construction; layers tells what becomes of it.",
    )
    return [Finding("by_construction", words) for words in told]


def interface_sentences(
    interface: pd.DataFrame, loudest: pd.DataFrame | None = None, *, counted: bool = True
) -> tuple[str, list[Finding], str]:
    """Headline, findings and what the brackets are; all empty where nothing is compared."""
    stage, samples = visual_stage(interface), float(interface["samples"].max())
    compared = {VISUAL: _ratio(interface, stage, "geometric_ratio_to_prompt")} | {
        group: _ratio(interface, DECODER_INPUT, "geometric_ratio_to_prompt", group)
        for group in other_media(interface)
    }
    told = {group: ratio for group, ratio in compared.items() if ratio.usable}
    if not told:
        return "", [], ""
    at_input = interface[interface["stage"] == DECODER_INPUT]
    states = "tokens" if stage == DECODER_INPUT else "states that text attends to"
    held = {f"visual {states}": _norm(interface, stage, VISUAL, "samples")} | {
        f"{group} tokens": _norm(interface, DECODER_INPUT, group, "samples")
        for group in (TEXT, *other_media(interface))
    }
    findings = []
    for group, ratio in told.items():
        words = f"{ratio_in_words(ratio, than=_PROMPTS)} (geometric means)"
        of = states if group == VISUAL else "tokens"
        where = " at the decoder input" * (of == "tokens")
        findings.append(
            Finding(f"norm.{group}", f"Norm of {group} {of}{where}: {words}.", {"prompt": ratio})
        )
        if group == VISUAL:
            findings += _other_means(interface, stage, ratio)
            findings += [*_projector(interface), *_mixtures(interface)]
    findings += [*carried_findings(at_input, loudest), in_some_samples(held, samples)]
    closing = brackets([*told.values()], int(samples) if counted else None)
    return _headline(told, of_input=stage == DECODER_INPUT), findings, closing


def _headline(told: dict[str, Ratio], *, of_input: bool) -> str:
    group = next(iter(told))
    ratio = told[group]
    norms = {0: "about the norm of", None: f"a norm {OPEN} against that of"}
    norm = norms.get(ratio.state) or f"{times(ratio.value)} the norm of"
    enter = f"{group.capitalize()} tokens enter the decoder"
    if group == VISUAL and not of_input:
        enter = "Text attends to visual states"
    return f"{enter} with {norm} the prompts' text tokens."


def _other_means(interface: pd.DataFrame, stage: str, geometric: Ratio) -> list[Finding]:
    """Against the prompts by arithmetic means, where that is apart, and against the text table."""
    to_prompt = _ratio(interface, stage, "ratio_to_prompt")
    to_table = _ratio(interface, stage, "ratio_to_table")
    found = []
    if to_prompt.usable:
        further = max(to_prompt.value / geometric.value, geometric.value / to_prompt.value)
        if to_prompt.state != geometric.state or further > ALIKE:
            told = f"By arithmetic means that is {ratio_in_words(to_prompt)}."
            found.append(Finding("norm.arithmetic", told, {"prompt": to_prompt}))
    if to_table.usable:
        told = ratio_in_words(to_table, than="that of the effective text embedding table")
        words = f"Mean norm of visual tokens: {told} (Eq. 11)."
        found.append(Finding("norm.table", words, {"table": to_table}))
    return found


def _projector(interface: pd.DataFrame) -> list[Finding]:
    """What the projector does to the mean norm."""
    before = _norm(interface, PROJECTOR_INPUT, VISUAL, "geometric_mean")
    than = "that before it"
    if not usable(before):
        before = _norm(interface, VISION_ENCODER, VISUAL, "geometric_mean")
        than = "that of the vision encoder"  # it may read another state
    after = _norm(interface, PROJECTOR_OUTPUT, VISUAL, "geometric_mean")
    change = _ratio(interface, PROJECTOR_OUTPUT, "geometric_ratio_to_before_projector")
    # A visual table is fed probabilities, whose norm is at most 1: nothing to compare.
    if not (change.usable and usable(before) and before > 1.0):
        return []
    told = (
        f"Norm behind the projector: {ratio_in_words(change, than=than)}, from "
        f"{significant(before)} to {significant(after)}."
    )
    return [Finding("projector", told, {"change": change})]


def _mixtures(interface: pd.DataFrame) -> list[Finding]:
    """Rows of a visual table, and the tokens that are mixed from them."""
    rows = _norm(interface, VISUAL_EMBEDDING_TABLE, NONZERO_ROWS)
    tokens = _norm(interface, PROJECTOR_OUTPUT, VISUAL)
    if not (usable(rows) and usable(tokens)):
        return []
    told = (
        f"Rows of the visual table have a mean norm of {significant(rows)}, the tokens mixed from "
        f"them {significant(tokens)}."
    )
    weight = _norm(interface, PROJECTOR_INPUT, VISUAL, "q50")
    mixed = ""
    if usable(weight):
        mixed = f"A median visual token mixes {significant(weight**-2, 2)} rows (1 / ||p||^2)."
    return [Finding("visual_table", told), Finding("mixed", mixed)]


def visual_stage(interface: pd.DataFrame) -> str:
    """Where visual tokens are compared with text: the decoder input.

    Where text enters the decoder without them, they stand beside the sequence, and it is the last
    stage that they reach.
    """
    here = [_has(interface, DECODER_INPUT, group) for group in (VISUAL, TEXT)]
    if here != [False, True]:
        return DECODER_INPUT
    return PROJECTOR_OUTPUT if _has(interface, PROJECTOR_OUTPUT, VISUAL) else VISION_ENCODER


def _has(interface: pd.DataFrame, stage: str, group: str) -> bool:
    return bool(((interface["stage"] == stage) & (interface["group"] == group)).any())


def _ratio(interface: pd.DataFrame, stage: str, ratio: str, group: str = VISUAL) -> Ratio:
    """Of the visual tokens of a stage, or of others."""
    return ratio_of(interface, ratio, stage=stage, group=group)


def _norm(interface: pd.DataFrame, stage: str, group: str, estimate: str = "mean") -> float:
    """An estimate of the norm; NaN where there is none."""
    rows = select(interface, "norm", stage=stage, group=group)
    return float(rows[estimate].iloc[0]) if len(rows) else math.nan
