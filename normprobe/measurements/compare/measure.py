"""Put runs of one measurement side by side. Tables in, tables out, no model."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pandas as pd
from PIL import Image

from normprobe.errors import NormprobeError, number_of
from normprobe.measurements import compared_by, measurement, measurements
from normprobe.report.ranking import DISPARITY, INERTIA, numbers_of, ranking
from normprobe.report.ratio_words import Estimate
from normprobe.report.sentences import CORRELATION, correlation_table
from normprobe.runs.begin import differing
from normprobe.runs.run_folder import COMPLETE, RunFolder, RunStore
from normprobe.statistics.bootstrap import FEWEST
from normprobe.tidy import QUANTITY

_PICTURES = "pictures before their processor"
#: Of a record what tells what was measured, in words, and what it has a digest of. Pictures are
#: told as files hold them: another processor may make other pixels of the same.
_IDENTITIES = (
    ("weight_digests", "weights", "tensors"),
    ("prompt_hashes", "prompts", "prompts"),
    ("image_hashes", _PICTURES, "pictures"),
    ("pixel_hashes", "pixels behind their processors", "pictures"),
)


@dataclass(frozen=True)
class Comparison:
    """What a comparison finds."""

    # ``compare`` and ``ranking``, named as their CSV files, ``correlation`` where enough runs have
    # disparity and inertia, and what the measurement shows of all runs beside them
    tables: dict[str, pd.DataFrame]
    images: dict[str, Image.Image]  # pictures that these are about, by name
    facts: dict[str, Any]  # what its record says
    warnings: list[str]  # why a difference may not be one of the models


def open_runs(runs: Sequence[RunStore | Path]) -> list[RunStore]:
    """Open run folders and refuse what cannot stand side by side."""
    if len(runs) < 2:
        raise NormprobeError(
            f"compare needs at least two runs; received {len(runs)}",
            "give the run folders that earlier commands printed",
        )
    _refuse_twice([run if isinstance(run, Path) else run.path or run for run in runs])
    opened = [RunFolder.open(run) if isinstance(run, Path) else run for run in runs]
    for run in opened:
        offered = measurements().get(run.command)
        if offered is None or offered.compared is None:
            comparable = [name for name, each in measurements().items() if each.compared]
            raise NormprobeError(
                f"{_where(run)} is a run of {run.record.get('command')!r}; expected one of "
                f"{', '.join(comparable)}",
                "give run folders of one of these commands",
            )
        if run.record["status"] != COMPLETE:
            raise NormprobeError(
                f"{_where(run)} is not complete: it was interrupted",
                "finish it with --resume, or leave it out",
            )
    for what, name in (("command", "runs of different commands"), ("schema_version", "tables")):
        values = {str(run.record.get(what)): _where(run) for run in reversed(opened)}
        if len(values) > 1:
            differ = "; ".join(f"{path}: {value}" for value, path in reversed(values.items()))
            raise NormprobeError(
                f"cannot compare {name} ({what.replace('_', ' ')}): {differ}",
                "give runs of one command, all written by this version of normprobe",
            )
    return opened


def compared_runs(runs: Sequence[RunStore], labels: Sequence[str] | None = None) -> Comparison:
    """Join the main tables of runs, and rank them."""
    given = _checked_labels(labels, len(runs))
    names = [run.name for run in runs]
    steps = [
        step_of(run.record, name, label)
        for run, name, label in zip(runs, names, given or [""] * len(runs), strict=True)
    ]
    if not given:
        if len(set(names)) < len(names):
            names = [
                "/".join(run.path.resolve().parts[-2:]) if run.path else run.name for run in runs
            ]
        given = labels_of([run.record for run in runs], names)
    offered = measurement(runs[0].command)
    order = _in_order(steps)
    tables = [runs[place].table(offered.main_table) for place in order]
    ordered = [given[place] for place in order]
    training = _is_training(steps)
    in_steps = [step for place in order if (step := steps[place]) is not None] if training else None
    table = joined(tables, ordered, in_steps)
    compared = compared_by(offered.name)
    measures = [
        compared.measures(main, runs[place].rows(compared.ROW_COLUMNS))
        for main, place in zip(tables, order, strict=True)
    ]
    ranked = ranking(measures, ordered, in_steps)
    facts = {
        "model": f"{len(runs)} runs of {offered.name}",
        "data": _shared([run.record.get("data") for run in runs]),
        "compared": offered.name,
        "runs": {label: str(_where(runs[old])) for label, old in zip(ordered, order, strict=True)},
    }
    in_order = [runs[place] for place in order]
    facts["alike"] = alike([run.record for run in in_order], ordered)
    warnings = doubts_about_samples([run.record for run in runs])
    tables_of_all, images = {"compare": table, "ranking": ranked}, {}
    if len(runs) >= FEWEST and (ranked[QUANTITY] == INERTIA).any() and not training:
        numbers = (numbers_of(ranked, name, Estimate).values() for name in (DISPARITY, INERTIA))
        tables_of_all[CORRELATION] = correlation_table(*([n.value for n in of] for of in numbers))
    shared = getattr(compared, "shared", None)
    if shared is not None and (beside := shared(in_order, ordered)):
        tables_of_all |= beside
        images = dict(in_order[0].images())
    return Comparison(tables_of_all, images, facts, warnings)


def joined(
    tables: Sequence[pd.DataFrame], labels: Sequence[str], steps: Sequence[int] | None = None
) -> pd.DataFrame:
    """The tables below each other, each row labelled with its run, in the order given."""
    runs = pd.DataFrame({"run": list(labels)} | ({} if steps is None else {"step": list(steps)}))
    runs = runs.loc[runs.index.repeat([len(table) for table in tables])].reset_index(drop=True)
    return pd.concat([runs, pd.concat(tables, ignore_index=True)], axis=1)


def alike(records: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> list[str]:
    """Whether runs measured the same weights, prompts and pictures, as far as all of them know.

    Weights in different types are different numbers, whatever they were rounded from: of these
    nothing is said. Of prompts and pictures, those of samples that two runs share are compared.
    """
    told: list[str] = []
    for key, what, unit in _IDENTITIES:
        held = [found for record in records if isinstance(found := record.get(key), dict)]
        if len(held) < len(records):
            continue
        shared = set(held[0]).intersection(*held)
        of_shared = ""
        if what == "weights":
            known = len({str(record.get("dtype")) for record in records}) == 1
        else:
            if shared and len(shared) < max(map(len, held)):
                of_shared = f" of the {number_of(len(shared), 'sample')} that all runs hold"
            if key == "pixel_hashes":
                # Of other pictures they say nothing; nobody knows those of every layout.
                shared = {name for name in shared if all(found[name] for found in held)}
                if not any(one.startswith(f"same {_PICTURES}") for one in told):
                    continue
            held = [{name: found[name] for name in found if name in shared} for found in held]
            known = all(any(found.values()) for found in held)
        if known:
            told.append(_difference_words(f"{what}{of_shared}", unit, held, labels))
    return told


def _difference_words(
    what: str, unit: str, held: Sequence[Mapping[str, Any]], labels: Sequence[str]
) -> str:
    """Whether digests are the same in all runs; if not, in which they differ first."""
    first, *others = held
    changed = {
        label: f"{len(names)} of {len({*first, *other})} {unit} differ, first {names[0]}"
        for label, other in zip(labels[1:], others, strict=True)
        if (names := differing(first, other))
    }
    if not changed:
        return f"same {what}"
    if not set(first).intersection(*others):
        return f"other {what}"
    label, how = next(iter(changed.items()))
    if len(others) == 1:
        return f"other {what} ({how})"
    return f"other {what} than {labels[0]} in {len(changed)} of {len(others)} runs ({label}: {how})"


def doubts_about_samples(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """What to say of runs that stand side by side, but measured different samples."""
    samples = [record.get("sample_ids") for record in records]
    if all(ids == samples[0] for ids in samples):
        return []
    return ["the runs measured different samples: part of a difference may be the data's"]


def _refuse_twice(runs: Sequence[RunStore | Path]) -> None:
    seen = set[object]()
    for run in runs:
        key: object = run.resolve() if isinstance(run, Path) else id(run)
        if key in seen:
            where = run if isinstance(run, Path) else _where(run)
            raise NormprobeError(f"{where} is given twice", "give each run folder once")
        seen.add(key)


def _where(run: RunStore) -> Path | str:
    return run.path or "a run in memory"


def _checked_labels(labels: Sequence[str] | None, runs: int) -> list[str]:
    """The labels given by hand; none where none are."""
    given = list(labels or ())
    if given and len(given) != runs:
        raise NormprobeError(
            f"{runs} runs but {len(given)} labels", "pass --label once for each run, or not at all"
        )
    if len(set(given)) < len(given):
        raise NormprobeError(f"labels repeat: {', '.join(given)}", "pass different labels")
    return given


def _is_training(steps: Sequence[int | None]) -> bool:
    """Whether the runs are checkpoints of one training: each has a step of its own."""
    return None not in steps and len(set(steps)) == len(steps)


def _in_order(steps: Sequence[int | None]) -> list[int]:
    """Places of the runs: by step for a training, else as given."""
    places = list(range(len(steps)))
    return sorted(places, key=lambda place: steps[place] or 0) if _is_training(steps) else places


def _shared(values: Sequence[Any]) -> Any:
    """The value that all have; None where they differ."""
    return values[0] if all(value == values[0] for value in values) else None


# --- a short name for each run, and the training step that it measured ---------------------------

#: A step in the name of a checkpoint or of a run folder: checkpoint-500, step_000500.
_STEP = re.compile(r"(?:^|[^a-z])(?:checkpoint|ckpt|step|steps|iter|global_step)[-_]?(\d+)", re.I)
_LONGEST_LABEL = 28  # characters

#: What tells runs apart, most telling first; a later fact is added where earlier ones are equal.
_FACTS: tuple[tuple[str, Callable[[Mapping[str, Any]], object]], ...] = (
    ("model", lambda record: str(record.get("model") or "").rstrip("/").split("/")[-1]),
    ("alignment", lambda record: "aligned" if record.get("alignment") else "unaligned"),
    ("step", lambda record: None if record.get("step") is None else f"step {record['step']}"),
    ("data", lambda record: str(record.get("data") or "").rstrip("/").split("/")[-1]),
    ("revision", lambda record: str(record.get("model_revision") or "")[:8]),
    ("dtype", lambda record: record.get("dtype")),
    ("attention", lambda record: _attention(record.get("attn_implementation"))),
)


def labels_of(records: Sequence[Mapping[str, Any]], folders: Sequence[str]) -> list[str]:
    """A short and unique label for each run: the model, and what else tells the runs apart."""
    facts = [[str(fact(record) or "") for record in records] for _, fact in _FACTS]
    chosen: list[list[str]] = []
    for values in [*facts, list(folders)]:
        if chosen and len(set(zip(*chosen, strict=True))) == len(records):
            break
        # The same for all tells nothing; the first fact that tells anything begins the label.
        if len(set(values)) > 1:
            chosen.append(values)
    chosen = chosen or [facts[0]]
    texts = [" ".join(filter(None, parts)) or "run" for parts in zip(*chosen, strict=True)]
    return _numbered([_shortened(text) for text in texts])


def step_of(record: Mapping[str, Any], folder: str, label: str = "") -> int | None:
    """Which step of a training a run measured.

    Returns:
        The step; None where nothing tells one.
    """
    if label.isdigit():
        return int(label)
    if isinstance(record.get("step"), int):
        return int(record["step"])
    source = str((record.get("options") or {}).get("model") or "")
    for name in (label, str(record.get("model") or ""), source, folder):
        found = _STEP.findall(name)
        if found:
            return int(found[-1])
    return None


def _attention(by_part: object) -> object:
    """One word where all parts run the same; run folders of older versions hold one."""
    if not isinstance(by_part, Mapping):
        return by_part
    return "/".join(dict.fromkeys(map(str, by_part.values())))


def _shortened(text: str) -> str:
    """The head and the tail of a long name: both tell more than its middle."""
    if len(text) <= _LONGEST_LABEL:
        return text
    tail = _LONGEST_LABEL // 2 - 1
    return f"{text[: _LONGEST_LABEL - tail - 1]}…{text[-tail:]}"


def _numbered(labels: Sequence[str]) -> list[str]:
    """Labels that occur before get a number."""
    unique: list[str] = []
    for label in labels:
        names = (f"{label[: _LONGEST_LABEL - 4]} #{number}" for number in count(2))
        unique.append(label if label not in unique else next(n for n in names if n not in unique))
    return unique
