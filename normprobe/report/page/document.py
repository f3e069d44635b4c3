"""One self-contained page of any runs: words, tables, curves to play with, provenance.

Everything comes from the runs, nothing from a network. Style, script and images are in the page;
its policy lets no other script run. What a measurement shows of a run is in its own folder.
"""

import base64
import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normprobe.report.page.blocks import heading, note
from normprobe.report.page.markup import Markup, block, render, source
from normprobe.report.page.tables import table
from normprobe.runs.csv_text import csv_bytes
from normprobe.runs.json_text import json_text
from normprobe.runs.own_files import own_files
from normprobe.runs.run_store import COMPLETE, RunStore
from normprobe.schema import PUBLISHED

#: Facts of run.json and their words, in the order in which a reader asks; the rest is folded away.
_FACTS = {
    "model": "model",
    "model_revision": "revision",
    "model_type": "type",
    "family": "family",
    "norm_placement": "norm placement",
    "alignment": "alignment norm",
    "data": "data",
    "sample_ids": "samples",
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
}


@dataclass(frozen=True)
class Section:
    """A run, and what its measurement shows of it.

    Attributes:
        run: in a folder or in memory.
        blocks: words, tables and curves of the measurement.
        shown: tables that the blocks show; the others are added as they are.
        repeated: figures of the run of which the blocks show everything.
    """

    run: RunStore
    blocks: Sequence[Markup]
    shown: Sequence[str] = ()
    repeated: Sequence[str] = ()


def page(sections: Sequence[Section]) -> str:
    """The page.

    Args:
        sections: one a run.

    Returns:
        HTML.

    Raises:
        NormprobeError: a table of a run cannot be read.
    """
    titles = [run_title(section.run) for section in sections]
    script = source("curves.js")
    made = render(
        "page.html",
        title=titles[0] if len(sections) == 1 else f"{len(sections)} normprobe runs",
        style=source("style.css"),
        script=script,
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        sections=[
            {"title": title, "subject": section.run.name, "blocks": _blocks(section)}
            for title, section in zip(titles, sections, strict=True)
        ],
    )
    return str(made)


def _blocks(section: Section) -> list[Markup]:
    """Everything of a run, in the order of the page."""
    run, record = section.run, section.run.record
    blocks: list[Markup] = []
    if record["status"] != COMPLETE:
        blocks.append(_warning("This run is partial: it was interrupted, or is still going on."))
    blocks += [_warning(str(text)) for text in record["warnings"]]
    blocks += [*section.blocks, *_other_tables(run, section.shown)]
    blocks += _figures(run, section.repeated)
    return [*blocks, _provenance(record), _downloads(run)]


def _other_tables(run: RunStore, shown: Sequence[str]) -> list[Markup]:
    """The tables that the measurement has not shown, each as it is."""
    titles = {PUBLISHED: "Beside the paper"}
    blocks = []
    for name in run.table_names:
        rows = None if name in shown else run.rows_of(name)
        if rows is not None:
            title = titles.get(name, _words(name).capitalize())
            blocks += [heading(title), table(rows)]
    return blocks


def _figures(run: RunStore, repeated: Sequence[str]) -> list[Markup]:
    """The pictures of ``plots/``; those of which the blocks show everything, only where they are.

    They would be most of the bytes of a page, and a page may hold many runs.
    """
    files = own_files(run.path, "plots/*.png") if run.path else []
    shown = [
        block("picture", file.stem, _data_url("image/png", file.read_bytes()))
        for file in files
        if file.stem not in repeated
    ]
    names = ", ".join(f"plots/{file.name}" for file in files if file.stem in repeated)
    return [*shown, note(f"Figures for print, in the run folder: {names}")] if names else shown


def _provenance(record: dict[str, Any]) -> Markup:
    facts = [
        (words, fact) for name, words in _FACTS.items() if (fact := _fact(name, record.get(name)))
    ]
    return block("provenance", facts, json_text(record))


def _fact(name: str, value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{_words(k)}: {item}" for k, item in value.items() if item is not None)
    if isinstance(value, list):
        # Of samples the number is enough.
        return _command_line(value) if name == "argv" else str(len(value) or "")
    return "" if value is None else str(value)


def _command_line(argv: list[object]) -> str:
    """Without the program's path; a run of the training callback was started by another one."""
    words = [str(word) for word in argv]
    program = Path(words[0]).name if words else ""
    return shlex.join(["normprobe" if program == "__main__.py" else program, *words[1:]])


def _downloads(run: RunStore) -> Markup:
    """The tables themselves, so that the page is enough to go on from."""
    files = []
    for name in run.table_names:
        file = f"{name}.csv"
        data = (run.path / file).read_bytes() if run.path else csv_bytes(run.table(name))
        files.append((file, _data_url("text/csv", data)))
    return block("downloads", files)


def _warning(text: str) -> Markup:
    return block("warning", text)


def run_title(run: RunStore) -> str:
    """E.g. ``layers: llava-hf/llava-1.5-7b-hf, mmbench, aligned, step 100``."""
    record = run.record
    step = record.get("step")
    model = str(record.get("model") or "")
    facts = [
        Path(model).name if model.startswith(("/", ".")) else model,
        record.get("data"),
        "aligned" if record.get("alignment") else None,
        None if step is None else f"step {step}",
    ]
    subject = ", ".join(str(fact) for fact in facts if fact) or run.name
    return f"{record.get('command', 'run')}: {subject}"


def _data_url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _words(name: str) -> str:
    return name.replace("_", " ")
