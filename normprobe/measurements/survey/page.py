"""The section of the page that shows a survey."""

from itertools import chain

import pandas as pd

from normprobe.measurements.survey.printed import printed_of
from normprobe.measurements.survey.words import verdict
from normprobe.report.page.blocks import heading, note, printed, sentence, table
from normprobe.report.page.markup import Markup
from normprobe.runs.run_folder import RunStore

_ENDS = ("_ci_low", "_ci_high")


def headline(run: RunStore) -> str:
    """In how many models visual tokens are louder, and whether inertia goes with disparity."""
    return verdict(run)


def section(run: RunStore) -> list[Markup]:
    """What it says, a row a model without the ends of intervals, and what each model took."""
    survey = run.table("survey")
    return [
        sentence(headline(run)),
        heading("Models"),
        table(survey[[name for name in survey if not str(name).endswith(_ENDS)]]),
        note("survey.csv holds the 95 % interval of each number."),
        *chain.from_iterable(map(printed, printed_of(run).values())),
        heading("What each model took"),
        table(_in_megabytes(run.table("cost"))),
        note("Weights fetched, memory at the peak of its process, and seconds."),
    ]


def _in_megabytes(cost: pd.DataFrame) -> pd.DataFrame:
    sizes = {"fetched_bytes": "fetched (MB)", "peak_memory": "peak memory (MB)"}
    return cost.assign(**{name: cost[name] / 1e6 for name in sizes}).rename(columns=sizes)
