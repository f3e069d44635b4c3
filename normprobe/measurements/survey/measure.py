"""The tables of a survey: a row a model, from the runs that were made of it."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from normprobe.measurements import measurement
from normprobe.measurements.survey.printed import SurveyedModel, printed_tables
from normprobe.paper.numbers import row_of
from normprobe.report.ranking import ATTENDED, DISPARITY
from normprobe.report.ratio_words import Estimate, with_ends
from normprobe.report.sentences import CORRELATION, correlation_table
from normprobe.runs.run_folder import COMPLETE, RunFolder, read_record

#: Whether all measurements of a model were made, some, or none.
WHOLE, PARTLY, FAILED = "complete", "partial", "failed"

#: Numbers with intervals, in the order of their columns.
_RATIOS = (DISPARITY, ATTENDED, "ratio_to_table", "visual_norm", "text_norm")
_OF_LAYERS = ("disparity_middle", "disparity_last", "inertia_gap", "norms_share")
_OF_TABLES = {"table_norm": "text_norm", "table_std": "text_std", "table_loudest": "loudest_ratio"}
_OF_RECORD = ("model_type", "family", "norm_placement", "dtype")
_SIZES = ("hidden_size", "decoder_layers", "parameters")
#: What a model is, beside its numbers.
FACTS = (*_OF_RECORD, *_SIZES)


def survey_tables(
    outcomes: Sequence[Mapping[str, Any]], folders: Sequence[Path], measurements: Sequence[str]
) -> dict[str, pd.DataFrame]:
    """The tables of a survey."""
    runs = [dict(_runs(folder, measurements)) for folder in folders]
    rows = [_row(*of_model, measurements) for of_model in zip(outcomes, runs, strict=True)]
    survey = pd.DataFrame(rows).astype(dict.fromkeys(_SIZES, "Int64"))
    return {
        "survey": survey,
        "cost": pd.DataFrame([_cost(outcome) for outcome in outcomes]),
        CORRELATION: correlation_table(survey["disparity_input"], survey["inertia_gap"]),
        **printed_tables([_printed(*of_model) for of_model in zip(outcomes, runs, strict=True)]),
    }


def _runs(folder: Path, measurements: Sequence[str]) -> Iterator[tuple[str, RunFolder]]:
    """The complete runs of a model."""
    for name in measurements:
        record = read_record(folder / name)
        if record is not None and record["status"] == COMPLETE:
            yield name, RunFolder.open(folder / name)


def _row(
    outcome: Mapping[str, Any], runs: Mapping[str, RunFolder], measurements: Sequence[str]
) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for run in reversed(list(runs.values())):
        facts |= run.record
    sizes = facts.get("sizes", {})
    status = FAILED if not runs else WHOLE if len(runs) == len(measurements) else PARTLY
    return {
        "model": outcome["model"],
        "revision": facts.get("model_revision") or outcome["revision"] or None,
        **{name: facts.get(name) for name in _OF_RECORD},
        **{name: sizes.get(name) for name in _SIZES},
        **_numbers(runs),
        "status": status,
        "reason": _reason(outcome["failures"], status),
    }


def _numbers(runs: Mapping[str, RunFolder]) -> dict[str, float]:
    """Every number of a model, NaN where its run is not there."""
    found = {name: run for name, run in runs.items() if name != "embeddings"}
    measured: dict[str, float] = with_ends(
        dict.fromkeys((*_RATIOS, *_OF_LAYERS), Estimate(float("nan")))
    )
    for name in ("layers", "interface"):  # the ratio at the input is that of interface, if there
        if name in found:
            measured |= _measures(name, found[name])
    if "layers" in runs and (accounted := runs["layers"].rows_of("accounted")) is not None:
        share = measurement("layers").module("accounted").norms_share(accounted)
        measured |= with_ends({"norms_share": share})
    tables = _measures("embeddings", runs["embeddings"]) if "embeddings" in runs else {}
    return measured | {ours: tables.get(name, float("nan")) for ours, name in _OF_TABLES.items()}


def _printed(outcome: Mapping[str, Any], runs: Mapping[str, RunFolder]) -> SurveyedModel:
    """What the paper's tables say of a model."""
    rows: dict[str, pd.Series[Any]] = {}
    for name, run in runs.items():
        rows_of = measurement(name).published
        table = run.table(measurement(name).main_table)
        found = ((quantity, row_of(quantity, table, rows_of)) for quantity in rows_of)
        rows |= {quantity: row for quantity, row in found if row is not None}
    revision = f"@{outcome['revision']}" if outcome["revision"] else ""
    return SurveyedModel(f"{outcome['model']}{revision}", outcome["model"], rows)


def _measures(name: str, run: RunFolder) -> dict[str, float]:
    """What ranks the runs of a measurement."""
    offered = measurement(name)
    compared = offered.module("compared")
    table = run.table(offered.main_table)
    numbers: dict[str, float] = compared.measures(table, run.rows(compared.ROW_COLUMNS))
    return numbers


def _reason(failures: Mapping[str, str], status: str) -> str | None:
    """What is wrong, once where it is the same for all that was asked for."""
    asked: dict[str, list[str]] = {}
    for name, problem in failures.items():
        asked.setdefault(problem, []).append(name)
    if status == FAILED and len(asked) == 1:
        return next(iter(asked))
    return "; ".join(f"{', '.join(names)}: {problem}" for problem, names in asked.items()) or None


def _cost(outcome: Mapping[str, Any]) -> dict[str, Any]:
    return {name: outcome[name] for name in ("model", "fetched_bytes", "peak_memory", "seconds")}
