"""One self-contained page of any runs: words, tables, curves to play with, provenance.

Everything is read from the run folders, nothing from a network. Style, script and images are in the
page; its policy lets no other script run. What a command shows is in ``html_parts``.
"""

import base64
import hashlib
import shlex
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from normprobe.report.html_parts import CURVES_SHOW_ALL, part_of
from normprobe.report.json_text import json_text
from normprobe.report.markup import Markup, element, joined
from normprobe.report.run_dir import COMPLETE, RunDir

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
    "versions": "versions",
}


def page(runs: Sequence[Path]) -> str:
    """The page.

    Args:
        runs: run folders of any commands.

    Returns:
        HTML.

    Raises:
        NormprobeError: a folder is no run folder.
    """
    opened = [RunDir.open(path) for path in runs]
    names = [_name(run) for run in opened]
    title = names[0] if len(runs) == 1 else f"{len(runs)} normprobe runs"
    links = [
        element("li", element("a", name, href=f"#run-{number}"))
        for number, name in enumerate(names, start=1)
    ]
    script = _file("curves.js")
    digest = hashlib.sha256(script.encode()).digest()
    return Template(_file("page.html")).substitute(
        title=joined(title),
        style=_file("style.css"),
        script=script,
        hash=base64.b64encode(digest).decode(),
        contents=element("nav", element("ol", *links), aria_label="runs") if len(runs) > 1 else "",
        sections="\n".join(
            _section(run, number if len(runs) > 1 else None)
            for number, run in enumerate(opened, start=1)
        ),
        footer=joined("Written by normprobe from the run folders alone."),
    )


def _section(run: RunDir, number: int | None) -> Markup:
    """Everything of a run; without a number it is the only one, and the page has its name."""
    record = run.record
    command = str(record.get("command", ""))
    blocks: list[Markup] = []
    if record["status"] != COMPLETE:
        blocks.append(_warning("This run is partial: it was interrupted, or is still going on."))
    blocks += [_warning(str(text)) for text in record["warnings"]]
    blocks += part_of(command, run.path)
    blocks += _figures(run.path, folded=command in CURVES_SHOW_ALL)
    blocks += [element("h3", "Provenance"), _provenance(record), _downloads(run.path)]
    subject = element("p", run.path.resolve().name, class_="subject")
    if number is None:
        return element("section", subject, *blocks)
    return element("section", element("h2", _name(run)), subject, *blocks, id=f"run-{number}")


def _figures(path: Path, *, folded: bool) -> list[Markup]:
    """The pictures of ``plots/``; folded away where curves above show the same."""
    images = [
        element(
            "figure",
            element("img", src=_data_url("image/png", file), alt=file.stem),
            element("figcaption", _words(file.stem)),
        )
        for file in sorted((path / "plots").glob("*.png"))
    ]
    if not images or not folded:
        return images
    return [element("details", element("summary", "Figures for print"), *images)]


def _provenance(record: dict[str, Any]) -> Markup:
    rows = [
        element("tr", element("th", words, scope="row"), element("td", fact))
        for name, words in _FACTS.items()
        if (fact := _fact(name, record.get(name)))
    ]
    everything = element("pre", json_text(record))
    folded = element("details", element("summary", "run.json"), everything, class_="bulky")
    return joined(element("table", element("tbody", *rows), class_="facts"), folded)


def _fact(name: str, value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{_words(k)}: {item}" for k, item in value.items() if item is not None)
    if isinstance(value, list):
        # Of samples the number is enough.
        return _command_line(value) if name == "argv" else str(len(value) or "")
    return "" if value is None else str(value)


def _command_line(argv: list[str]) -> str:
    """Without the program's path; a run of the training callback was started by another one."""
    program = Path(argv[0]).name if argv else ""
    return shlex.join(["normprobe" if program == "__main__.py" else program, *argv[1:]])


def _downloads(path: Path) -> Markup:
    """The tables themselves, so that the page is enough to go on from."""
    links: list[object] = []
    for file in sorted(path.glob("*.csv")):
        address = _data_url("text/csv", file)
        links += [" ", element("a", file.name, href=address, download=file.name)]
    return element("p", "Files:", *links, class_="files note")


def _warning(text: str) -> Markup:
    return element("p", text, class_="warning")


def _name(run: RunDir) -> str:
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
    subject = ", ".join(str(fact) for fact in facts if fact) or run.path.resolve().name
    return f"{record.get('command', 'run')}: {subject}"


def _data_url(kind: str, file: Path) -> str:
    return f"data:{kind};base64,{base64.b64encode(file.read_bytes()).decode()}"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _file(name: str) -> str:
    return (files("normprobe.report") / "page" / name).read_text(encoding="utf-8")
