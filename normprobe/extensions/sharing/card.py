"""A finished run as a model card tells it: a block of Markdown, and its numbers in ``model-index``.

print(with_card("", load_run("runs/mine")))
"""

import math
import os
import shlex
from collections.abc import Mapping
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from huggingface_hub import EvalResult, RepoCard
from huggingface_hub.repocard_data import eval_results_to_model_index

from normprobe.errors import NormprobeError, first_line, markdown_text, visible
from normprobe.measurements import compared_by, measurement
from normprobe.options import PART_ROLES, Loading, Sampling, flag, part_flag
from normprobe.report.page.document import model_name, shared_facts
from normprobe.report.ranked import with_brackets
from normprobe.report.ranking import ATTENDED, DISPARITY, INERTIA
from normprobe.report.ratio_words import Estimate, Ratio, agreeing
from normprobe.report.readable import ReadableTable, significant
from normprobe.report.table_text import markdown
from normprobe.run import Run, explained, require_repeatable
from normprobe.runs.files import own_bytes
from normprobe.tidy import Quantity

#: What is told of a run, as far as it holds it.
_NUMBERS = (
    DISPARITY, ATTENDED, "disparity_image", "disparity_video", "disparity_audio", "disparity_last",
    INERTIA, "ratio_to_table", "visual_norm",
)  # fmt: skip
#: Facts of a run beside them, in the words of the page.
_FACTS = (
    "model", "revision", "weights", "data", "prompts", "pictures", "dtype", "device", "attention",
    "versions",
)  # fmt: skip
#: The commands whose runs have a card.
_RANKED = ("layers", "interface")
#: Options that change how a run is done, not what it measures.
_LEFT_OUT = {"model", "device", "workers", "map", "verify"}


def require_sound(run: Run) -> None:
    """Refuse what others should not build on: partial, not to be repeated, or in doubt."""
    require_repeatable(run)
    if doubts := run.record.get("doubts"):
        raise NormprobeError(
            f"the numbers of {run.path} are in doubt: {'; '.join(map(str, doubts))}",
            "pass on a run whose numbers stand",
        )


def ranked_numbers(run: Run) -> dict[str, Estimate]:
    """What ranks a run of ``layers`` or ``interface``, each number with its 95 % interval."""
    if run.command not in _RANKED:
        return {}
    with explained(run.store):
        compared = compared_by(run.command)
        found = compared.measures(run.table, run.store.rows(compared.ROW_COLUMNS))
        known = [name for name in _NUMBERS if name in found and not math.isnan(found[name].value)]
        return {name: found[name] for name in known}


def quantities() -> dict[str, Quantity]:
    """What these numbers are, by name."""
    return measurement("compare").quantities()["ranking"].numbers


def revision_of(record: Mapping[str, Any]) -> str:
    """The commit that was measured; empty: of no hub."""
    return str(record.get("adapter_revision") or record.get("model_revision") or "")


def repeating_command(record: Mapping[str, Any], model: str = "") -> str:
    """The command that measures a run again, of the same commit; ``model``: called so there."""
    options = {**record["options"], "revision": revision_of(record)}
    usual = {field.name: field.default for kind in (Loading, Sampling) for field in fields(kind)}
    words = ["normprobe", str(record["command"]), model or str(options["model"])]
    for name, value in options.items():
        if name in _LEFT_OUT or value in ("", None, [], usual.get(name)) or value is False:
            continue  # 0 is a seed
        if name in PART_ROLES:
            words += part_flag(name, value).split(" ", 1)
        elif value is True:
            words.append(flag(name))
        else:
            words += [flag(name), ",".join(value) if isinstance(value, list) else str(value)]
    return visible(shlex.join(words))


def read_card(file: Path) -> str:
    """A card as it is; empty where there is no file."""
    try:
        return own_bytes(file, file.parent).decode("utf-8-sig") if os.path.lexists(file) else ""
    except (OSError, ValueError) as error:
        raise NormprobeError(
            f"{file} cannot be read: {first_line(error)}", "give a README.md in UTF-8"
        ) from error


def with_card(text: str, run: Run) -> str:
    """A model card with the block of a run in place of an earlier one of its command.

    Its ``model-index`` has the numbers; the rest of ``text``, the card, is as it was.

    Raises:
        NormprobeError: the run is of something else or ``require_sound`` refuses it, or the card
            has no metadata that can be read, or half a block.
    """
    require_sound(run)
    numbers = ranked_numbers(run)
    if not numbers:
        told = (
            f"{run.path} holds no disparity, as no sample has a picture"
            if run.command in _RANKED
            else f"{run.path} is a run of {run.command}, and a card is of {' or '.join(_RANKED)}"
        )
        raise NormprobeError(told, "give a run of normprobe layers with pictures")
    block, result = _block(run, numbers), _result(run, numbers)
    try:
        card = RepoCard(text)
        first, *others = card.data.get("model-index") or [{"name": visible(model_name(run.store))}]
        kept = [
            old
            for old in first.get("results", [])
            if (old["task"], old["dataset"]) != (result["task"], result["dataset"])
        ]
        card.data["model-index"] = [{**first, "results": [*kept, result]}, *others]
    except (AttributeError, LookupError, TypeError, ValueError, yaml.YAMLError) as error:
        raise NormprobeError(
            f"the metadata of the card cannot be read: {first_line(error)}",
            "correct what stands between its two lines ---",
        ) from error
    card.text = _with_block(card.text, run.command, block)
    return str(card)


def _result(run: Run, numbers: Mapping[str, Estimate]) -> dict[str, Any]:
    """What ``model-index`` says of a run, as the hub's library spells it."""
    data, known = visible(str(run.record["data"])), quantities()
    results = [
        EvalResult(
            task_type="image-text-to-text",
            task_name="norms of visual and text tokens",
            dataset_type=data,
            dataset_name=data,
            dataset_config=f"normprobe {run.command}",  # the hub merges what has no other
            metric_type=name,
            metric_name=known[name].words,
            metric_value=float(f"{number.value:.4g}"),
            metric_args={"low": float(f"{number.low:.4g}"), "high": float(f"{number.high:.4g}")}
            if number.has_interval
            else None,
        )
        for name, number in numbers.items()
    ]
    made: dict[str, Any] = eval_results_to_model_index("", results)[0]["results"][0]
    return made


def _with_block(text: str, command: str, block: str) -> str:
    """The body of a card with a block between its marks, in place of an earlier one."""
    begin, end = (f"<!-- normprobe {command}: {word} -->" for word in ("begin", "end"))
    newline = "\r\n" if "\r\n" in text else "\n"
    block = f"{begin}\n{block}{end}".replace("\n", newline)
    if begin not in text and end not in text:
        return f"{text}{newline}{block}{newline}"
    before, _, behind = text.partition(begin)
    inside, _, behind = behind.partition(end)
    if f"{before}{begin}{inside}{end}{behind}" != text or begin in behind or end in behind:
        raise NormprobeError(
            f"the card does not hold one block between {begin} and {end}",
            "delete these two lines and what stands between them",
        )
    return before + block + behind


def in_short(numbers: Mapping[str, Estimate]) -> str:
    """What a reader of a card is told, in 25 words at most: two numbers, with their intervals."""
    if (attended := numbers.get(ATTENDED)) is not None and DISPARITY not in numbers:
        return f"Text attends to image states of {_shown(attended)} times the norm of text tokens."
    if DISPARITY not in numbers:
        name, number = next(iter(numbers.items()))
        return f"{quantities()[name].words}: {_shown(number)}."
    first = f"Entering the language model, image tokens have {_shown(numbers[DISPARITY])} times"
    first = f"{first} the norm of text tokens"
    if (gap := numbers.get(INERTIA)) is not None:
        more = gap.value < 0
        turned = Estimate(-gap.value, -gap.high, -gap.low) if more else gap
        return f"{first}; a layer turns them {_shown(turned)} radians {'more' if more else 'less'}."
    if (table := numbers.get("ratio_to_table")) is not None:
        return f"{first} and {_shown(table)} times that of the vocabulary."
    return f"{first}."


def _shown(number: Estimate) -> str:
    told = [each for each in astuple(number) if not math.isnan(each)]
    if isinstance(number, Ratio):
        value, *ends = agreeing(told)
    else:
        value, *ends = (significant(each, 2) for each in told)
    return f"{value} [{', '.join(ends)}]" if ends else value


def _block(run: Run, numbers: Mapping[str, Estimate]) -> str:
    """The sentence of a run, its numbers, what it measured and how to measure it again."""
    known = quantities()
    rows = [
        {"quantity": known[n].words, "estimate": number, "unit": known[n].unit}
        for n, number in numbers.items()
    ]
    said = markdown_text(in_short(numbers))
    with explained(run.store):
        facts = [(words, visible(of)) for words, of in shared_facts([run.store]) if words in _FACTS]
        command = repeating_command(run.record)
    facts.append(("samples", str(len(run.store.sample_ids()))))
    digests = ["weights, prompts, pictures: digests of all."]
    table = markdown(with_brackets(pd.DataFrame(rows)))
    told = markdown(ReadableTable([("measured",), ("",)], facts, [False, False], digests))
    return (
        f"## Norms of visual and text tokens\n\n{said}\n\n{table}\n{told}\n"
        f"```bash\n{command}\n```\n\n"
        "Who has the run folder: `normprobe verify FOLDER` measures a few samples again.\n"
    )
