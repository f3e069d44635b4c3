"""A baseline, and whether states are still those: where do they begin to differ, and why?"""

import json
import math
import re
import reprlib
import xml.etree.ElementTree as xml
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from normprobe.errors import NormprobeError, first_line, markdown_text, number_of, visible
from normprobe.extensions.check.measure import (
    INPUTS,
    LOGITS,
    PLAIN,
    SIGNED,
    place_of,
)
from normprobe.options import Loading
from normprobe.report.readable import ReadableTable, readable_table, significant
from normprobe.report.table_text import markdown
from normprobe.runs.begin import differing
from normprobe.schema import (
    DECODER_INPUT,
    PROJECTOR_INPUT,
    PROJECTOR_OUTPUT,
    STAGES,
    STRUCTURAL,
    TEXT,
    TOKEN_GROUPS,
    TOLERANCES,
    VISION_ENCODER,
    VISUAL,
)

#: What a baseline file calls itself; another number: another meaning of its numbers.
FORMAT = "normprobe baseline 1"

#: No tolerance is finer than the digits of a fingerprint.
_FINEST = 1e-6
#: To how many parts a number of a file is exact.
_DIGITS = 1e-8
#: A mean norm is surer than a direction: errors of tokens and dimensions cancel out in it.
_SURER = 10.0

SAME, DIFFERENT, UNKNOWN = "the same", "not the same", "not enough evidence"
MEASURED = "measured"  # nobody said how far states may be apart
_COLUMNS = (
    "stage", "group", "tokens", "tokens_before", "nonfinite", "nonfinite_before", "norm",
    "norm_before", "norm_ratio", "turned", "mean_turned", "moved", "differs", "sample",
)  # fmt: skip
_KINDS = ("failure", "error")  # of a test report

#: A run of ``layers`` or ``interface`` knows no largest numbers and no fingerprints.
BASELINE_COLUMNS = (
    "stage", "group", "hidden_size", "tokens", "nonfinite", "norm_mean", "norm_geometric_mean",
    "largest", "fingerprint",
)  # fmt: skip


@dataclass(frozen=True)
class Baseline:
    """The states of a model on some samples."""

    facts: Mapping[str, Any]  # those of ``_FACTS``: data, prompt and system as typed
    samples: Mapping[str, Any]  # id -> digests of its picture and of its prompt's token ids
    states: pd.DataFrame  # a row a stage and group, in the order of the forward

    @property
    def rows(self) -> dict[tuple[str, str], Mapping[Any, Any]]:
        """The states by stage and group."""
        return {(row["stage"], row["group"]): row for row in self.states.to_dict("records")}

    @property
    def text(self) -> str:
        """The file: JSON with a sample or state a line."""
        told = {"format": FORMAT, **self.facts}
        lines = [f"  {json.dumps(name)}: {json.dumps(told[name])}" for name in told]
        samples = [f"    {json.dumps(i)}: {json.dumps(self.samples[i])}" for i in self.samples]
        states = [f"    {json.dumps(_short(row))}" for row in self.states.to_dict("records")]
        for name, of, (begin, end) in (("samples", samples, "{}"), ("states", states, "[]")):
            lines.append(f"  {json.dumps(name)}: {begin}\n" + ",\n".join(of) + f"\n  {end}")
        return "{\n" + ",\n".join(lines) + "\n}\n"


def _short(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Without digits that no two machines share; strict JSON has no NaN."""
    short = (float(f"{v:.9g}") if isinstance(v, float) else v for v in row.values())
    return {name: None if v != v else v for name, v in zip(row, short, strict=True)}


_MOST_BYTES = 2**25  # of a file: 150,000 samples
_TEXT, _TEXT_OR_NULL = (str, "a text"), (str | None, "a text or null")
_FACTS: dict[str, tuple[Any, str]] = {
    "model": _TEXT, "model_revision": _TEXT_OR_NULL, "dtype": _TEXT, "data": _TEXT,
    "prompt": _TEXT_OR_NULL, "system": _TEXT_OR_NULL, "attention": _TEXT_OR_NULL,
    "template": _TEXT_OR_NULL, "versions": (dict, "an object"),
}  # fmt: skip
_LATER = ("attention", "template")  # files of earlier releases do not say them
_STAGE = re.compile("|".join([INPUTS, *STAGES, LOGITS, "layer [1-9][0-9]{0,4}"]))


def read_baseline(file: Path) -> Baseline:
    """The baseline of a file that ``Baseline.text`` wrote."""
    try:
        _expect(file.is_file(), "it", "a file", "none")
        size = file.stat().st_size
        _expect(size <= _MOST_BYTES, "it", f"{_MOST_BYTES >> 20} MB at most", f"{size:,} bytes")
        told = json.loads(
            file.read_text(encoding="utf-8"), object_pairs_hook=_once, parse_constant=_no_number
        )
        _expect(isinstance(told, dict), "it", "an object", told)
        _expect(told.get("format") == FORMAT, "format", repr(FORMAT), told.get("format"))
        for name, (kind, words) in _FACTS.items():
            fits = (name in told or name in _LATER) and isinstance(told.get(name), kind)
            _expect(fits, name, words, told.get(name))
        samples, states = told.get("samples"), told.get("states")
        _expect(bool(samples) and isinstance(samples, dict), "samples", "one or more", samples)
        for i, of in samples.items():
            fits = isinstance(of, dict) and set(of) == {"picture", "prompt"}
            fits = fits and isinstance(of["picture"], str | None) and isinstance(of["prompt"], str)
            _expect(fits, f"samples {reprlib.repr(i)}", "digests of its picture and prompt", of)
        _expect(bool(states) and isinstance(states, list), "states", "one or more", states)
        facts = {name: told.get(name) for name in _FACTS}
        return Baseline(facts, samples, states_of(states))
    except (OSError, RecursionError, ValueError) as error:
        raise NormprobeError(
            f"{file} cannot be read as a baseline: {first_line(error)}",
            "normprobe check MODEL --write FILE makes one",
        ) from error


def states_of(rows: Sequence[Any], *, norms_alone: bool = False) -> pd.DataFrame:
    """States from elsewhere, each held against what a state can be.

    Raises:
        ValueError: naming the entry, what is expected and what was received.
    """
    seen = set[tuple[str, str]]()
    for place, row in enumerate(rows):
        fits = isinstance(row, dict) and set(row) == set(BASELINE_COLUMNS)
        _expect(fits, f"state {place}", f"an object of {', '.join(BASELINE_COLUMNS)}", row)
        stage, group = row["stage"], row["group"]
        fits = isinstance(stage, str) and _STAGE.fullmatch(stage) is not None
        _expect(fits, f"state {place}, stage", "inputs, layer 1, ...", stage)
        _expect(group in TOKEN_GROUPS, f"state {place}, group", " or ".join(TOKEN_GROUPS), group)
        _expect((stage, group) not in seen, f"{stage}, {group}", "one state", "two")
        seen.add((stage, group))
        _expect_numbers(row, f"{stage}, {group}", norms_alone)
    states = pd.DataFrame(rows, columns=[*BASELINE_COLUMNS])
    numbers = [*BASELINE_COLUMNS[2:-1]]
    states[numbers] = states[numbers].apply(pd.to_numeric)
    return states


def _expect_numbers(row: Mapping[str, Any], where: str, norms_alone: bool) -> None:
    """Those of a state: none is absent but where no token is, or where all are zero."""
    for name, least in (("hidden_size", 1), ("tokens", 0), ("nonfinite", 0)):
        fits = _is_number(row[name]) and row[name] >= least and row[name] == int(row[name])
        _expect(fits, f"{where}, {name}", f"a whole number from {least} on", row[name])
    mean, geometric, largest = (row[name] for name in BASELINE_COLUMNS[5:8])
    fits = _is_number(mean) if row["tokens"] else mean is None
    _expect(fits, f"{where}, norm_mean", "a number from 0 on, without tokens null", mean)
    fits = _is_number(geometric) and geometric > 0 if mean else not geometric
    _expect(fits, f"{where}, norm_geometric_mean", "a number above 0, of zeros null", geometric)
    if norms_alone:
        return
    _expect(_is_number(largest), f"{where}, largest", "a number from 0 on", largest)
    try:
        numbers = np.array([float(word) for word in row["fingerprint"].split()])
    except (AttributeError, ValueError):
        numbers = np.zeros(0)
    most = 1.01 * math.sqrt(row["hidden_size"] * max(row["tokens"], 1))  # of lengths of 1
    fits = bool((np.abs(numbers) <= most).all() if mean else np.isnan(numbers).all())
    words = f"{PLAIN + SIGNED} numbers up to {most:.3g}, of zeros NaN"
    fits = fits and len(numbers) == PLAIN + SIGNED
    _expect(fits, f"{where}, fingerprint", words, row["fingerprint"])


def _expect(fits: bool, entry: str, expected: str, received: object) -> None:
    if not fits:
        told = "nothing" if received is None else reprlib.repr(received)
        raise ValueError(f"{entry}: expected {expected}, received {told}")


def _is_number(value: object) -> bool:
    """A finite number from 0 on, that a float holds."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e300


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, no name of which stands there twice."""
    told = dict(pairs)
    if len(told) < len(pairs):
        raise ValueError(f"a name stands twice among {reprlib.repr([name for name, _ in pairs])}")
    return told


def _no_number(word: str) -> float:
    raise ValueError(f"expected numbers, received {word}")


@dataclass(frozen=True)
class Checked:
    """How the states of a model stand to those of a baseline."""

    # a row a stage and group, in the order of the forward; ``turned``: the distance of directions,
    # root mean square over tokens, ``mean_turned``: that of their means, ``moved``: the larger |log
    # ratio| of mean and geometric mean norms
    table: pd.DataFrame
    verdict: str  # ``SAME``, ``DIFFERENT``, ``UNKNOWN`` or ``MEASURED``
    sentence: str  # how it ended: where the first difference is, and what such a one usually means
    # of another precision, tidy, by what was ``rounded``: the change of means over samples of the
    # ``kl`` and ``changed`` next token, of ``nll`` a token of right answers and of ``accuracy``
    costs: pd.DataFrame | None = None

    @property
    def readable(self) -> ReadableTable:
        """Norms, their ratio and the distance of directions; a star where they differ."""
        told = self.table.assign(stage=self.table["stage"].map(_words))
        told["differs"] = told["differs"].map({True: "*", False: ""})
        columns = ["stage", "group", "norm_before", "norm", "norm_ratio", "turned", "differs"]
        notes = ["turned: how far directions are apart."]
        if "input_sqnr" in told:
            columns[-1:] = ["input_sqnr"]
            notes.append("input_sqnr: of what a linear layer reads, in dB; of the worst of them.")
        return replace(readable_table(told.reindex(columns=columns)), notes=notes)

    @property
    def shown(self) -> list[ReadableTable]:
        """The states, and what they cost, if that is known."""
        costs = None if self.costs is None else self.costs.rename(columns={"mean": "change"})
        return [self.readable, *([] if costs is None else [readable_table(costs)])]

    @property
    def summary(self) -> str:
        """How it ended as Markdown, of which each line is its own."""
        told = f"**normprobe check: {self.verdict}.** {markdown_text(self.sentence)}\n\n"
        return told + "".join(f"{markdown(table)}\n" for table in self.shown)

    @property
    def junit(self) -> str:
        """A test report: a test a stage and group, or one error where nothing can be said."""
        cases = [
            (f"{_words(row['stage'])}, {row['group']}", "failure" * row["differs"], _far(row))
            for row in self.table.to_dict("records")
        ]
        if self.verdict == UNKNOWN:
            cases = [("evidence", "error", self.sentence)]
        counts = {f"{kind}s": str([of for _, of, _ in cases].count(kind)) for kind in _KINDS}
        suite = xml.Element("testsuite", counts, name="normprobe check", tests=str(len(cases)))
        for name, kind, message in cases:
            words = {"classname": "normprobe.extensions.check.gate", "name": visible(name)}
            case = xml.SubElement(suite, "testcase", words)
            if kind:
                xml.SubElement(case, kind, message=visible(message))
        text: bytes = xml.tostring(suite, encoding="utf-8", xml_declaration=True)
        return text.decode() + "\n"


def checked(
    now: Baseline,
    before: Baseline,
    tolerance: float | None = None,
    *,
    judged: bool = True,
    hint: str = "",
) -> Checked:
    """Compare states in the order of the forward.

    Args:
        now: the states of a model.
        before: what they are to be.
        tolerance: in parts of their length; None: that of the type.
        judged: False where nobody says how far they may be apart.
        hint: why they are others, where that is known; else what such a difference usually means.
    """
    allowed = allowed_of(now, before, tolerance) if judged else math.inf
    table = pd.DataFrame(list(_compared(now, before, allowed)), columns=[*_COLUMNS])
    if "input_sqnr" in now.states:
        table = table.merge(now.states[["stage", "group", "input_sqnr"]], "left")
    different = table[table["differs"].astype(bool)]
    first = None if different.empty else str(different["stage"].iloc[0])
    if reason := _without_evidence(now, before, table, first):
        return Checked(table, UNKNOWN, f"Not enough evidence: {reason}.")
    samples = number_of(len(before.samples), "sample")
    if first is None:
        far = significant(float(np.nanmax(table[["turned", "moved"]].to_numpy(float))), 2)
        types = " against ".join(dict.fromkeys(str(of.facts.get("dtype")) for of in (now, before)))
        alone = bool(table["turned"].isna().all())  # a run of another command knows no directions
        what, within = ("norms", allowed / _SURER) if alone else ("states", allowed)
        if not judged:
            told = f"The largest difference of {len(table)} states of {samples} is {far} of their"
            return Checked(table, MEASURED, f"{told} length ({types}).")
        told = f"All {len(table)} {what} of {samples} are the same within {within:g} of their"
        told = f"{told} length ({types}); the largest difference is {far}"
        return Checked(table, SAME, f"{told}{'; directions were not compared' * alone}.")
    here = different[different["stage"] == first]
    lines = [f"{row['group']} {_far(row)}" for row in here.to_dict("records")]
    told = f"Not the same from {_words(first)} on ({samples}): {'; '.join(lines)}."
    if "input_sqnr" in table:
        return Checked(table, DIFFERENT, told)  # rounding is why
    hint = hint or _hint(table, first, now, before, allowed)
    return Checked(table, DIFFERENT, f"{told} {hint}")


#: What a baseline was measured with, and how another one is asked for.
_SETTINGS = {"dtype": "--dtype", "attention": "--attn-implementation"}
_DTYPES = ("float32", "bfloat16", "float16")


def like_it(before: Baseline, loading: Loading) -> dict[str, Any]:
    """Loading as the baseline was measured, where nothing else is asked for."""
    named, facts = dict(vars(loading)), before.facts
    if loading.dtype == "auto" and facts.get("dtype") in _DTYPES:
        named["dtype"] = facts["dtype"]  # a coarser one sees less
    if loading.attn_implementation is None and facts.get("attention") == "eager":
        named["attn_implementation"] = "eager"  # nobody's default, and every model has it
    if loading.system is None:
        named["system"] = facts.get("system")
    return named


def unlike_it(now: Baseline, before: Baseline, loading: Loading) -> str:
    """Which setting is another one than the baseline's though nobody asked for it; empty: none."""
    asked = {"dtype": loading.dtype != "auto", "attention": bool(loading.attn_implementation)}
    for name, option in _SETTINGS.items():
        used, own = (of.facts.get(name) for of in (before, now))
        given = used in _DTYPES if name == "dtype" else used is not None
        if given and own is not None and used != own and not asked[name]:
            return (
                f"the baseline was measured with the {name} {used}, and here there is {own}; "
                f"{option} {own} asks for it"
            )
    return ""


def allowed_of(now: Baseline, before: Baseline, tolerance: float | None) -> float:
    """The tolerance that was asked for, or that of the coarser of two types.

    A baseline may say what it likes: a type that its states are no numbers of widens nothing.
    """
    if tolerance is not None:
        return require_tolerance(tolerance)
    said, own = (re.findall(r"b?float\w+", str(of.facts.get("dtype"))) for of in (before, now))
    types = [*own, *(name for name in said if _holds(before, name))]
    return max(map(_tolerance_of, types), default=_FINEST)


def require_tolerance(tolerance: float) -> float:
    """Refuse what is no number of parts of a length, or lets all pass."""
    if not 0 <= tolerance < math.inf:
        raise NormprobeError(
            f"--tolerance: expected a finite number from 0 on, received {tolerance}",
            "leave it out for that of the type",
        )
    return tolerance


def _holds(baseline: Baseline, name: str) -> bool:
    """Whether the largest numbers behind decoder layers are numbers of a type; none: it may be."""
    dtype, states = getattr(torch, name, None), baseline.states
    if not isinstance(dtype, torch.dtype):
        return False
    behind = states["stage"].str.startswith("layer ") & states["largest"].notna()
    largest = torch.tensor(states["largest"][behind].to_numpy(np.float64))
    near = (largest.to(dtype).double() - largest).abs() <= _DIGITS * largest
    return bool(near.all())


def _tolerance_of(name: str) -> float:
    """That which was measured for a type; of another type its epsilon."""
    dtype = getattr(torch, name, None)
    own = torch.finfo(dtype).eps if isinstance(dtype, torch.dtype) else 0.0
    return TOLERANCES.get(name) or max(own, _FINEST)


def _compared(now: Baseline, before: Baseline, allowed: float) -> Iterator[dict[str, Any]]:
    """The rows of ``Checked.table``."""
    for i in differing(before.samples, now.samples):
        prompts = [of.samples.get(i, {}).get("prompt") for of in (now, before)]
        if prompts[0] != prompts[1]:
            name = i.encode(errors="backslashreplace").decode()  # a table holds no surrogates
            yield {"stage": INPUTS, "group": TEXT, "differs": True, "sample": name}
            break
    new, old = now.rows, before.rows
    # A run of another command does not measure every stage.
    partial = any(of.states["fingerprint"].isna().all() for of in (now, before))
    keys = new.keys() & old.keys() if partial else new | old
    for key in sorted(keys, key=lambda key: (place_of(key[0]), TOKEN_GROUPS.index(key[1]))):
        differences = _difference(new.get(key, {}), old.get(key, {}), allowed)
        yield {"stage": key[0], "group": key[1], **differences}


def _difference(new: Mapping[Any, Any], old: Mapping[Any, Any], allowed: float) -> dict[str, Any]:
    """How far one state is from what it was."""
    row = {
        "tokens": new.get("tokens", 0),
        "tokens_before": old.get("tokens", 0),
        "nonfinite": new.get("nonfinite", 0),
        "nonfinite_before": old.get("nonfinite", 0),
        "norm": new.get("norm_geometric_mean", np.nan),
        "norm_before": old.get("norm_geometric_mean", np.nan),
    }
    row["norm_ratio"] = row["norm"] / row["norm_before"] if row["norm_before"] else np.nan
    if any(old.get(name) != new.get(name) for name in ("hidden_size", "tokens", "nonfinite")):
        return row | {"differs": True}
    moved = max(_apart(new[name], old[name]) for name in ("norm_mean", "norm_geometric_mean"))
    sides = [_numbers(side["fingerprint"]) for side in (new, old)]
    apart = sides[0] - sides[1] if len(sides[0]) == len(sides[1]) else sides[0][:0]
    turned, of_mean = (
        float(np.sqrt(np.mean(part**2))) if len(part) else np.nan
        for part in (apart[PLAIN:], apart[:PLAIN])
    )
    # NaN is no answer: there is no direction where all is zero, or of norms alone.
    pointless = not len(apart) or not new["norm_mean"] > 0
    # Errors that add up stand in the mean, too: of few numbers, so with twice as much room.
    same = pointless or (turned <= allowed and of_mean <= 2 * allowed)
    differs = not moved <= allowed / _SURER or not same
    return row | {"turned": turned, "mean_turned": of_mean, "moved": moved, "differs": differs}


def _apart(new: float, old: float) -> float:
    """How far one norm is from another, as the logarithm of their ratio."""
    if new == old or (new != new and old != old):
        return 0.0
    ratio = new / old if old else math.inf
    return abs(math.log(ratio)) if ratio > 0 else math.inf


def _numbers(fingerprint: Any) -> NDArray[np.float64]:
    """The numbers of a fingerprint; none where there is none."""
    words = fingerprint.split() if isinstance(fingerprint, str) else []
    return np.array([float(word) for word in words])


def _without_evidence(
    now: Baseline, before: Baseline, table: pd.DataFrame, first: str | None
) -> str:
    """Why the states up to the first that differs say nothing; empty: they do."""
    for i, digests in before.samples.items():
        if i not in now.samples:
            return f"{i} was not measured in both"
        if digests.get("picture") != now.samples[i].get("picture"):
            return f"the picture of {i} is another one"
    if not before.samples or table["tokens"].isna().all():
        return "no sample and stage was measured in both"
    broken = table[(table[["nonfinite", "nonfinite_before"]] > 0).any(axis=1)]
    if broken.empty or (first is not None and place_of(first) < place_of(broken["stage"].iloc[0])):
        return ""
    row = broken.iloc[0]
    return (
        f"{int(row['nonfinite'])} {row['group']} tokens are not finite at {_words(row['stage'])}, "
        f"and {int(row['nonfinite_before'])} of the baseline"
    )


def _words(stage: str) -> str:
    return "the inputs" if stage == INPUTS else stage.replace("_", " ")


def _far(row: Mapping[Any, Any]) -> str:
    """How far a state is from what it was."""
    if row["stage"] == INPUTS and row["group"] == TEXT:
        return f"has other token ids ({row['sample']})"
    if row["tokens"] != row["tokens_before"]:
        return f"has {int(row['tokens'])} rows, not {int(row['tokens_before'])}"
    if pd.isna(row["moved"]):
        return "has rows of another size"
    if pd.isna(row["norm_ratio"]):
        return "is zero" if pd.isna(row["norm"]) else "was zero"
    told = f"x {significant(row['norm_ratio'])} as loud"
    if pd.isna(row["turned"]):
        return told
    return f"{told}, turned by {significant(row['turned'], 2)} of its length"


#: Of stages, which one before it has to be the same, how that is said, and what to look at then.
_WHERE = {
    VISION_ENCODER: (
        *(INPUTS, "the processor returns"),
        "look into the vision encoder: at patch and position embeddings, norms, activation, "
        "weights and biases",
    ),
    PROJECTOR_INPUT: (
        *(VISION_ENCODER, "the vision encoder returns"),
        "the projector is handed another of its layers, or other rows",
    ),
    PROJECTOR_OUTPUT: (
        *(PROJECTOR_INPUT, "the projector receives"),
        "look at the projector's order of norm, linear layers and activation, and at their "
        "weights and biases",
    ),
    DECODER_INPUT: (
        *("", ""),
        "look at what stands between projector or embedding table and decoder: a scale, "
        "positions, the order of rows",
    ),
    LOGITS: (
        *("layer", "the last layer returns"),
        "look at the final norm, the head and its scale",
    ),
}
#: Nothing, beside a difference of another kind: weights that were scaled are rounded anew. What is
#: within the tolerance, which rounding alone may reach, has to be less than this share of it.
_NEARLY, _FAR_LESS = 0.01, 0.1
_LAYER = (
    "look at what follows, its norms and their eps, rotary positions and mask, activation, "
    "weights, biases and their layout"
)
#: What is added to visual tokens between layers reaches the others by attention alone, later.
_MOSTLY = 0.2


def _hint(table: pd.DataFrame, first: str, now: Baseline, before: Baseline, allowed: float) -> str:
    """What such a difference usually means."""
    for who, side in (("model", now), ("baseline", before)):
        if first not in set(side.states["stage"]):
            layers = [stage for stage, _ in (now if side is before else before).rows]
            if [stage for stage in layers if stage.startswith("layer ")][-1:] == [first]:
                return f"The {who} has no {first}, which is the last one: it was left out."
            return f"The {who} has no {_words(first).removeprefix('the ')}: other layers, or parts."
    here = table[(table["stage"] == first) & table["differs"]]
    known = here[here["moved"].notna()]
    if first == INPUTS:
        if here["moved"].isna().all() and set(here["group"]) == {TEXT}:
            templates = [of.facts.get("template") for of in (now, before)]
            if None in templates:
                return "Usually the tokenizer or the chat template."
            if templates[0] != templates[1]:
                return "The chat template is another one."
            return "The chat template is the same one: look at the tokenizer."
        if known.empty:
            return "Usually the size, crop or tiles of the processor's pictures."
        return "Usually the processor's channel order, mean and std, or resampling."
    if known.empty:
        return "Usually a class token that is kept or dropped, or patches merged otherwise."
    if first == DECODER_INPUT and set(known["group"]) == {STRUCTURAL}:
        return "Structural tokens alone: look at what separates lines and tiles, a learned newline."
    turned, moved = known["turned"].max(), known["moved"].max()
    if _is_nothing(turned, moved, allowed):
        eps = ", or another eps of the final norm" * (first == LOGITS)
        return f"Usually a scale: one that is missing, or applied twice{_root(known, before)}{eps}."
    still = [_is_nothing(each, turned, allowed) for each in (moved, known["mean_turned"].max())]
    if all(still):
        return "Usually the same rows in another order: that of patches, tiles or lines."
    stages = [*dict.fromkeys(table["stage"])]
    last = stages[stages.index(first) - 1] if first != stages[0] else ""
    if first in _WHERE:
        needed, claim, told = _WHERE[first]
        known_same = needed and any(each.startswith(needed) for each in stages)
        same = f"{claim} the same: " if known_same else f"{_words(last)} is the same: " * bool(last)
        told = f"{same}{told}"
    else:
        new, old = now.rows, before.rows
        for other in dict.fromkeys(stage for stage, _ in old if stage not in (first, LOGITS)):
            pairs = [(new[first, group], old.get((other, group), {})) for group in known["group"]]
            if not any(_difference(*pair, allowed)["differs"] for pair in pairs):
                what = f"the state of {_words(other)} of the baseline"
                return f"It is {what}: layers left out, exchanged, or counted otherwise."
        told = f"{_words(last)} is the same: {_LAYER}" if last else _LAYER
        far = table[table["stage"] == first].set_index("group")["turned"]
        if VISUAL in far and far.drop(VISUAL).max() <= _MOSTLY * far[VISUAL] > _MOSTLY * _NEARLY:
            told += ". Mostly visual tokens: look at what is added to them between layers, too"
    return f"{told[:1].upper()}{told[1:]}."


def _is_nothing(size: float, other: float, allowed: float) -> bool:
    """Whether one kind of difference is next to nothing beside another kind."""
    return size <= _NEARLY * other or (size <= allowed and size <= _FAR_LESS * other)


def _root(known: pd.DataFrame, before: Baseline) -> str:
    """Whether a factor is the square root of a hidden size."""
    ratio = float(known["norm_ratio"].iloc[0])
    for size in dict.fromkeys(before.states["hidden_size"].dropna()):
        for root, told in ((size**0.5, "the"), (size**-0.5, "1 / the")):
            if abs(ratio / root - 1) < 0.02:
                return f" (it is {told} square root of a hidden size, {int(size)})"
    return ""
