"""A short name for each compared run, and the training step that it measured."""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

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
