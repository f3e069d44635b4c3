"""The paper's own tables of runs that exist: files, and what a terminal shows."""

from collections.abc import Sequence
from pathlib import Path

from normprobe.cli import console
from normprobe.errors import NormprobeError
from normprobe.paper.artefacts import artefacts
from normprobe.paper.tables import (
    NORM_COLUMNS,
    Cells,
    Layout,
    PaperTable,
    cells_of_norm,
    cells_of_run,
    layouts,
    measured_csv,
    measured_table,
    notes_on,
)
from normprobe.report.table_text import latex, markdown
from normprobe.report.terminal import print_readable
from normprobe.run import load_run
from normprobe.runs.files import csv_bytes, write_by_rename
from normprobe.schema import PUBLISHED


def show_paper_table(
    name: str, sources: Sequence[tuple[Path, str]], folder: Path, trust_remote_code: bool
) -> PaperTable:
    """Write one of the paper's tables as CSV, Markdown and LaTeX, and print it.

    Where several runs measured a number, that of the first stands there.
    """
    layout = layouts()[name]
    bases = {command.model: command.base for command in artefacts()[name].commands(folder)}
    cells, notes = Cells(), list[str]()
    for source, model in sources:
        if model in NORM_COLUMNS:
            found = _of_norm(layout, source, NORM_COLUMNS[model], trust_remote_code)
        else:
            found, said = _of_run(layout, source, model, bases.get(model))
            notes += said
        if not found:
            console.message(f"{source}: measured no number of {layout.source}")
        cells = {**found, **cells}
    if not cells:
        raise NormprobeError(
            f"no run has measured a number of {layout.source}",
            f"`normprobe paper` lists its runs; NAME=RUN says of which model: {', '.join(bases)}",
        )
    readable = measured_table(layout, cells, list(dict.fromkeys(notes)))
    numbers = measured_csv(layout, cells)
    files = {
        "csv": csv_bytes(numbers),
        "md": markdown(readable).encode("utf-8", errors="backslashreplace"),
        "tex": latex(readable).encode("utf-8", errors="backslashreplace"),
    }
    for suffix, content in files.items():
        write_by_rename(folder / f"{name}.{suffix}", content)
    with console.stdout_console() as target:
        print_readable(readable, target)
    console.message(f"table: {folder / name}.csv, .md and .tex")
    return PaperTable(numbers, readable)


def _of_norm(layout: Layout, source: Path, column: str, trust_remote_code: bool) -> Cells:
    """The cells of a trained norm. Nothing is loaded but its weights."""
    from normprobe.model.load.alignment import saved_norm
    from normprobe.statistics.weights import norm_statistics

    weights = saved_norm(str(source), trust_remote_code=trust_remote_code)
    return cells_of_norm(layout, column, norm_statistics(weights["weight"], weights["bias"]))


def _of_run(layout: Layout, folder: Path, model: str, base: str | None) -> tuple[Cells, list[str]]:
    """The cells that a run has measured, and what a reader should know of them."""
    run = load_run(folder)
    published = run.published(model, base) if model else run.store.rows_of(PUBLISHED)
    if published is None:
        return {}, []
    cells = cells_of_run(layout, run.store, published)
    return cells, notes_on(layout, run.store, published) if cells else []
