"""One self-contained page of any runs: words, tables, curves to play with, provenance.

Everything comes from the runs, nothing from a network. Style, script and images are in the page;
its policy lets no other script run. What a measurement shows of a run is in its own folder.
"""

import base64
import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from normprobe.report.page.blocks import heading
from normprobe.report.page.markup import Markup, element, joined
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
    names = [run_title(section.run) for section in sections]
    title = names[0] if len(sections) == 1 else f"{len(sections)} normprobe runs"
    links = [
        element("li", element("a", name, href=f"#run-{number}"))
        for number, name in enumerate(names, start=1)
    ]
    script = _file("curves.js")
    digest = hashlib.sha256(script.encode()).digest()
    several = len(sections) > 1
    return Template(_file("page.html")).substitute(
        title=joined(title),
        style=_file("style.css"),
        script=script,
        hash=base64.b64encode(digest).decode(),
        contents=element("nav", element("ol", *links), aria_label="runs") if several else "",
        sections="\n".join(
            _section(section, number if several else None)
            for number, section in enumerate(sections, start=1)
        ),
        footer=joined("Written by normprobe from the run folders alone."),
    )


def _section(section: Section, number: int | None) -> Markup:
    """Everything of a run; without a number it is the only one, and the page has its name."""
    run, record = section.run, section.run.record
    blocks: list[Markup] = []
    if record["status"] != COMPLETE:
        blocks.append(_warning("This run is partial: it was interrupted, or is still going on."))
    blocks += [_warning(str(text)) for text in record["warnings"]]
    blocks += [*section.blocks, *_other_tables(run, section.shown)]
    blocks += _figures(run, section.repeated)
    blocks += [element("h3", "Provenance"), _provenance(record), _downloads(run)]
    subject = element("p", run.name, class_="subject")
    if number is None:
        return element("section", subject, *blocks)
    return element("section", element("h2", run_title(run)), subject, *blocks, id=f"run-{number}")


def _other_tables(run: RunStore, shown: Sequence[str]) -> list[Markup]:
    """The tables that the measurement has not shown, each as it is."""
    titles = {PUBLISHED: "Beside the paper"}
    blocks = []
    for name in run.table_names:
        rows = None if name in shown else run.rows_of(name)
        if rows is not None:
            title = titles.get(name, name.replace("_", " ").capitalize())
            blocks += [heading(title), table(rows)]
    return blocks


def _figures(run: RunStore, repeated: Sequence[str]) -> list[Markup]:
    """The pictures of ``plots/``; those of which the blocks show everything, only where they are.

    They would be most of the bytes of a page, and a page may hold many runs.
    """
    files = own_files(run.path, "plots/*.png") if run.path else []
    shown = [_figure(file) for file in files if file.stem not in repeated]
    names = ", ".join(f"plots/{file.name}" for file in files if file.stem in repeated)
    note = element("p", f"Figures for print, in the run folder: {names}", class_="note")
    return [*shown, note] if names else shown


def _figure(file: Path) -> Markup:
    return element(
        "figure",
        element("img", src=_data_url("image/png", file.read_bytes()), alt=file.stem),
        element("figcaption", _words(file.stem)),
    )


def _provenance(record: dict[str, Any]) -> Markup:
    rows = [
        element("tr", element("th", words, scope="row"), element("td", fact))
        for name, words in _FACTS.items()
        if (fact := _fact(name, record.get(name)))
    ]
    everything = element("pre", json_text(record))
    folded = element("details", element("summary", "run.json"), everything)
    return joined(element("table", element("tbody", *rows), class_="facts"), folded)


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
    links: list[object] = []
    for name in run.table_names:
        file = f"{name}.csv"
        data = (run.path / file).read_bytes() if run.path else csv_bytes(run.table(name))
        links += [" ", element("a", file, href=_data_url("text/csv", data), download=file)]
    return element("p", "Files:", *links, class_="files note")


def _warning(text: str) -> Markup:
    return element("p", text, class_="warning")


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


def _file(name: str) -> str:
    return (files("normprobe.report.page") / name).read_text(encoding="utf-8")
