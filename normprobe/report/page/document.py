"""One self-contained page of any runs: words, tables, curves to play with, provenance.

Everything comes from the runs, nothing from a network. Style, script and images are in the page;
its policy lets no other script run. What a measurement shows of a run is in its own folder.
"""

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from normprobe.report.page.blocks import heading, note, picture
from normprobe.report.page.files import compressed_tables, figure_url
from normprobe.report.page.markup import Markup, block, render, source
from normprobe.report.page.measured import measured, models
from normprobe.report.page.provenance import own_facts, shared_facts
from normprobe.report.page.tables import table
from normprobe.report.page.titles import run_title, short_titles, subject
from normprobe.runs.files import json_text, own_files
from normprobe.runs.run_folder import COMPLETE, RunStore
from normprobe.schema import PUBLISHED

#: What draws and listens, in the order in which the pieces build on each other.
_SCRIPTS = ("draw.js", "figure.js", "curves.js", "dots.js", "grid.js", "tables.js", "contents.js")


@dataclass(frozen=True)
class Section:
    """A run, and what its measurement shows of it.

    Attributes:
        run: in a folder or in memory.
        blocks: words, tables and figures of the measurement.
        shown: tables that the blocks show; the others are added as they are.
        repeated: figures of the run of which the blocks show everything.
        headline: what the run says, in a few sentences.
        lead: its figure for the first screen of a page of several runs; None: it has none.
    """

    run: RunStore
    blocks: Sequence[Markup]
    shown: Sequence[str] = ()
    repeated: Sequence[str] = ()
    headline: str = ""
    lead: Markup | None = None


def page(sections: Sequence[Section]) -> str:
    """The page."""
    runs = [section.run for section in sections]
    titles, several = short_titles(runs), len(runs) > 1
    names = models(runs)
    script = Markup("\n").join(map(source, _SCRIPTS))
    leading = next((place for place, section in enumerate(sections) if section.lead), None)
    lead = sections[leading] if several and leading is not None else None
    made = render(
        "page.html",
        title=f"normprobe: {_subject(names, runs)}" if several else run_title(runs[0]),
        subject=_subject(names, runs),
        style=source("style.css"),
        script=script,
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        measured=measured(runs),
        lead=lead,
        leading=leading,
        told=[
            (place, title, _opening(section.headline))
            for place, (title, section) in enumerate(zip(titles, sections, strict=True), start=1)
            if several and section.headline and section is not lead
        ],
        sections=[
            {"title": title, "subject": subject(section.run), "blocks": _blocks(section)}
            for title, section in zip(titles, sections, strict=True)
        ],
        facts=shared_facts(runs),
        own=table(differing) if len(differing := own_facts(runs, titles)) else "",
    )
    return str(made)


def _subject(names: Sequence[str], runs: Sequence[RunStore]) -> str:
    """The page's heading: its model, or how many there are."""
    if len(names) > 1:
        return f"{len(names)} models"
    return names[0] if names else f"{len(runs)} runs"


def _opening(text: str) -> str:
    """The first sentence."""
    return re.split(r"(?<=[a-z\])]\.) (?=[A-Z])", text, maxsplit=1)[0]


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
    return [*blocks, block("files", compressed_tables(run), json_text(record))]


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
    shown = [
        picture(file.stem.replace("_", " "), figure_url(file))
        for file in files
        if file.stem not in repeated
    ]
    names = ", ".join(f"plots/{file.name}" for file in files if file.stem in repeated)
    return [*shown, note(f"Figures for print, in the run folder: {names}")] if names else shown


def _warning(text: str) -> Markup:
    return block("warning", text)
