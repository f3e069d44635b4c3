"""The atlas: a folder of entries that anybody can send, each a run of ``layers``, and their page.

An entry holds three numbers and, sample by sample, what they are made of: its estimates and
intervals are drawn again before they are believed. ``normprobe verify`` alone measures again.
"""

import json
import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import astuple
from functools import cache
from hashlib import sha256
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from numpy.typing import NDArray
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from normprobe.data.data_set import data_names
from normprobe.errors import NormprobeError, first_line, number_of
from normprobe.extensions.sharing.card import (
    quantities,
    ranked_numbers,
    repeating_command,
    require_sound,
    revision_of,
)
from normprobe.report.page.blocks import heading, note, scatter, sentence, shown_table
from normprobe.report.page.document import Section, page
from normprobe.report.ranked import with_brackets
from normprobe.report.ranking import DISPARITY, INERTIA, measures_table
from normprobe.report.ratio_words import Estimate
from normprobe.report.sentences import correlation_sentence, correlation_table
from normprobe.run import Run, explained
from normprobe.runs.files import is_own
from normprobe.runs.fingerprints import one_digest
from normprobe.runs.run_folder import RunStore
from normprobe.schema import MODALITIES, TEXT, TOLERANCES, VISUAL
from normprobe.statistics.bootstrap import LINEAR, LOGARITHM, draw_weights, interval, ratio_draws

_LARGEST = 2**17  # bytes: some 700 samples
_SCALES = {DISPARITY: LOGARITHM, "disparity_last": LOGARITHM, INERTIA: LINEAR}
_VERSIONS = ("normprobe", "torch", "transformers")
#: Means of a sample: the logarithm of the norm at the decoder input and after the last layer, and
#: the angle over all layers. Weighted by tokens they give those of all samples.
_MEANS = ("first", "last", "angle")
_COLUMNS = ["id", "picture", "prompt"]
_COLUMNS += [f"{group}_{name}" for name in ("tokens", *_MEANS) for group in MODALITIES]

# How each line of an entry is spelled: what is missing, unknown or of another type does not fit.
_TEXT, _DIGEST, _NUMBER = (
    r"(?:[ !#-\[\]-~]|\\.)",
    "[0-9a-f]{16}",
    r"-?\d{1,15}(?:\.\d+)?(?:e-\d\d)?",
)
_SAMPLE = rf'  \["{_TEXT}{{1,100}}", "{_DIGEST}(?:\+{_DIGEST})*", "{_DIGEST}"'
_SAMPLE += r", [1-9]\d{0,8}" * 2 + f", {_NUMBER}" * 2 * len(_MEANS) + r"\]"
_NUMBERS = ", ".join(rf'"{name}": \[{_NUMBER}, {_NUMBER}, {_NUMBER}\]' for name in _SCALES)
#: What a command may ask for beside model and revision, and how it is spelled; empty: a switch.
#: Readers run it: nothing else passes, neither a file of somebody's nor a second command.
_COUNT = r"\d{1,9}"
_OPTIONS = {
    "--dtype": "auto|float32|bfloat16|float16",
    "--attn-implementation": "sdpa|eager|flash_attention_2",
    "--part": r"\w{1,40}=[\w.,-]{1,200}",
    "--system": r"[ -~]{1,1000}",
    "--prompt": r"[ -~]{1,1000}",
    "--data": r"[\w-]+(?::[\w.-]+)?",
    "--also": "(?:branches|massive)(?:,branches|,massive)?",
    "--by": "turn",
    "--limit": _COUNT,
    "--seed": _COUNT,
    "--batch-size": f"auto|{_COUNT}",
    "--allow-long-prompts": "",
    "--skip-bad": "",
    "--trust-remote-code": "",
}
_FIELDS = {
    "columns": re.escape(json.dumps(_COLUMNS)),
    "command": rf'"normprobe layers {_TEXT}+"',
    "data": r'"[\w-]+(?::[\w.-]+)?"',
    "dtype": '"(?:float32|bfloat16|float16)"',
    "format": '"normprobe atlas 1"',
    "layers": r"[1-9]\d{0,3}",
    "model": r'"\w[\w.-]*(?:/\w[\w.-]*)?"',
    "numbers": f"{{{_NUMBERS}}}",
    "revision": '"(?:[0-9a-f]{40})?"',
    "samples": rf"\[\n{_SAMPLE}(?:,\n{_SAMPLE})*\n \]",
    "type": r'"[\w.-]+"',
    "versions": "{%s}" % ", ".join(rf'"{name}": "\d[\w.+]*"' for name in _VERSIONS),  # noqa: UP031
    "weights": f'"{_DIGEST}"',
}


def entry_of(run: Run, miniature: str = "") -> dict[str, Any]:
    """The entry of a run; ``miniature``: what its model is called, which a script makes."""
    require_sound(run)
    record, told = run.record, ranked_numbers(run)
    if not (told.keys() >= _SCALES.keys() and record.get("weight_digests")):
        raise NormprobeError(
            f"{run.path} holds no disparity, no inertia or no digests of its weights",
            "give a run of layers whose visual tokens pass the decoder, from its folder",
        )
    if "resumed with" in str(record["warnings"]):
        raise NormprobeError(f"{run.path} is of two releases of a library", "measure it in one go")
    with explained(run.store):
        samples = _samples(run)
        model = f"miniature/{miniature}" if miniature else str(record["model"])
        entry = {
            "columns": _COLUMNS,
            "command": repeating_command(record, model),
            "data": record["options"]["data"],
            "dtype": record["dtype"],
            "format": "normprobe atlas 1",
            "layers": record["sizes"]["decoder_layers"],
            "model": model,
            "numbers": {name: [*astuple(told[name])] for name in _SCALES},
            "revision": revision_of(record),
            "samples": samples,
            "type": record["model_type"],
            "versions": {name: record["versions"][name] for name in _VERSIONS},
            "weights": one_digest(record["weight_digests"]),
        }
    try:
        _checked(text_of(entry))
    except ValueError as error:
        raise NormprobeError(
            f"the atlas cannot take {run.path}: {first_line(error)}",
            "measure a hub id over a published data set with pictures, --limit 500 at most",
        ) from error
    return entry


def _samples(run: Run) -> list[list[Any]]:
    """Rows of ``_COLUMNS``."""
    names = ["sample_id", "image_hash", "prompt_hash", "layer", "group", "tokens"]
    rows = run.store.rows([*names, "norm_log_mean", "angle_mean"])
    rows = rows[rows["group"].isin(MODALITIES)]
    layer, digests = rows["layer"], rows.groupby("sample_id", sort=False).first()
    # The first 16 of 64 digits tell as much, and keep the order in which pictures are drawn.
    pictures = digests["image_hash"].str.replace(f"({_DIGEST})[0-9a-f]+", r"\1", regex=True)
    first, last, turned = layer == 0, layer == layer.max(), layer > 0
    columns = [(first, "tokens"), (first, "norm_log_mean"), (last, "norm_log_mean")]
    means = [
        rows[some].pivot_table(values=name, index="sample_id", columns="group")[[*MODALITIES]]
        for some, name in [*columns, (turned, "angle_mean")]
    ]
    table = pd.concat([pictures, digests["prompt_hash"], *means], axis=1)
    return [
        [*row[:3], *map(int, np.nan_to_num(row[3:5])), *(float(f"{mean:.9g}") for mean in row[5:])]
        for row in table.itertuples(name=None)
    ]


@np.errstate(all="ignore")  # what is not finite is close to no number
def _drawn(samples: list[list[Any]]) -> dict[str, list[float]]:
    """Estimate and ends of the 95 % interval of each number, as a run of them draws these."""
    columns = dict(zip(_COLUMNS, zip(*samples, strict=True), strict=True))
    codes = np.unique(columns["picture"], return_inverse=True)[1]
    units = int(codes.max()) + 1
    weights = draw_weights(units)

    def means(group: str) -> NDArray[np.float64]:
        """``[draws, _MEANS]`` over the tokens of a group."""
        tokens = np.array(columns[f"{group}_tokens"], dtype=np.float64)
        parts = [tokens, *(tokens * columns[f"{group}_{name}"] for name in _MEANS)]
        sums = np.array([np.bincount(codes, part, units) for part in parts], dtype=np.float64).T
        return ratio_draws(weights, sums[:, 1:], sums[:, :1])

    first, last, turned = (means(VISUAL) - means(TEXT)).T
    made = {}
    for name, drawn in zip(_SCALES, (np.exp(first), np.exp(last), -turned), strict=True):
        ends = interval(drawn[:, None], units, _SCALES[name])[:, 0]
        made[name] = [float(drawn[0]), *ends.tolist()]
    return made


def text_of(entry: Mapping[str, Any]) -> str:
    """The file of an entry: JSON, a field or sample a line, numbers with 9 digits."""
    samples = ",\n".join(f"  {json.dumps(row)}" for row in entry["samples"])
    short = {n: [float(f"{end:.9g}") for end in ends] for n, ends in entry["numbers"].items()}
    told = {name: json.dumps(entry[name]) for name in _FIELDS}
    told |= {"numbers": json.dumps(short), "samples": f"[\n{samples}\n ]"}
    return "{\n" + ",\n".join(f' "{name}": {told[name]}' for name in _FIELDS) + "\n}\n"


def file_name(entry: Mapping[str, Any]) -> str:
    """``org--model--<digest>.json``: another content has another name."""
    digest = sha256(text_of(entry).encode()).hexdigest()[:16]
    return f"{entry['model'].replace('/', '--')}--{digest}.json"


def read_entries(folder: Path) -> dict[str, dict[str, Any]]:
    """The entries of a folder by file name, each checked, then all together.

    Raises:
        NormprobeError: naming the file and field that is wrong.
    """
    entries = {}
    for file in sorted(folder.glob("*.json")):
        try:
            if not is_own(file, folder) or file.stat().st_size > _LARGEST:
                raise ValueError(f"expected a file of the folder, {_LARGEST} bytes at most")
            entry = _checked(file.read_bytes().decode("ascii"))
            if file.name != file_name(entry):
                raise ValueError(f"the name is not that of its content, {file_name(entry)}")
        except (OSError, ValueError) as error:
            again = "make the entry again with `normprobe atlas add RUN`"
            raise NormprobeError(f"{file}: {first_line(error)}", again) from error
        entries[file.name] = entry
    if not entries:
        raise NormprobeError(f"{folder} holds no entry", "`normprobe atlas add RUN` makes one")
    _refuse_repeated(entries)
    return entries


def _checked(text: str) -> dict[str, Any]:
    """The entry of a file whose fields fit each other; ``ValueError``: which does not, and why."""
    place = 0
    for name, pattern in _FIELDS.items():
        begin, end = "" if place else r"{\n", r"\n}\n\Z" if name == [*_FIELDS][-1] else r",\n"
        found = re.compile(f'{begin} "{name}": {pattern}{end}', re.ASCII).match(text, place)
        if found is None:
            raise ValueError(f"{name} is missing or misspelled, or something else stands there")
        place = found.end()
    entry: dict[str, Any] = json.loads(text)
    revision, samples = entry["revision"], entry["samples"]
    begins = f"normprobe layers {entry['model']} " + f"--revision {revision} " * bool(revision)
    values, drawn = np.array([row[5:] for row in samples]), _drawn(samples)
    close = [np.allclose(entry["numbers"][n], drawn[n], rtol=1e-6, atol=1e-8) for n in _SCALES]
    supported = [
        known.contains(entry["versions"][n], prereleases=True) for n, known in _supported().items()
    ]
    for name, fits, expected in (
        ("model", bool(revision) == (_kind(entry) == "model"), "a released one, its revision"),
        ("command", f"{entry['command']} ".startswith(begins), begins),
        ("command", _is_plain(entry["command"]), "options that measure the model as it is"),
        ("data", entry["data"].partition(":")[0] in data_names(), "a published data set"),
        ("versions", all(supported), "those that this release supports"),
        ("samples", len({row[0] for row in samples}) == len(samples), "each id once"),
        ("samples", len({row[1] for row in samples}) > 1, "two pictures or more"),
        ("samples", (np.abs(values[:, :4]) < 50).all(), "logarithms of norms below 50"),
        ("samples", (np.abs(values[:, 4:] / math.pi - 0.5) <= 0.5).all(), "angles of 0 to pi"),
        ("numbers", all(close), f"what the samples give, {drawn}"),
        ("samples", len(text) <= _LARGEST, f"a file of {_LARGEST} bytes"),
    ):
        if not fits:
            raise ValueError(f"{name}: expected {expected}")
    return entry


def _is_plain(command: str) -> bool:
    """Whether a shell reads it as one command of ours, with options that are known."""
    try:
        words = shlex.split(command)
    except ValueError:
        return False
    if shlex.join(words) != command:  # what a shell would take for more than words
        return False
    rest = words[3:]
    while rest:
        name, *rest = rest
        if name not in ("--revision", *_OPTIONS):
            return False
        pattern = _OPTIONS.get(name, "[0-9a-f]{40}")
        if pattern:
            value, *rest = rest or [""]
            if re.fullmatch(pattern, value, re.ASCII) is None or value.startswith("-"):
                return False
    return True


def _kind(entry: Mapping[str, Any]) -> str:
    """``specimen`` and ``miniature``: made to test normprobe; ``model``: released."""
    first = str(entry["model"]).partition("/")[0]
    return first if first in ("specimen", "miniature") else "model"


@cache
def _supported() -> dict[str, SpecifierSet]:
    """Which versions this release takes: none of a later one of its own."""
    needs = map(Requirement, requires("normprobe") or ())
    known = {need.name: need.specifier for need in needs if need.marker is None}
    return {name: known.get(name, SpecifierSet(f"<={version('normprobe')}")) for name in _VERSIONS}


def _refuse_repeated(entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse two entries of one measurement; by other versions only where they do not agree.

    They are of one where prompts, pictures and dtype are the same, and the digest of the weights,
    the commit (a release may merge tensors as it loads), or all that was measured.
    """
    known: dict[object, list[str]] = {}
    sizes: dict[str, Any] = {}
    for name, entry in entries.items():
        samples = sorted(tuple(row[1:]) for row in entry["samples"])
        inputs = entry["dtype"], *(row[:2] for row in samples)
        # Norms and angles: what relative differences are of.
        values = np.array([row[4:] for row in samples])
        sizes[name] = np.hstack([np.exp(values[:, :4]), values[:, 4:]])
        commit = entry["model"], entry["revision"]
        places = [(what, inputs) for what in (entry["weights"], commit, tuple(samples))]
        for other in dict.fromkeys(other for place in places for other in known.get(place, ())):
            allowed = TOLERANCES[entry["dtype"]]
            if entries[other]["versions"] == entry["versions"]:
                why = "measured by the same versions"
            elif not np.allclose(sizes[name], sizes[other], rtol=allowed, atol=allowed / 30):
                why = f"and do not agree within the tolerance of {entry['dtype']}, {allowed}"
            else:
                continue
            raise NormprobeError(
                f"{name} and {other} are of the same model, prompts and pictures, {why}",
                "leave one out; `normprobe verify RUN` tells which is right",
            )
        for place in places:
            known.setdefault(place, []).append(name)


def atlas_page(entries: Mapping[str, Mapping[str, Any]]) -> str:
    """One self-contained page of entries, HTML: the scatter, and a table to sort."""
    rows = sorted(map(_row, entries.values()), key=lambda row: -row[DISPARITY].value)
    table = pd.DataFrame(rows)
    released = table[table["kind"] == "model"].drop_duplicates("model")
    x, y = (quantities()[name] for name in (DISPARITY, INERTIA))
    points = [
        {
            "name": row["model"],
            "told": f"{row['kind']}, {row['data']}, {row['dtype']}",
            "hollow": row["kind"] != "model",
            "x": [*astuple(row[x.name])],
            "y": [*astuple(row[y.name])],
        }
        for row in rows
    ]
    shown = with_brackets(table)
    cells = pd.DataFrame(shown.rows, columns=[words for (words,) in shown.headers], dtype=object)
    link = Markup('<a href="https://huggingface.co/{model}/tree/{revision}">{model}</a>')
    linked = [link.format(**r) if r["kind"] == "model" else r["model"] for r in rows]
    cells["model"] = pd.Series(linked, dtype=object)  # of str, a link would be text
    pairs = ([number.value for number in released[name]] for name in (x.name, y.name))
    going = correlation_sentence(correlation_table(*pairs))
    names = [*released["model"]] or ["No released model yet"]
    store = RunStore(
        {"command": "atlas", "surveyed": names, "versions": {"normprobe": version("normprobe")}}
    )
    numbers = [{name: row[name] for name in _SCALES} for row in rows]
    store.write_table("atlas", measures_table(table.drop(columns=[*_SCALES]), numbers))
    store.finish()
    blocks = [
        sentence(f"{number_of(len(released), 'released model')}. {going}"),
        scatter(points, x.words.partition(",")[0], f"{y.words} ({y.unit})"),
        note(
            "Lines: 95 % intervals over images. Hollow: the specimen and miniatures of random "
            "weights, made to test normprobe: they say nothing of released models."
        ),
        heading("Entries"),
        shown_table(cells, len(cells)),
        *map(note, shown.notes),
    ]
    return page([Section(store, blocks, shown=("atlas",))])


def _row(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the table."""
    told = {"model": entry["model"], "kind": _kind(entry), "type": entry["type"]}
    told |= {name: Estimate(*ends) for name, ends in entry["numbers"].items()}
    told |= {"layers": str(entry["layers"]), "samples": str(len(entry["samples"]))}
    names = ("data", "dtype", "revision", "weights", "command")
    return {**told, **entry["versions"], **{name: entry[name] for name in names}}
