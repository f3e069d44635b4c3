"""What grounding.csv says, in sentences."""

from collections.abc import Mapping, Sequence

import pandas as pd

from normprobe.report.ratio_words import OPEN, Estimate, Words, brackets
from normprobe.report.readable import of_one_size
from normprobe.report.sentences import layer_names, out_of
from normprobe.runs.run_folder import RunStore

_CLOSER = Words("closer to the word", "farther from it", OPEN)
_HIGHER = Words("higher", "lower", OPEN)


def verdict(run: RunStore) -> str:
    """What the visual tokens that a word means have ahead of the others, layer by layer."""
    return grounding_verdict(run.table("grounding"))


def grounding_verdict(grounding: pd.DataFrame) -> str:
    """What the visual tokens that a word means have ahead of the others, layer by layer."""
    cosines, scores = gaps_of(grounding, "cosine"), gaps_of(grounding, "score")
    if not cosines:
        return ""
    inside = "visual tokens inside the box of a word"
    samples = int(grounding["samples"].max())
    sentences = [
        f"Against those outside, {inside} are {_told(cosines, _CLOSER, 'after', 'cosine gap')}."
    ]
    if scores:
        told = _told(scores, _HIGHER, "in", "gap")
        held = out_of(grounding["score_samples"].max(), samples)
        sentences.append(f"The attention score that they draw from it{held} is {told}.")
    return " ".join([*sentences, brackets([*cosines.values()], samples, "layers")])


def gaps_of(grounding: pd.DataFrame, quantity: str) -> dict[int, Estimate]:
    """The gap of each layer that has one, with its band over all layers."""
    column = f"{quantity}_gap"
    columns = [column, f"{column}_band_low", f"{column}_band_high"]
    known = grounding[grounding[column].notna()]
    numbers = known.reindex(columns=columns).astype(float).itertuples(index=False)
    return {int(layer): Estimate(*row) for layer, row in zip(known["layer"], numbers, strict=True)}


def _told(gaps: Mapping[int, Estimate], words: Words, where: str, what: str) -> str:
    """Each direction with its layers and the ends of its gaps."""
    if not any(gap.has_interval for gap in gaps.values()):
        return f"told apart by no interval ({what} {_ends(list(gaps.values()))})"
    parts = []
    for sign, word in ((1, words.above), (-1, words.below), (None, words.alike)):
        if layers := [layer for layer, gap in gaps.items() if gap.sign == sign]:
            ends = _ends([gaps[layer] for layer in layers])
            parts.append(f"{word} {where} {layer_names(layers)} ({what} {ends})")
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if parts[1:] else parts)


def _ends(gaps: Sequence[Estimate]) -> str:
    """``0.01 to 0.03 [0.004, 0.05]``: smallest and largest, lowest and highest end."""
    values = [of(gap.value for gap in gaps) for of in (min, max)]
    known = [gap for gap in gaps if gap.has_interval]
    ends = [min(gap.low for gap in known), max(gap.high for gap in known)] if known else []
    least, most, *told = of_one_size([*values, *ends])
    text = " to ".join(dict.fromkeys([least, most]))
    return f"{text} [{', '.join(told)}]" if told else text
