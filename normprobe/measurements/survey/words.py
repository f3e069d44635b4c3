"""What a survey says, in sentences."""

import pandas as pd

from normprobe.measurements.survey.measure import WHOLE
from normprobe.report.ratio_words import LOUD, Ratio
from normprobe.report.sentences import CORRELATION, correlation_sentence
from normprobe.runs.run_folder import RunStore


def verdict(run: RunStore) -> str:
    """In how many models visual tokens are louder, and whether inertia goes with disparity."""
    survey = run.table("survey")
    sentences = [_disparity(survey), _whole(survey)]
    if survey["inertia_gap"].notna().any():
        sentences.append(correlation_sentence(run.table(CORRELATION)))
    return " ".join(sentence for sentence in sentences if sentence)


def _disparity(survey: pd.DataFrame) -> str:
    columns = [f"disparity_input{end}" for end in ("", "_ci_low", "_ci_high")]
    ratios = [Ratio(*row) for row in survey[columns].astype(float).itertuples(index=False)]
    states = [ratio.state for ratio in ratios if ratio.usable]
    if not states:
        return ""
    told = [f"{LOUD.of(way)} in {states.count(way)}" for way in (1, -1, 0, None) if way in states]
    return f"Visual tokens at the decoder input: {', '.join(told)} of {len(states)} measured."


def _whole(survey: pd.DataFrame) -> str:
    left = int((survey["status"] != WHOLE).sum())
    lack = "lacks" if left == 1 else "lack"
    of = "Of 1 model" if len(survey) == 1 else f"Of {len(survey)} models"
    return f"{of}, {left} {lack} numbers, for the reason told." if left else ""
