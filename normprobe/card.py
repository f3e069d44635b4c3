"""A finished run as a model card tells it: a block of Markdown, and its numbers in ``model-index``.

print(with_card("", load_run("runs/mine")))
"""

import math
import os
import shlex
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, RepoCard
from huggingface_hub.repocard_data import eval_results_to_model_index

from normprobe.errors import NormprobeError, first_line, visible
from normprobe.measurements import measurement
from normprobe.options import MODULE_ROLES, TOKEN_ROLES, Loading, Sampling, flag, part_flag
from normprobe.quantities import INTERVAL, Quantity, declared
from normprobe.report.page.document import model_name, shared_facts
from normprobe.report.ranking import ATTENDED, DISPARITY
from normprobe.report.ratio_words import Estimate
from normprobe.report.readable import MISSING, ReadableTable, significant
from normprobe.report.table_text import markdown, markdown_text
from normprobe.run import Run, explained, require_repeatable
from normprobe.runs.files import own_bytes

#: What is told of a run, as far as it holds it.
_NUMBERS = (
    DISPARITY, ATTENDED, "disparity_video", "disparity_audio", "disparity_last", "inertia_gap",
    "ratio_to_table", "visual_norm",
)  # fmt: skip
#: Facts of a run beside them, in the words of the page.
_FACTS = ("model", "revision", "data", "dtype", "device", "attention", "versions")
_DIGESTS = ("weights", "prompts", "pictures")
#: Options that change how a run is done, not what it measures.
_LEFT_OUT = {"model", "device", "workers", "map", "verify"}


def require_sound(run: Run) -> None:
    """Refuse what others should not build on.

    Raises:
        NormprobeError: it cannot be measured again, or its numbers are in doubt.
    """
    require_repeatable(run)
    if doubts := run.record.get("doubts"):
        raise NormprobeError(
            f"the numbers of {run.path} are in doubt: {'; '.join(map(str, doubts))}",
            "`normprobe show` prints them; what is passed on should stand",
        )


def numbers_of(run: Run) -> dict[str, Estimate]:
    """What ranks a run of ``layers`` or ``interface``, each number with its 95 % interval."""
    offered = measurement(run.command)
    with explained(run.store):
        compared = offered.module("compared")
        found = compared.measures(run.table, run.store.rows(compared.ROW_COLUMNS))
        known = [name for name in _NUMBERS if not math.isnan(found.get(name, math.nan))]
        return {name: Estimate(*(found[name + end] for end in ("", *INTERVAL))) for name in known}


def quantities() -> dict[str, Quantity]:
    """What these numbers are, by name."""
    return {told.name: told for told in declared("measurements.survey")["survey"].quantities}


def revision_of(record: Mapping[str, Any]) -> str:
    """The commit that was measured; empty: of no hub."""
    return str(record.get("adapter_revision") or record.get("model_revision") or "")


def command_of(record: Mapping[str, Any], model: str = "") -> str:
    """The command that measures a run again, at the commit that it measured.

    Args:
        record: of a run of a checkpoint over samples.
        model: what the command calls its model; empty: as it was called.
    """
    options = {**record["options"], "revision": revision_of(record)}
    usual = {field.name: field.default for kind in (Loading, Sampling) for field in fields(kind)}
    words = ["normprobe", str(record["command"]), model or str(options["model"])]
    for name, value in options.items():
        if name in _LEFT_OUT or value in ("", None, False, [], usual.get(name)):
            continue
        if name in (*MODULE_ROLES, *TOKEN_ROLES, "kind"):
            words += part_flag(name, value).split(" ", 1)
        elif value is True:
            words.append(flag(name))
        else:
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            words += [flag(name), text]
    return visible(shlex.join(words))


def read_card(file: Path) -> str:
    """A card as it is, to the last byte; empty where there is no file."""
    try:
        return own_bytes(file, file.parent).decode() if os.path.lexists(file) else ""
    except (OSError, ValueError) as error:
        raise NormprobeError(
            f"{file} cannot be read: {first_line(error)}", "give a README.md in UTF-8"
        ) from error


def with_card(text: str, run: Run) -> str:
    """A model card with what a run found.

    Args:
        text: the card; empty: there is none yet. Its block of an earlier run of this command is
            replaced, or one is added behind it; beside it, its ``model-index`` alone is changed.
        run: of ``interface`` or ``layers``, complete.

    Raises:
        NormprobeError: the run is partial, in doubt or of something else, or the card has no
            metadata that can be read, or half a block.
    """
    require_sound(run)
    numbers = numbers_of(run)
    if not numbers:
        raise NormprobeError(
            f"{run.path} holds neither a disparity nor an inertia", "give a run with pictures"
        )
    result, block = _result(run, numbers), _block(run, numbers)
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    try:
        card = RepoCard(text.removeprefix(mark))
        index = card.data.get("model-index") or [{"name": model_name(run.store), "results": []}]
        kept = [old for old in index[0]["results"] if _place(old) != _place(result)]
        card.data["model-index"] = [{**index[0], "results": [*kept, result]}, *index[1:]]
    except (AttributeError, LookupError, TypeError, ValueError, yaml.YAMLError) as error:
        raise NormprobeError(
            f"the metadata of the card cannot be read: {first_line(error)}",
            "correct what stands between its two lines ---",
        ) from error
    card.text = _with_block(card.text, run.command, block)
    return f"{mark}{card}"


def _result(run: Run, numbers: Mapping[str, Estimate]) -> dict[str, Any]:
    """What ``model-index`` says of a run."""
    data, known = str(run.record["data"]), quantities()
    results = [
        EvalResult(
            task_type="image-text-to-text",
            task_name=f"normprobe {run.command}",
            dataset_type=data,
            dataset_name=data,
            metric_type=name,
            metric_name=known[name].words,
            metric_value=_short(number.value),
            metric_args={"low": _short(number.low), "high": _short(number.high)}
            if number.has_interval
            else None,
        )
        for name, number in numbers.items()
    ]
    made: dict[str, Any] = eval_results_to_model_index("", results)[0]["results"][0]
    return made


def _place(result: Mapping[str, Any]) -> tuple[Any, Any]:
    """Of what a result is: one of the same replaces it."""
    return result["task"], result["dataset"]


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _with_block(text: str, command: str, block: str) -> str:
    """The body of a card with a block between its marks, in place of an earlier one."""
    begin, end = (f"<!-- normprobe {command}: {word} -->" for word in ("begin", "end"))
    lines = "\r\n" if "\r\n" in text else "\n"
    block = f"{begin}\n{block}{end}".replace("\n", lines)
    if begin not in text and end not in text:
        return f"{text}{lines}{block}{lines}"
    before, _, behind = text.partition(begin)
    _, found, behind = behind.partition(end)
    if not found or begin in behind or end in before + behind:
        raise NormprobeError(
            f"the card does not hold one block between {begin} and {end}",
            "delete these two lines and what stands between them",
        )
    return before + block + behind


def _block(run: Run, numbers: Mapping[str, Estimate]) -> str:
    """The sentence of a run, its numbers, what it measured and how to measure it again."""
    known, rows = quantities(), []
    for name, number in numbers.items():
        value, low, high = (significant(n) for n in (number.value, number.low, number.high))
        interval = f"{low} to {high}" if number.has_interval else MISSING
        rows.append((known[name].words, value, interval, known[name].unit))
    with explained(run.store):
        said = measurement(run.command).headline(run.store)
        facts = [
            (words + " (digest)" * (words in _DIGESTS), visible(fact))
            for words, fact in shared_facts([run.store])
            if words in (*_FACTS, *_DIGESTS)
        ]
        facts.append(("samples", str(len(run.store.sample_ids()))))
        command = command_of(run.record)
    headers = [("quantity",), ("estimate",), ("95 % interval over images",), ("unit",)]
    table = markdown(ReadableTable(headers, rows, [False, True, True, False]))
    told = markdown(ReadableTable([("measured",), ("",)], facts, [False, False]))
    return (
        f"## Norms of visual and text tokens\n\n{markdown_text(visible(said))}\n\n{table}\n{told}\n"
        f"```bash\n{command}\n```\n\n"
        "Who has the run folder: `normprobe verify FOLDER` measures a few samples again.\n"
    )
