"""``verify_run``: a few samples of a finished run measured again, and compared to the last digit.

verified = verify_run("runs/mine")
verified.equal, verified.table, verified.changed
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from normprobe.errors import NormprobeError, number_of
from normprobe.model.checkpoint_place import is_here
from normprobe.model.find.overrides import OVERRIDE_KEYS as KEYS_OF_PARTS
from normprobe.options import Loading
from normprobe.probe import Probe
from normprobe.report.readable import significant
from normprobe.run import Run, explained, load_run, require_repeatable
from normprobe.runs.begin import differing
from normprobe.runs.run_folder import ROW_KEYS
from normprobe.schema import DIGESTS

#: Recorded options of what is measured: the samples are measured in the batches of the run.
_OF_DATA = ("data", "prompt", "limit", "seed", "skip_bad", "align", "also", "by", "do", "answer")

_COLUMNS = (
    "sample_id", "quantity", "numbers", "different", "largest_relative_difference", "where",
)  # fmt: skip

_UNCHANGED = "Nothing that the run recorded of model, data, libraries and device has changed."

#: What of a record belongs to the model, and to where it runs.
_MODEL = ("model_revision", "adapter_revision", "model_files", "inputs_file", "weight_digests")
_PLACE = ("device", "dtype", "attn_implementation", "threads", "platform")
_LIBRARIES = ("versions", "processor")
#: What runs of earlier releases do not say.
_RECORDED_LATER = ("weight_digests", "threads", "processor")


@dataclass(frozen=True)
class Verified:
    """What measuring again found."""

    # a row a sample and quantity: ``sample_id``, ``quantity``, how many ``numbers`` there are, how
    # many are ``different``, the ``largest_relative_difference`` of these (NaN: they are no single
    # numbers) and ``where`` that is
    table: pd.DataFrame
    changed: list[str]  # what is not as it was, a line each: model, data, library versions, device

    @property
    def equal(self) -> bool:
        """Whether all numbers are the same to the last digit."""
        return not self.table["different"].any()

    @property
    def sentence(self) -> str:
        """How it ended."""
        samples, numbers = self.table["sample_id"].nunique(), int(self.table["numbers"].sum())
        if self.equal:
            again = f"{number_of(samples, 'sample')} measured again"
            return f"{again}: all {numbers} numbers are the same."
        other = self.table[self.table["different"] > 0].dropna()
        worst = other.sort_values("largest_relative_difference").tail(1)
        far = "".join(
            f", by at most {significant(row['largest_relative_difference'], 2)} of a number "
            f"({row['quantity']} of {row['sample_id']}, {row['where']})"
            for _, row in worst.iterrows()
        )
        why = "" if self.changed else f" {_UNCHANGED}"
        different = int(self.table["different"].sum())
        return f"{different} of {numbers} numbers differ{far}.{why}"


def verify_run(
    folder: str | Path,
    *,
    samples: int = 3,
    seed: int = 42,
    trust_remote_code: bool = False,
    inputs: str | Path | None = None,
) -> Verified:
    """Measure a few samples of a finished run again, with its options and in its batches.

    Args:
        folder: of a run over samples.
        samples: how many to draw; all where there are fewer.
        seed: of the draw.
        trust_remote_code: run the checkpoint's own code, where the run did.
        inputs: the inputs file, where the run had one.

    Raises:
        NormprobeError: no finished run over samples of a checkpoint, one whose code is not trusted
            again, or as ``Probe`` and ``Probe.measure``.
    """
    run = load_run(folder)
    require_repeatable(run)
    options = dict(run.record["options"])
    for name, given in (("trust_remote_code", trust_remote_code), ("inputs", inputs)):
        if options.get(name) and not given:
            flag = f"--{name.replace('_', '-')}" + (f" {options[name]}" if given is None else "")
            raise NormprobeError(
                f"{folder} was measured with {flag}: that is code, which a run folder cannot vouch "
                "for",
                f"read it, and pass {flag}",
            )
    options["inputs"] = inputs
    measured = run.samples
    ids = sorted(measured["sample_id"].unique())
    drawn = sorted(random.Random(seed).sample(ids, min(samples, len(ids))))
    again = _measured_again(run, options, drawn)
    before = measured[measured["sample_id"].isin(drawn)]
    table = _differences(before, again.samples)
    return Verified(table, [*_changed(run.record, again.record, before, again.samples)])


def _measured_again(run: Run, options: Mapping[str, Any], ids: Sequence[str]) -> Run:
    """The run of these samples alone, each in the batch that it had."""
    record = run.record
    with explained(run.store):  # the record may come from elsewhere
        how = {
            field.name: options[field.name] for field in fields(Loading) if field.name in options
        }
        how["named"] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in options.items()
            if name in (*KEYS_OF_PARTS, "kind")
        }
        revision = record.get("adapter_revision") or record.get("model_revision")
        how["revision"] = None if is_here(options["model"]) else revision
        probe = Probe(options["model"], **how)
    asked: dict[str, Any] = {name: options[name] for name in _OF_DATA if name in options}
    size = record.get("batch_size") or options.get("batch_size", 1)
    return probe.measure(run.command, **asked, batch_size=size, workers=0, only=ids)


def _differences(before: pd.DataFrame, now: pd.DataFrame) -> pd.DataFrame:
    """``Verified.table`` of the sample rows of two runs."""
    keys = [key for key in ROW_KEYS if key in before and key in now]
    before, now = (
        rows.sort_values(keys, kind="stable").reset_index(drop=True) for rows in (before, now)
    )
    columns = [name for name in dict.fromkeys((*before, *now)) if name not in (*keys, *DIGESTS)]
    found = []
    for sample_id, old in before.groupby("sample_id"):
        new = now[now["sample_id"] == sample_id]
        if not _same_keys(old[keys], new[keys]):
            size = max(len(old), len(new))
            lost = [sample_id, "rows", size, size, float("nan"), "all"]
            found.append(dict(zip(_COLUMNS, lost, strict=True)))
            continue
        for name in columns:
            values = (old.get(name), new.get(name))
            lists = [[None] * len(old) if side is None else side.tolist() for side in values]
            pairs = [(row, a, b) for row, (a, b) in enumerate(zip(*lists, strict=True))]
            other = [(row, _relative(a, b)) for row, a, b in pairs if not _same(a, b)]
            worst = max(other, key=lambda pair: np.nan_to_num(pair[1], nan=-1.0), default=None)
            place = old.iloc[worst[0]] if worst else None
            numbers = sum(not _same(a, None) for _, a, _ in pairs)
            where = "" if place is None else _where(place, keys)
            told = [sample_id, name, numbers, len(other), worst[1] if worst else 0.0, where]
            found.append(dict(zip(_COLUMNS, told, strict=True)))
    return pd.DataFrame(found)


def _same_keys(old: pd.DataFrame, new: pd.DataFrame) -> bool:
    pairs = zip(old.to_numpy().tolist(), new.to_numpy().tolist(), strict=False)
    return len(old) == len(new) and all(all(map(_same, a, b)) for a, b in pairs)


def _same(a: Any, b: Any) -> bool:
    """Equal to the last bit; what is missing is equal to what is missing."""
    if isinstance(a, np.ndarray | list) or isinstance(b, np.ndarray | list):
        return a is not None and b is not None and np.array_equal(a, b)
    return bool(a == b) or (pd.isna(a) and pd.isna(b))


def _relative(a: Any, b: Any) -> float:
    """How far two numbers are apart, of the larger one; NaN: they are no numbers."""
    if not isinstance(a, float | int) or not isinstance(b, float | int):
        return float("nan")
    return abs(a - b) / max(abs(a), abs(b))


def _where(row: "pd.Series[Any]", keys: Sequence[str]) -> str:
    told = [f"{key} {row[key]}" for key in keys[1:] if not pd.isna(row[key])]
    return ", ".join(told)


def _changed(
    before: Mapping[str, Any], now: Mapping[str, Any], rows: pd.DataFrame, again: pd.DataFrame
) -> Iterator[str]:
    """What is not as the run recorded it, a line each."""
    for name in (*_MODEL, "data_files", *_PLACE, *_LIBRARIES):
        old, new = before.get(name), now.get(name)
        if name == "versions":  # of what this release asks for; an older one asked for less
            new = {package: now["versions"].get(package) for package in old or ()}
        if old == new or (name not in before and name in _RECORDED_LATER):
            continue
        what = "model" if name in _MODEL else "data" if name == "data_files" else "device"
        what = "library" if name in _LIBRARIES else what
        if isinstance(old, dict) and isinstance(new, dict):
            keys = differing(old, new)
            pairs = [f"{key} was {old.get(key)}, is {new.get(key)}" for key in keys]
            more = f", and {len(pairs) - 3} more" if len(pairs) > 3 else ""
            yield f"{what}: {'; '.join(pairs[:3])}{more}"
        else:
            yield f"{what}: {name.replace('_', ' ')} was {old}, is {new}"
    for column, what in DIGESTS.items():
        if column in rows and column in again:
            old, new = (
                {str(row["sample_id"]): row[column] for row in side.to_dict("records")}
                for side in (rows.dropna(subset=column), again.dropna(subset=column))
            )
            if names := differing(old, new):
                yield f"data: the {what} of {', '.join(names)} is another one"
    sizes = before.get("batch_sizes", [])
    if len(sizes) > 1:
        yield (
            f"batches: the run took {' and '.join(map(str, sizes))} samples a batch, and these "
            f"were measured with {before.get('batch_size')}: last bits depend on it"
        )
