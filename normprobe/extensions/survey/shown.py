"""How a survey is shown: sentences, figures, on a terminal and on the page."""

import textwrap
from dataclasses import replace
from itertools import chain
from math import nan
from textwrap import shorten

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure
from rich.console import Console

from normprobe.errors import number_of
from normprobe.extensions.survey.measure import FACTS, FAILED, PARTLY, SIZES
from normprobe.extensions.survey.printed import printed_of, printed_table
from normprobe.report.dots import Dots, draw_dots
from normprobe.report.figures.draw import Drawing
from normprobe.report.figures.lines import Given, panels
from normprobe.report.figures.style import (
    DOUBLE_WIDTH,
    SERIES_COLORS,
    shortened,
    use_log,
)
from normprobe.report.page.blocks import heading, note, printed, shown_table
from normprobe.report.ranked import first_screen, print_ranked, ranking_dots, with_brackets
from normprobe.report.ranking import (
    ATTENDED,
    DISPARITY,
    INERTIA,
    listed,
    ranking,
    ranking_sentences,
    runs_of,
    runs_side_by_side,
)
from normprobe.report.ratio_words import Estimate
from normprobe.report.readable import ReadableTable
from normprobe.report.sentences import CORRELATION, correlation_finding, correlation_sentence
from normprobe.report.terminal import print_sentence
from normprobe.report.verdict import Finding, Verdict, verdict_of
from normprobe.runs.run_folder import RunStore
from normprobe.tidy import INTERVAL, QUANTITY, wide

# --- in words ------------------------------------------------------------------------------------

_LONGEST = 300  # characters of a reason
_CUT = " \N{HORIZONTAL ELLIPSIS} (models.csv has all of it)"


def verdict(run: RunStore) -> Verdict:
    """Where visual norms are larger, by how much, and whether inertia goes with disparity."""
    survey, status = run.table("survey"), status_of(run.table("models"))
    models = ranked(survey, run.table("models"))
    failed = [name for name in status if status[name] == FAILED]
    headline, findings, closing = ranking_sentences(models, "models", failed)
    if partly := [name for name in runs_of(models) if status[name] == PARTLY]:
        findings.append(Finding("partly", f"Measured in part: {len(partly)} ({listed(partly)})."))
    if (survey[QUANTITY] == INERTIA).any():
        findings.append(correlation_finding(run.table(CORRELATION)))
    return verdict_of(headline, findings, closing)


def ranked(survey: pd.DataFrame, models: pd.DataFrame) -> pd.DataFrame:
    """The models by falling disparity, with their ranks, under short names."""
    measures = {str(model): {DISPARITY: Estimate(nan)} for model in models["model"]}
    numbers = survey[["model", QUANTITY, "mean", *INTERVAL]]
    for model, quantity, *ends in numbers.itertuples(index=False):
        measures[str(model)][quantity] = Estimate(*ends)
    return ranking([*measures.values()], _short_names(models))


def status_of(models: pd.DataFrame) -> dict[str, str]:
    """Whether each model was measured, by its short name."""
    return dict(zip(_short_names(models), models["status"], strict=True))


def reasons(models: pd.DataFrame) -> list[str]:
    """Why models lack numbers, a line each."""
    words = {FAILED: "failed", PARTLY: "was measured in part"}
    told = zip(_short_names(models), models["status"], models["reason"], strict=True)
    return [
        f"{name} {words.get(status, status)}: {shorten(str(reason), _LONGEST, placeholder=_CUT)}"
        for name, status, reason in told
        if not pd.isna(reason)
    ]


def _short_names(models: pd.DataFrame) -> list[str]:
    """As little of hub ids and folders as tells models apart: the end tells most."""
    names = models["model"].astype(str)
    short = names.str.rstrip("/").str.rpartition("/")[2]
    return [*(short if short.is_unique else names)]


# --- drawn ---------------------------------------------------------------------------------------


def drawings(run: RunStore) -> list[Drawing]:
    """The figures of a survey: inertia only where a model has it."""
    survey = run.table("survey")
    found = []
    if survey_dots(survey, run.table("models")):
        found.append(Drawing("survey", ("survey", "models"), draw_survey))
    if len(_with_both(survey)):
        found.append(Drawing("inertia", ("survey", CORRELATION), draw_inertia))
    return found


def survey_dots(survey: pd.DataFrame, models: pd.DataFrame) -> Dots | None:
    """Models by falling disparity."""
    words = "visual / text norm at the decoder input"
    return ranking_dots(ranked(survey, models), DISPARITY, words)


def draw_survey(title: str, survey: pd.DataFrame, models: pd.DataFrame, ax: Given = None) -> Figure:
    """Models from top to bottom by falling disparity, with their ranks."""
    dots = survey_dots(survey, models)
    assert dots is not None  # or it is no figure of the run
    return draw_dots(title, dots, ax)


_NUMBERED_NAME = 32  # characters of a model's name
_TITLE = 80  # characters of a line of the title
_LINE = 0.12  # inches of a name in the list
_SMALL = 6.5  # points


def draw_inertia(
    title: str, survey: pd.DataFrame, correlation: pd.DataFrame, ax: Given = None
) -> Figure:
    """Inertia over disparity, with 95 % intervals over images."""
    rows = _with_both(survey)
    drawing, grid = panels(title, DOUBLE_WIDTH, max(3.6, 1.0 + _LINE * len(rows)), ax=ax)
    axes = grid[0, 0]
    color = SERIES_COLORS[3]
    ends = (
        wide(survey, end).set_index("model").reindex_like(rows).fillna(rows) for end in INTERVAL
    )
    (x, y), (left, bottom), (right, top) = (of.to_numpy(float).T for of in (rows, *ends))
    axes.hlines(y, left, right, color=color, linewidth=0.8)
    axes.vlines(x, bottom, top, color=color, linewidth=0.8)
    axes.plot(x, y, "o", color=color)
    for number, place in enumerate(zip(x, y, strict=True), start=1):
        axes.annotate(
            f"{number}", place, xytext=(3, 2), textcoords="offset points", fontsize=_SMALL
        )
    names = [shortened(_last(str(name)), _NUMBERED_NAME) for name in rows.index]
    listed = "\n".join(f"{number} {name}" for number, name in enumerate(names, start=1))
    axes.text(1.02, 1, listed, transform=axes.transAxes, va="top", fontsize=_SMALL)
    axes.axhline(0, color="0.5", linewidth=0.6, linestyle=":")
    axes.axvline(1, color="0.5", linewidth=0.6, linestyle=":")
    use_log(axes, "x", np.array([*x, 1.0]))
    axes.set_xlabel("disparity: visual / text norm at the decoder input")
    axes.set_ylabel("inertia: text - visual angle (rad a layer)")
    said = textwrap.fill(correlation_sentence(correlation), _TITLE)
    axes.set_title(said, loc="left", fontsize=_SMALL)
    return drawing


def _last(name: str) -> str:
    """The name without its organisation."""
    return name.rstrip("/").rpartition("/")[2]


def _with_both(survey: pd.DataFrame) -> pd.DataFrame:
    """Disparity and inertia of models that have both, ordered and ranked as ``ranked`` does."""
    rows = wide(survey).set_index("model").reindex(columns=[DISPARITY, INERTIA]).dropna()
    return rows.sort_values(DISPARITY, key=lambda ratios: -np.abs(np.log(ratios)), kind="stable")


# --- on a terminal, and on the page --------------------------------------------------------------

#: Header and column of each number.
_COLUMNS = {
    "x prompt": DISPARITY,
    "x table": "ratio_to_table",
    "table": "table_norm",
    "last": "disparity_last",
    "inertia gap": INERTIA,
}
_OF_LAYERS = (
    "last: x prompt after the last layer; inertia gap: text - visual angle, radians a",
    "layer.",
)
_NOTES = (
    "x prompt: visual norm at the decoder input over that of the prompts' text, by",
    "geometric means. x table: mean norm over that of the text table (table).",
    "survey.csv has intervals.",
)
_HOW = "`normprobe show FOLDER --format md` or `tex` prints them."
#: What is in print and on the page, as far as any model has it.
_PRINTED = [DISPARITY, ATTENDED, "disparity_middle", "disparity_last", INERTIA, "norms_share"]
_PRINTED += ["ratio_to_table", "visual_norm", "text_norm", "table_norm"]


def show(run: RunStore, console: Console) -> None:
    """Print a line a model, and why models lack numbers."""
    models, held = _models(run), {*run.table("survey")[QUANTITY]}
    shown = {header: name for header, name in _COLUMNS.items() if name in held}
    title = number_of(len(models), "model")
    notes = [*_NOTES, *(_OF_LAYERS if "inertia gap" in shown else ())]
    print_ranked(title, models, shown, notes, console)
    for reason in reasons(run.table("models")):
        print_sentence(reason, console)
    if printed := printed_of(run):
        files = ", ".join(f"{name}.csv" for name in printed)
        print_sentence(f"The paper's tables of these models: {files}. {_HOW}", console)


def _models(run: RunStore) -> pd.DataFrame:
    """Models by rank with their numbers, and whether they were measured."""
    models = run.table("models")
    rows = runs_side_by_side(ranked(run.table("survey"), models)).rename(columns={"run": "model"})
    return rows.assign(status=rows["model"].map(status_of(models)))


def readable(name: str, run: RunStore) -> ReadableTable | None:
    """The paper's tables in its form; the models by rank, with intervals, and reasons below."""
    if name != "survey":
        return printed_table(name, run.table(name))
    held = {*run.table(name)[QUANTITY]}
    known = [quantity for quantity in _PRINTED if quantity in held]
    shown = with_brackets(_models(run)[["rank", "model", *known, "status"]])
    return replace(shown, notes=[*shown.notes, *reasons(run.table("models"))])


def lead(run: RunStore) -> Markup:
    """The models by disparity."""
    survey, models = run.rows_of("survey"), run.rows_of("models")
    if survey is None or models is None:
        return Markup()
    return first_screen(survey_dots(survey, models))


def section(run: RunStore) -> list[Markup]:
    """A row a model, why some failed, and what each is and took."""
    table = readable("survey", run)
    assert table is not None
    return [
        lead(run),
        *printed(replace(table, title="Models")),
        *chain.from_iterable(map(printed, printed_of(run).values())),
        heading("What each model is, and took"),
        shown_table(_facts(run)),
        note("Weights fetched, memory at the peak of its process, and seconds."),
    ]


def _facts(run: RunStore) -> pd.DataFrame:
    numbers = wide(run.table("survey")).reindex(columns=["model", *SIZES])
    models = run.table("models").merge(numbers.astype(dict.fromkeys(SIZES, "Int64")), "left")
    told = [*FACTS, *SIZES, "revision"]
    told = [name for name in told if name in models and models[name].notna().any()]
    took = _in_megabytes(run.table("cost")).drop(columns="model")
    return pd.concat([models[["model", *told]], took], axis=1)


def _in_megabytes(cost: pd.DataFrame) -> pd.DataFrame:
    sizes = {"fetched_bytes": "fetched (MB)", "peak_memory": "peak memory (MB)"}
    return cost.assign(**{name: cost[name] / 1e6 for name in sizes}).rename(columns=sizes)
