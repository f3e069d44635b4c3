"""What the ranking of compared runs says, in sentences."""

from collections.abc import Mapping, Sequence

import pandas as pd

from normprobe.measurements.compare.table import numbers_of, told_apart, told_from_zero
from normprobe.report.ratio_words import LOUD, Estimate, Ratio, brackets, factor, ratio_in_words
from normprobe.report.readable import of_one_size
from normprobe.report.sentences import CORRELATION, correlation_sentence
from normprobe.runs.run_folder import RunStore

_NAMED = 4  # runs in a list
_DISPARITY = "norm disparity at the decoder input"


def verdict(run: RunStore) -> str:
    """Who has the largest and the smallest disparity, and whether inertia goes with it."""
    said = ranking_verdict(run.table("ranking"))
    correlation = run.rows_of(CORRELATION)
    if correlation is None:
        return said
    return f"{said} {correlation_sentence(correlation, 'runs')}".strip()


def alike_sentence(run: RunStore) -> str:
    """Whether the runs measured the same weights, prompts and pictures; empty: nobody knows."""
    told = run.record.get("alike")
    return f"Measured: {'; '.join(map(str, told))}." if isinstance(told, list) and told else ""


def ranking_verdict(ranking: pd.DataFrame) -> str:
    """Who has the largest and the smallest disparity, and where inertia is largest.

    Runs whose intervals overlap are named together: the numbers do not tell them apart.
    """
    if "disparity_input" not in ranking:
        return ""
    ratios = numbers_of(ranking, "disparity_input", Ratio)
    ratios = {run: ratio for run, ratio in ratios.items() if ratio.usable}
    if len(ratios) < 2:
        return ""
    sentences = [_extremes(ratios)]
    if "step" in ranking:
        steps = dict(zip(ranking["run"], ranking["step"], strict=True))
        sentences.insert(0, _first_and_last(ratios, steps))
    if "inertia_gap" in ranking:
        sentences += _inertia(numbers_of(ranking, "inertia_gap", Estimate))
    return f"{'. '.join(sentences)}. {brackets(list(ratios.values()))}"


def _first_and_last(ratios: Mapping[str, Ratio], steps: Mapping[str, int]) -> str:
    """From the first to the last step of a training."""
    first, last = (of(ratios, key=steps.__getitem__) for of in (min, max))
    before, after = told_apart({step: ratios[step] for step in (first, last)}).values()
    apart = before.lies_beyond(after) or after.lies_beyond(before)
    return (
        f"At the decoder input visual tokens go from {_loudness(ratios[first])} at step "
        f"{steps[first]} to {_loudness(ratios[last])} at step {steps[last]}"
        f"{'' if apart else ', not told apart'}"
    )


def _extremes(ratios: Mapping[str, Ratio]) -> str:
    sizes = {run: ratio.size for run, ratio in ratios.items()}
    largest = _foremost(sizes)
    smallest = _foremost({run: size.inverse for run, size in sizes.items()})
    told = {run: _loudness(ratio) for run, ratio in ratios.items()}
    if len(largest) == len(smallest) == len(ratios):
        return f"The {_DISPARITY} does not tell the runs apart: {_listed(largest, told)}"
    return (
        f"The {_DISPARITY} is largest in {_listed(largest, told)} and smallest in "
        f"{_listed(smallest, told)}"
    )


def _inertia(gaps: Mapping[str, Estimate]) -> list[str]:
    """Where text tokens turn ahead of visual ones by most, and where they fall behind."""
    gaps = {run: gap for run, gap in gaps.items() if gap.value == gap.value}
    told = {run: _radians(gap) for run, gap in gaps.items()}
    ways = told_from_zero(gaps)
    ahead = {run: gap for run, gap in gaps.items() if ways[run] == 1}
    behind = [run for run in gaps if ways[run] == -1]
    sentences = []
    if ahead:
        most = _listed(_foremost(ahead), told)
        sentences.append(f"Text tokens turn ahead of visual ones by most in {most}")
    if behind:
        sentences.append(f"Visual tokens turn ahead of text in {_listed(behind, told)}")
    if gaps and not sentences:
        sentences.append("In no run is the angle of text and of visual tokens told apart")
    return sentences


def _foremost(numbers: Mapping[str, Estimate]) -> list[str]:
    """The runs that no other lies beyond, by falling number."""
    runs = sorted(numbers, key=lambda run: -numbers[run].value)
    wide = told_apart(numbers)
    return [run for run in runs if not any(o.lies_beyond(wide[run]) for o in wide.values())]


def _listed(runs: Sequence[str], told: Mapping[str, str]) -> str:
    names = [f"{run} ({told[run]})" for run in runs[:_NAMED]]
    if len(runs) > _NAMED:
        names.append(f"{len(runs) - _NAMED} more")
    return f"{', '.join(names[:-1])} and {names[-1]}" if names[1:] else names[0]


def _loudness(ratio: Ratio) -> str:
    """``82 x [68, 102] louder``; ``about as loud, 1.10 x [0.90, 1.20]``."""
    if ratio.state in (0, None):
        return f"{LOUD.of(ratio.state)}, {factor([ratio])}"
    return ratio_in_words([ratio], LOUD)


def _radians(gap: Estimate) -> str:
    value, *ends = of_one_size([gap.value, *([gap.low, gap.high] if gap.has_interval else [])])
    interval = f" [{', '.join(ends)}]" if ends else ""
    return f"{value}{interval} radians a layer"
