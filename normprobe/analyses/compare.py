"""``compare``: runs of one command side by side (Figures 3-5). Tables in, tables out, no model."""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import pandas as pd

from normprobe.schema import BASE, DECODER_INPUT, NONZERO_ROWS, TEXT, VISUAL

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
    ("attention", lambda record: record.get("attn_implementation")),
)


def joined(tables: Sequence[pd.DataFrame], labels: Sequence[str]) -> pd.DataFrame:
    """The tables below each other, each row labelled with its run, in the order given.

    Args:
        tables: the command's table of each run.
        labels: unique, one a table.

    Returns:
        The rows of compare.csv: ``run``, then the columns of the tables.
    """
    parts = [table.assign(run=label) for table, label in zip(tables, labels, strict=True)]
    whole = pd.concat(parts, ignore_index=True)
    return whole[["run", *whole.columns.drop("run")]]


def labels_of(records: Sequence[Mapping[str, Any]], folders: Sequence[str]) -> list[str]:
    """A short and unique label for each run: the model, and what else tells the runs apart.

    Args:
        records: ``run.json`` of each run.
        folders: the name of each run folder, used where the records tell no difference.

    Returns:
        One label a run, of at most 28 characters.
    """
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

    Args:
        record: its ``run.json``; ``step`` is what the training callback writes.
        folder: the name of its folder.
        label: given by hand; a number, or a name with a step, is believed first.

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


def ranking(command: str, tables: Sequence[pd.DataFrame], labels: Sequence[str]) -> pd.DataFrame:
    """Runs by falling disparity.

    Args:
        command: a key of ``RANKED``.
        tables: the command's table of each run.
        labels: one a table.

    Returns:
        The rows of ranking.csv: rank, run and the measures of the command. Runs without the first
        measure come last, without a rank.
    """
    measures = pd.DataFrame([RANKED[command](table) for table in tables])
    measures.insert(0, "run", list(labels))
    first = measures.columns[1]
    measures = measures.sort_values(first, ascending=False, kind="stable", na_position="last")
    place = measures[first].rank(ascending=False, method="min").astype("Int64")
    measures.insert(0, "rank", place)
    if "inertia_gap" in measures:
        inertia = measures["inertia_gap"].rank(ascending=False, method="min").astype("Int64")
        measures.insert(1, "inertia_rank", inertia)
    return measures.reset_index(drop=True)


def layers_measures(layers: pd.DataFrame) -> dict[str, float]:
    """Disparity and inertia of one run.

    Args:
        layers: ``layers.csv``.

    Returns:
        ``disparity_input``, ``disparity_middle``, ``disparity_last``: visual / text mean norm at
        the decoder input, after layer ceil(N / 2) and after the last layer N.
        ``inertia_gap``: text minus visual angular velocity, mean over layers 1 to N of the mean
        over tokens, radians per layer. NaN where a modality is absent.
    """
    wide = {
        metric: layers[layers["group"].isin([VISUAL, TEXT])]
        .pivot(index="layer", columns="group", values=f"{metric}_mean")
        .reindex(columns=[VISUAL, TEXT])
        .astype(float)
        for metric in ("norm", "angle")
    }
    ratio = wide["norm"][VISUAL] / wide["norm"][TEXT]
    last = int(layers["layer"].max())
    gap = wide["angle"][TEXT] - wide["angle"][VISUAL]
    places = {"input": 0, "middle": -(-last // 2), "last": last}
    return {
        **{f"disparity_{name}": _of_layer(ratio, place) for name, place in places.items()},
        "inertia_gap": float(gap.mean()),
    }


def interface_measures(interface: pd.DataFrame) -> dict[str, float]:
    """Disparity of one run at the decoder input.

    Args:
        interface: ``interface.csv``.

    Returns:
        ``disparity_input``: visual / text mean norm of the prompts' tokens; ``ratio_to_table``:
        visual mean norm / that of the non-zero effective text embeddings; and both mean norms.
    """
    rows = interface[interface["stage"] == DECODER_INPUT].set_index("group")
    return {
        "disparity_input": _at(rows, VISUAL, "ratio_to_prompt"),
        "ratio_to_table": _at(rows, VISUAL, "ratio_to_table"),
        "visual_norm": _at(rows, VISUAL, "norm_mean"),
        "text_norm": _at(rows, TEXT, "norm_mean"),
    }


def embeddings_measures(embeddings: pd.DataFrame) -> dict[str, float]:
    """How far the rows of one run's tables spread, non-zero rows alone.

    Args:
        embeddings: ``embeddings.csv``.

    Returns:
        ``loudest_ratio``: largest / mean norm of the text table; ``visual_ratio``: mean norm of
        the visual table / that of the text table; ``text_norm``, ``text_std``; ``base_norm``.
    """
    rows = embeddings[embeddings["rows"] == NONZERO_ROWS].set_index("table")
    text = _at(rows, TEXT, "norm_mean")
    return {
        "loudest_ratio": _at(rows, TEXT, "norm_max") / text,
        "visual_ratio": _at(rows, VISUAL, "norm_mean") / text,
        "text_norm": text,
        "text_std": _at(rows, TEXT, "norm_std"),
        "base_norm": _at(rows, BASE, "norm_mean"),
    }


#: Commands whose runs can be compared, and what ranks them; the first measure decides.
RANKED: dict[str, Callable[[pd.DataFrame], dict[str, float]]] = {
    "layers": layers_measures,
    "interface": interface_measures,
    "embeddings": embeddings_measures,
}


def _of_layer(ratio: "pd.Series[float]", layer: int) -> float:
    return float(ratio[layer]) if layer in ratio.index else float("nan")


def _at(rows: pd.DataFrame, key: str, column: str) -> float:
    return float(rows[column][key]) if key in rows.index else float("nan")


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
