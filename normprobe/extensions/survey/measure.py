"""The tables of a survey, from the runs that were made of each model."""

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import nan
from pathlib import Path
from typing import Any

import pandas as pd

from normprobe.extensions.survey.printed import SurveyedModel, printed_tables
from normprobe.measurements import compared_by, measurement
from normprobe.measurements.layers.accounted import norms_share
from normprobe.paper.numbers import STATISTICS, statistic_of
from normprobe.report.ranking import ATTENDED, DISPARITY, INERTIA, measures_table
from normprobe.report.ratio_words import Estimate
from normprobe.report.sentences import CORRELATION, correlation_table
from normprobe.runs.run_folder import COMPLETE, RunFolder, read_record

#: Whether all measurements of a model were made, some, or none.
WHOLE, PARTLY, FAILED = "complete", "partial", "failed"

#: What a model is, beside its numbers.
FACTS = ("model_type", "family", "norm_placement", "dtype")
SIZES = ("hidden_size", "decoder_layers", "parameters")
#: Other numbers, in the order of their rows.
_RATIOS = (DISPARITY, ATTENDED, "ratio_to_table", "visual_norm", "text_norm")
_OF_LAYERS = ("disparity_middle", "disparity_last", INERTIA, "norms_share")
_OF_TABLES = {"table_norm": "text_norm", "table_std": "text_std", "table_loudest": "loudest_ratio"}


def survey_tables(
    outcomes: Sequence[Mapping[str, Any]], folders: Sequence[Path], measurements: Sequence[str]
) -> dict[str, pd.DataFrame]:
    """The tables of a survey."""
    runs = [dict(_runs(folder, measurements)) for folder in folders]
    named, numbers = _named_by_revision(outcomes), [*map(_numbers, runs)]
    models = pd.DataFrame([_facts(*of, measurements) for of in zip(named, runs, strict=True)])
    survey = measures_table(models[["model"]], numbers).dropna(subset="mean", ignore_index=True)
    pairs = ([found[name].value for found in numbers] for name in (DISPARITY, INERTIA))
    return {
        "survey": survey,
        "models": models,
        "cost": pd.DataFrame([_cost(outcome) for outcome in named]),
        CORRELATION: correlation_table(*pairs),
        **printed_tables([_printed(*of_model) for of_model in zip(outcomes, runs, strict=True)]),
    }


def _named_by_revision(outcomes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Several revisions of one model are called by their own."""
    models = [outcome["model"] for outcome in outcomes]
    return [
        {**o, "model": _called(o) if models.count(o["model"]) > 1 else o["model"]} for o in outcomes
    ]


def _called(outcome: Mapping[str, Any]) -> str:
    """A model and the revision that was asked for."""
    return f"{outcome['model']}@{outcome['revision']}" if outcome["revision"] else outcome["model"]


def _runs(folder: Path, measurements: Sequence[str]) -> Iterator[tuple[str, RunFolder]]:
    """The complete runs of a model."""
    for name in measurements:
        record = read_record(folder / name)
        if record is not None and record["status"] == COMPLETE:
            yield name, RunFolder.open(folder / name)


def _facts(
    outcome: Mapping[str, Any], runs: Mapping[str, RunFolder], measurements: Sequence[str]
) -> dict[str, Any]:
    """What a model is, and what became of it."""
    facts = ChainMap(*(run.record for run in runs.values()))  # the first has the say
    status = FAILED if not runs else WHOLE if len(runs) == len(measurements) else PARTLY
    return {
        "model": outcome["model"],
        "revision": facts.get("model_revision") or outcome["revision"] or None,
        **{name: facts.get(name) for name in FACTS},
        "status": status,
        "reason": _reason(outcome["failures"], status),
    }


def _numbers(runs: Mapping[str, RunFolder]) -> dict[str, Estimate]:
    """Every number of a model, NaN where its run is not there."""
    found = dict.fromkeys((*SIZES, *_RATIOS, *_OF_LAYERS), Estimate(nan))
    sizes = ChainMap(*(run.record for run in runs.values())).get("sizes", {})
    found |= {name: Estimate(float(sizes[name])) for name in SIZES if sizes.get(name) is not None}
    for name in ("layers", "interface"):  # the ratio at the input is that of interface, if there
        if name in runs:
            found |= _measures(name, runs[name])
    if "layers" in runs and (accounted := runs["layers"].rows_of("accounted")) is not None:
        found["norms_share"] = norms_share(accounted)
    tables = _measures("embeddings", runs["embeddings"]) if "embeddings" in runs else {}
    return found | {ours: tables[name] for ours, name in _OF_TABLES.items() if name in tables}


def _printed(outcome: Mapping[str, Any], runs: Mapping[str, RunFolder]) -> SurveyedModel:
    """What the paper's tables say of a model."""
    numbers: dict[tuple[str, str], float] = {}
    for name, run in runs.items():
        rows_of = measurement(name).published
        table = run.table(measurement(name).main_table)
        found = ((key, statistic_of(*key, table, rows_of)) for key in product(rows_of, STATISTICS))
        numbers |= {key: number for key, number in found if number is not None}
    return SurveyedModel(_called(outcome), outcome["model"], numbers)


def _measures(name: str, run: RunFolder) -> dict[str, Estimate]:
    """What ranks the runs of a measurement."""
    compared, table = compared_by(name), run.table(measurement(name).main_table)
    return compared.measures(table, run.rows(compared.ROW_COLUMNS))


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
