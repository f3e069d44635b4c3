"""What grounding.csv says, in sentences."""

from collections.abc import Mapping, Sequence

import pandas as pd

from normprobe.measurements.grounding.gaps import by_direction, gaps_of
from normprobe.report.ratio_words import OPEN, Estimate, Words, brackets
from normprobe.report.readable import of_one_size
from normprobe.report.sentences import layer_names
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
    sentences = [
        f"Against those outside, {inside} are {_told(cosines, _CLOSER, 'after', 'cosine gap')}."
    ]
    if scores:
        told = _told(scores, _HIGHER, "in", "gap")
        sentences.append(f"The attention score that they draw from it is {told}.")
    samples = int(grounding["samples"].max())
    return " ".join([*sentences, brackets([*cosines.values()], samples, "layers")])


def _told(gaps: Mapping[int, Estimate], words: Words, where: str, what: str) -> str:
    """Each direction with its layers and the ends of its gaps."""
    if not any(gap.has_interval for gap in gaps.values()):
        return f"told apart by no interval ({what} {_ends(list(gaps.values()))})"
    word = {1: words.above, -1: words.below, 0: words.alike}
    parts = [
        f"{word[way]} {where} {layer_names(layers)} "
        f"({what} {_ends([gaps[layer] for layer in layers])})"
        for way, layers in by_direction(gaps).items()
    ]
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if parts[1:] else parts)


def _ends(gaps: Sequence[Estimate]) -> str:
    """``0.01 to 0.03 [0.004, 0.05]``: smallest and largest, lowest and highest end."""
    values = [of(gap.value for gap in gaps) for of in (min, max)]
    known = [gap for gap in gaps if gap.has_interval]
    ends = [min(gap.low for gap in known), max(gap.high for gap in known)] if known else []
    least, most, *told = of_one_size([*values, *ends])
    text = " to ".join(dict.fromkeys([least, most]))
    return f"{text} [{', '.join(told)}]" if told else text
