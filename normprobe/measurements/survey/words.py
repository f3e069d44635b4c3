"""What a survey says, in sentences."""

from textwrap import shorten

import pandas as pd

from normprobe.measurements.survey.measure import FAILED, PARTLY
from normprobe.report.ranking import DISPARITY, listed, ranking, ranking_verdict
from normprobe.report.sentences import CORRELATION, correlation_sentence
from normprobe.runs.run_folder import RunStore

_LONGEST = 300  # characters of a reason
_CUT = " \N{HORIZONTAL ELLIPSIS} (survey.csv has all of it)"


def verdict(run: RunStore) -> str:
    """Where visual tokens are louder, by how much, and whether inertia goes with disparity."""
    survey = run.table("survey")
    models = ranked(survey)
    sentences = [ranking_verdict(models, "models")]
    if partly := models.loc[models["status"] == PARTLY, "run"].tolist():
        sentences.append(f"Measured in part: {len(partly)} ({listed(partly)}).")
    if survey["inertia_gap"].notna().any():
        sentences.append(correlation_sentence(run.table(CORRELATION)))
    return " ".join(filter(None, sentences))


def ranked(survey: pd.DataFrame) -> pd.DataFrame:
    """The models by falling disparity, with their ranks, under short names."""
    rows = survey[[DISPARITY, *(name for name in survey if name not in (DISPARITY, "model"))]]
    return ranking(rows.to_dict("records"), _short_names(survey))


def reasons(survey: pd.DataFrame) -> list[str]:
    """Why models lack numbers, a line each."""
    words = {FAILED: "failed", PARTLY: "was measured in part"}
    told = zip(_short_names(survey), survey["status"], survey["reason"], strict=True)
    return [
        f"{name} {words.get(status, status)}: {shorten(str(reason), _LONGEST, placeholder=_CUT)}"
        for name, status, reason in told
        if not pd.isna(reason)
    ]


def _short_names(survey: pd.DataFrame) -> list[str]:
    """As little of hub ids and folders as tells models apart: the end tells most."""
    names = survey["model"].astype(str)
    whole = (
        names + ("@" + survey["revision"].fillna("")).str.rstrip("@")
        if "revision" in survey
        else names
    )
    for short in (names.str.rstrip("/").str.rpartition("/")[2], names, whole):
        if short.is_unique:
            return short.tolist()
    return [f"{name} ({place})" for place, name in enumerate(whole, start=1)]
