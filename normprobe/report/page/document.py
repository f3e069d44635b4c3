"""What a run is called on the page."""

import base64
import hashlib
import json
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

import normprobe
from normprobe.data.data_set import bundled_data_dir
from normprobe.errors import number_of
from normprobe.report.page.blocks import (
    block,
    compressed_tables,
    figure_url,
    heading,
    picture,
    render,
    shown_table,
    source,
)
from normprobe.report.readable import significant
from normprobe.report.verdict import NOTHING, Verdict
from normprobe.runs.files import json_text, own_files
from normprobe.runs.fingerprints import one_digest
from normprobe.runs.run_folder import COMPLETE, RunStore
from normprobe.schema import PUBLISHED


def run_title(run: RunStore) -> str:
    """E.g. ``layers: llava-hf/llava-1.5-7b-hf, mmbench, aligned, step 100``."""
    told = _listed(model_name(run), _data(run), *_variant(run))
    return f"{_command(run)}: {told or run.name}"


def table_title(run: RunStore, name: str) -> str:
    """The title of the run; of a table beside the main one, also that."""
    return run_title(run) + ("" if name == _command(run) else f", {name.replace('_', ' ')}")


def short_titles(runs: Sequence[RunStore]) -> list[str]:
    """As few words as tell some runs apart: ``layers``, ``layers, aligned``."""
    for titles in (
        [_listed(_command(run), *_variant(run)) for run in runs],
        [_listed(_command(run), model_name(run), *_variant(run)) for run in runs],
        [run_title(run) for run in runs],
    ):
        if len(set(titles)) == len(runs):
            return titles
    return [f"{title} ({place})" for place, title in enumerate(titles, start=1)]


def subject(run: RunStore) -> str:
    """What a run is of, and where it lies: ``org/model, mmbench, 100 samples, run folder one``."""
    samples = len(run.record.get("sample_ids") or [])
    return _listed(
        model_name(run),
        _data(run),
        number_of(samples, "sample") if samples else "",
        "" if run.path is None else f"run folder {run.name}",
    )


def model_name(run: RunStore) -> str:
    """A hub id, or the name of a local folder; empty where the run is of no model."""
    return _name_of(run.record.get("model"))


def _name_of(model: object) -> str:
    name = str(model or "")
    return Path(name).name if name.startswith(("/", ".")) else name


def _data(run: RunStore) -> str:
    return str(run.record.get("data") or "")


def _listed(*facts: str) -> str:
    return ", ".join(filter(None, facts))


def _command(run: RunStore) -> str:
    return str(run.record.get("command", "run"))


def _variant(run: RunStore) -> list[str]:
    step = run.record.get("step")
    aligned = ["aligned"] if run.record.get("alignment") else []
    return [*aligned, *([] if step is None else [f"step {step}"])]


_MOST = 4  # names in a line


def models(runs: Sequence[RunStore]) -> list[str]:
    """The models of some runs, each once; of a comparison only where there is nothing else."""
    return _once(
        _name_of(model)
        for run in _measuring(runs)
        for model in run.record.get("surveyed") or [run.record.get("model")]
    )


def measured(runs: Sequence[RunStore]) -> list[tuple[str, str]]:
    """Words and values of what is known of model, data and samples."""
    runs = _measuring(runs)
    names, sizes = models(runs), _once(_size(run.record) for run in runs)
    facts = {
        "Model": _first_few(names if len(names) > 1 else sizes),  # of one, the heading has the name
        "Data": _first_few(_once(_data_and_sources(run.record) for run in runs)),
        "Samples": _first_few(_once(_samples(run.record) for run in runs)),
    }
    return [(words, value) for words, value in facts.items() if value]


def _measuring(runs: Sequence[RunStore]) -> list[RunStore]:
    """Those that ran a model."""
    return [run for run in runs if "model_type" in run.record] or list(runs)


def _size(record: Mapping[str, Any]) -> str:
    sizes = record.get("sizes")
    if not isinstance(sizes, dict):
        return ""
    layers, width = sizes.get("decoder_layers"), sizes.get("hidden_size")
    told = [
        str(record.get("model_type") or ""),
        f"{layers} decoder layers" if layers else "",
        f"hidden size {width}" if width else "",
    ]
    return ", ".join(filter(None, told))


def _data_and_sources(record: Mapping[str, Any]) -> str:
    """E.g. ``sample (10 mmbench, 16 mmstar, 30 pope)``."""
    name = str(record.get("data") or "")
    provenance = record.get("data_provenance")
    sources = provenance.get("sources") if isinstance(provenance, dict) else None
    parts = [
        f"{source.get('questions')} {source.get('benchmark')}"
        for source in (sources if isinstance(sources, list) else [])
        if isinstance(source, dict)
    ]
    return f"{name} ({', '.join(parts)})" if len(parts) > 1 else name


def _samples(record: Mapping[str, Any]) -> str:
    """E.g. ``56 with 10 images``, ``5 with 3 images, clips, sounds``."""
    samples, hashes = record.get("sample_ids"), record.get("image_hashes")
    if not samples:
        return ""
    held = {str(each) for each in hashes.values() if each} if isinstance(hashes, dict) else set()
    count = number_of(len(held), "image")
    if kinds := record.get("media"):  # a sample may hold several
        held = {each for joined in held for each in joined.split("+")}
        count = f"{len(held)} " + ", ".join(f"{kind}s" for kind in kinds)
    return f"{len(samples)}" + (f" with {count}" if held else "")


def _once(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(text for text in texts if text))


def _first_few(texts: Sequence[str]) -> str:
    """Some names, and how many more there are."""
    more = len(texts) - _MOST
    return "; ".join(texts[:_MOST]) + (f"; {more} more" if more > 0 else "")


#: Facts of run.json and their words, in the order in which a reader asks.
_FACTS = {
    "model": "model",
    "model_revision": "revision",
    "model_type": "type",
    "family": "family",
    "norm_placement": "norm placement",
    "weight_digests": "weights",
    "alignment": "alignment norm",
    "data": "data",
    "sample_ids": "samples",
    "prompt_hashes": "prompts",
    "image_hashes": "pictures",
    "step": "training step",
    "argv": "command line",
    "created": "started",
    "seconds": "seconds",
    "device": "device",
    "dtype": "dtype",
    "attn_implementation": "attention",
    "parts": "parts",
    "parts_found_by": "parts found by",
    "recomputed": "largest difference when recomputed",
    "versions": "versions",
    "processor": "processor",
}

#: Where one run has none of these, the others do not share it: they are what was varied.
_VARIED = ("alignment", "step")

#: Facts that are a digest of each tensor or sample.
_DIGESTS = ("weight_digests", "prompt_hashes", "image_hashes")


def shared_facts(runs: Sequence[RunStore]) -> list[tuple[str, str]]:
    """Words and values on which all runs agree that have them."""
    told = [_facts(run) for run in runs]
    return [
        (words, found.pop())
        for name, words in _FACTS.items()
        if len(found := {facts[name] for facts in told if name in facts}) == 1
        and (name not in _VARIED or all(name in facts for facts in told))
    ]


def own_facts(runs: Sequence[RunStore], titles: Sequence[str]) -> pd.DataFrame:
    """The facts on which runs differ: a row a run, empty where it has none."""
    shared = {words for words, _ in shared_facts(runs)}
    told = [_facts(run) for run in runs]
    differing = {
        words: [facts.get(name, "") for facts in told]
        for name, words in _FACTS.items()
        if words not in shared and any(name in facts for facts in told)
    }
    return pd.DataFrame({"run": list(titles), **differing} if differing else {})


def _facts(run: RunStore) -> dict[str, str]:
    """Of a comparison, the model is the number of its runs: not told."""
    names = [name for name in _FACTS if name != "model" or "compared" not in run.record]
    return {name: fact for name in names if (fact := _fact(name, run.record.get(name)))}


def _fact(name: str, value: object) -> str:
    if name in _DIGESTS:  # one of them all: equal where they all are
        return one_digest(value) if isinstance(value, dict) and any(value.values()) else ""
    if isinstance(value, dict):
        return ", ".join(
            f"{str(key).replace('_', ' ')}: {_fact('', item)}"
            for key, item in value.items()
            if item is not None
        )
    if isinstance(value, list):
        # Of samples the number is enough.
        return _command_line(value) if name == "argv" else str(len(value) or "")
    if isinstance(value, float):
        return significant(value)
    return "" if value is None else str(value)


def _command_line(argv: list[Any]) -> str:
    """Without the program's path; a run of the training callback was started by another one."""
    return shlex.join(_typed(argv))


def _typed(argv: list[Any]) -> list[str]:
    words = [str(word) for word in argv]
    program = Path(words[0]).name if words else ""
    return ["normprobe" if program == "__main__.py" else program, *words[1:]]


def _shared(record: Mapping[str, Any]) -> str:
    """What ``run.json`` says, for others: without where this package is installed."""
    typed = {"argv": _typed(record["argv"])} if record.get("argv") else {}
    text = json_text({**record, **typed})
    for folder in (bundled_data_dir(), Path(normprobe.__file__).parent):
        text = text.replace(json.dumps(f"{folder}{os.sep}")[1:-1], "")
    return text


#: What draws and listens, in the order in which the pieces build on each other.
_SCRIPTS = (
    "draw.js",
    "figure.js",
    "curves.js",
    "dots.js",
    "scatter.js",
    "grid.js",
    "tables.js",
    "contents.js",
)


@dataclass(frozen=True)
class Section:
    """A run, and what its measurement shows of it."""

    run: RunStore  # in a folder or in memory
    blocks: Sequence[Markup]  # words, tables and figures of the measurement
    shown: Sequence[str] = ()  # tables that the blocks show; the others are added as they are
    repeated: Sequence[str] = ()  # figures of the run of which the blocks show everything
    verdict: Verdict = NOTHING  # what the run says
    # its figure for the first screen of a page of several runs; None: it has none
    lead: Markup | None = None


def page(sections: Sequence[Section], over_all: Section | None = None) -> str:
    """The page; of several runs it begins with what ``over_all`` says and draws, if anything."""
    runs = [section.run for section in sections]
    titles, several = short_titles(runs), len(runs) > 1
    names = models(runs)
    script = Markup("\n").join(map(source, _SCRIPTS))
    lead = over_all or next((section for section in sections if section.lead), None)
    place = next((at for at, s in enumerate(sections) if lead and s.run is lead.run), None)
    made = render(
        "page.html",
        title=f"normprobe: {_subject(names, runs)}" if several else run_title(runs[0]),
        subject=_subject(names, runs),
        style=source("style.css"),
        script=script,
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        measured=measured(runs),
        lead=lead if several else None,
        said=_first_verdict(lead, over_all),
        leading=place,
        told=[
            (at, title, section.verdict.headline)
            for at, (title, section) in enumerate(zip(titles, sections, strict=True), start=1)
            if several and section.verdict and at - 1 != place
        ],
        sections=[
            {"title": title, "subject": subject(section.run), "blocks": _blocks(section)}
            for title, section in zip(titles, sections, strict=True)
        ],
        facts=shared_facts(runs),
        own=shown_table(differing) if len(differing := own_facts(runs, titles)) else "",
    )
    return str(made)


def _first_verdict(lead: Section | None, over_all: Section | None) -> Verdict:
    """What stands first: all that is said over all runs, or the headline of one of them."""
    if lead is None or over_all is not None:
        return over_all.verdict if over_all else NOTHING
    return Verdict(lead.verdict.headline)


def _subject(names: Sequence[str], runs: Sequence[RunStore]) -> str:
    """The page's heading: its model, or how many there are."""
    if len(names) > 1:
        return f"{len(names)} models"
    return names[0] if names else f"{len(runs)} runs"


def _blocks(section: Section) -> list[Markup]:
    """Everything of a run, in the order of the page."""
    run, record = section.run, section.run.record
    blocks: list[Markup] = []
    if record["status"] != COMPLETE:
        blocks.append(_warning("This run is partial: it was interrupted, or is still going on."))
    blocks += section.blocks
    blocks += [_warning(str(text)) for text in record["warnings"]]
    blocks += _other_tables(run, section.shown)
    blocks += _figures(run, section.repeated)
    return [*blocks, block("files", compressed_tables(run), _shared(record))]


def _other_tables(run: RunStore, shown: Sequence[str]) -> list[Markup]:
    """The tables that the measurement has not shown, each as it is."""
    titles = {PUBLISHED: "Beside the paper"}
    blocks = []
    for name in run.table_names:
        rows = None if name in shown else run.rows_of(name)
        if rows is not None:
            title = titles.get(name, name.replace("_", " ").capitalize())
            blocks += [heading(title), shown_table(rows)]
    return blocks


def _figures(run: RunStore, repeated: Sequence[str]) -> list[Markup]:
    """The pictures of ``plots/``; those of which the blocks show everything, only where they are.

    They would be most of the bytes of a page, and a page may hold many runs.
    """
    files = own_files(run.path, "plots/*.png") if run.path else []
    shown = [
        picture(file.stem.replace("_", " "), figure_url(file))
        for file in files
        if file.stem not in repeated
    ]
    names = ", ".join(f"plots/{file.name}" for file in files if file.stem in repeated)
    titled = [heading("Figures for print"), *shown] if shown else []
    told = block("note", f"Figures for print, in the run folder: {names}", "of-figures")
    return [*titled, told] if names else titled


def _warning(text: str) -> Markup:
    return block("warning", text)
