"""One page of the paper's tables and figures: those that were made, and why others were not."""

import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd

from normprobe.paper.layouts import PaperTable
from normprobe.report.page.blocks import heading, note
from normprobe.report.page.document import Section, page
from normprobe.report.page.printed import printed
from normprobe.runs.atomic import write_by_rename
from normprobe.runs.provenance import provenance
from normprobe.runs.run_folder import RunFolder

#: The run folder of a reproduction, its main table, and its page.
FOLDER, NOT_MADE, PAGE = "all", "not_made", "paper.html"


def in_a_line(row: Iterable[str]) -> str:
    """Artefact, model and reason; what is empty is left out."""
    return ": ".join(filter(None, row))


def write_page(
    output: Path,
    made: Mapping[str, PaperTable | Path],
    not_made: pd.DataFrame,
) -> Path:
    """Put all into a run folder of its own, and that on a page."""
    started = time.perf_counter()
    facts = {"command": "paper", "model": "The Unseen Bias (arXiv 2512.08374)"}
    run = RunFolder.create(
        output / FOLDER, overwrite=True, record=provenance(sys.argv, {}, **facts)
    )
    blocks = []
    for name, result in made.items():
        if isinstance(result, PaperTable):
            run.write_table(name, result.numbers)
            blocks += printed(result.readable)
        else:
            plot = run.path / "plots" / f"{name}.png"
            plot.parent.mkdir(exist_ok=True)
            shutil.copyfile(result, plot)
    run.write_table(NOT_MADE, not_made)
    if len(not_made):
        rows = not_made.itertuples(index=False)
        blocks += [heading("Not made, or in part"), *(note(in_a_line(row)) for row in rows)]
    run.finish(seconds=round(time.perf_counter() - started, 3))
    text = page([Section(run, blocks, shown=run.table_names)])
    file = output / PAGE
    write_by_rename(file, text.encode("utf-8", errors="xmlcharrefreplace"))
    return file
