"""A table or a figure of the paper, of the runs that are there: its files, and what it lacks."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from normprobe.cli import console
from normprobe.errors import NormprobeError
from normprobe.extensions.paper.artefacts import Artefact, Changes, PaperCommand, artefacts
from normprobe.extensions.paper.figures import (
    FigureLayout,
    attention_pairs,
    curves_of_run,
    figure_layouts,
)
from normprobe.extensions.paper.panels import drawn_as_paper
from normprobe.extensions.paper.reproduction import is_finished
from normprobe.measurements.compare.measure import doubts_about_samples, step_of
from normprobe.paper.tables import (
    NORM_COLUMNS,
    Cells,
    Layout,
    Named,
    PaperTable,
    cells_of_norm,
    cells_of_run,
    layouts,
    measured_csv,
    measured_table,
    merged_notes,
    names_on,
    notes_on,
)
from normprobe.report.figures.draw import title
from normprobe.report.figures.heat_maps import draw_heatmaps
from normprobe.report.figures.style import drawable, look, save
from normprobe.report.table_text import latex, markdown
from normprobe.report.terminal import print_readable
from normprobe.run import Run, explained, load_run
from normprobe.runs.files import csv_bytes, write_by_rename
from normprobe.runs.run_folder import COMPLETE
from normprobe.schema import PUBLISHED

#: Artefact, model, and why nothing of it is there.
Lacking = tuple[str, str, str]


class Made(NamedTuple):
    """What there is of a table or a figure."""

    # a table, or a figure as a PNG file; None: neither could be made
    result: PaperTable | Path | None
    lacking: list[Lacking]  # what is not there, and why


def make(
    artefact: Artefact, changes: Changes, output: Path, failures: Mapping[Path, NormprobeError]
) -> Made:
    """Make a table or a figure, write its files and show it."""
    name, commands = artefact.name, list(artefact.commands(output))
    lacking = [
        (name, command.model, _in_a_line(failure))
        for command in commands
        if (failure := failures.get(command.folder))
    ]
    sources = [source for command in commands if (source := _source_of(command, changes))]
    made = None
    try:
        if sources:
            made = show_artefact(name, sources, output / name, changes)
    except NormprobeError as error:
        lacking.append((name, "", _in_a_line(error)))
    return Made(made, lacking)


def show_artefact(
    name: str, sources: Sequence[tuple[Path, str]], folder: Path, changes: Changes
) -> PaperTable | Path:
    """Make a table or a figure of runs, or of trained norms, that are there.

    Tables are written as CSV, Markdown and LaTeX and printed, figures as PNG, PDF and CSV.
    """
    if name in layouts():
        return _show_table(name, sources, folder, changes)
    return _show_figure(name, sources, folder, published=changes.published)


def _source_of(command: PaperCommand, changes: Changes) -> tuple[Path, str] | None:
    """The complete run of a model; a trained norm has none, and is read where it lies."""
    if "--weights" in command.words:
        return Path(changes.substitutes[command.model]), command.model
    return (
        (command.folder, command.model) if command.model and is_finished(command.folder) else None
    )


def _in_a_line(failure: NormprobeError) -> str:
    return f"{failure.problem} ({failure.remedy})"


def _show_table(
    name: str, sources: Sequence[tuple[Path, str]], folder: Path, changes: Changes
) -> PaperTable:
    """Write one of the paper's tables as CSV, Markdown and LaTeX, and print it.

    Where several runs measured a number, that of the first stands there.
    """
    layout = layouts()[name]
    bases = {command.model: command.base for command in artefacts()[name].commands(folder)}
    cells, notes, names = Cells(), list[tuple[str, str]](), dict[str, Named]()
    for source, model in sources:
        if model in NORM_COLUMNS:
            column = NORM_COLUMNS[model]
            found = _cells_of_norm(layout, source, column, changes.trust_remote_code)
        else:
            found, said, named = _cells_of_run(layout, source, model, bases.get(model))
            notes += said
            names = {**named, **names}
        if not found:
            console.message(f"{source}: measured no number of {layout.source}")
        cells = {**found, **cells}
    if not cells:
        raise NormprobeError(
            f"no run has measured a number of {layout.source}",
            f"`normprobe paper` lists its runs; NAME=RUN says of which model: {', '.join(bases)}",
        )
    told, published = merged_notes(notes), changes.published
    readable = measured_table(layout, cells, told, names, published=published)
    numbers = measured_csv(layout, cells, published=published)
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


def _cells_of_norm(layout: Layout, source: Path, column: str, trust_remote_code: bool) -> Cells:
    """The cells of a trained norm. Nothing is loaded but its weights."""
    from normprobe.model.load.alignment import saved_norm
    from normprobe.statistics.weights import norm_statistics

    weights = saved_norm(str(source), trust_remote_code=trust_remote_code)
    return cells_of_norm(layout, column, norm_statistics(weights["weight"], weights["bias"]))


def _cells_of_run(
    layout: Layout, folder: Path, model: str, base: str | None
) -> tuple[Cells, list[tuple[str, str]], dict[str, Named]]:
    """The cells that a run has measured, what a reader should know of them, and of their models."""
    run = load_run(folder)
    published = run.published(model, base) if model else run.store.rows_of(PUBLISHED)
    cells = {} if published is None else cells_of_run(layout, run.store, published)
    if published is None or not cells:
        return {}, [], {}
    of_run = (layout, run.store, published)
    return cells, notes_on(*of_run), names_on(*of_run)


#: Which of the figure's names a run is of, and the run; in the order of the names.
Chosen = list[tuple[str, Run]]


def _show_figure(
    name: str, sources: Sequence[tuple[Path, str]], folder: Path, *, published: bool
) -> Path:
    """Draw one of the paper's figures as PNG and PDF, with its numbers as CSV.

    Panels that no run is for are left out, and named. Where several runs are of one model, the
    first counts; of the checkpoints of Figure 5 and the pictures of Appendix G all do.
    """
    layout = figure_layouts()[name]
    chosen, remarks = _chosen(layout, name, sources)
    heading = layout.title
    if absent := layout.without_run([model for model, _ in chosen]):
        remarks.append(f"no run: {', '.join(absent)}")
        heading += f"\n{remarks[-1]}"
    draw: Callable[[FigureLayout, Chosen, str], tuple[Figure, pd.DataFrame]] = _of_attention
    if layout.command == "layers":
        draw = partial(_of_layers, published=published)
        remarks += doubts_about_samples([run.record for _, run in chosen])
    with look(), explained(*(run.store for _, run in chosen)):
        drawing, numbers = draw(layout, chosen, heading)
        picture, _ = save(drawing, folder / name)
    write_by_rename(folder / f"{name}.csv", csv_bytes(numbers))
    for remark in remarks:
        console.message(remark)
    console.message(f"figure: {folder / name}.png, .pdf and .csv")
    return picture


def _chosen(
    layout: FigureLayout, name: str, sources: Sequence[tuple[Path, str]]
) -> tuple[Chosen, list[str]]:
    """The runs that have a place in the figure, and why the others have none."""
    chosen: Chosen = []
    remarks = []
    for source, given in sources:
        run = load_run(source)
        if run.command != layout.command:
            raise NormprobeError(
                f"{source} is a run of {run.command}; expected one of {layout.command}, of which "
                f"{layout.source} is drawn",
                f"`normprobe paper {name}` lists its commands",
            )
        if run.record["status"] != COMPLETE:
            raise NormprobeError(
                f"{source} is not complete: it was interrupted",
                "finish it with --resume, or leave it out",
            )
        model = given or layout.name_of(run.record)
        if model is None:
            remarks.append(f"{source}: {layout.source} does not show {run.record.get('model')}")
        elif _has_place(layout, model, run, chosen):
            remarks.append(f"{source}: left out, an earlier run has its place")
        else:
            chosen.append((model, run))
    if not chosen:
        raise NormprobeError(
            "; ".join(remarks), f"NAME=RUN says of which it is a run: {', '.join(layout.names)}"
        )
    chosen.sort(key=lambda pair: layout.names.index(pair[0]) if layout.names else 0)
    return chosen, remarks


def _has_place(layout: FigureLayout, model: str, run: Run, chosen: Chosen) -> bool:
    """Whether an earlier run is where this one would be."""
    same = any(run.path == other.path for _, other in chosen)
    if layout.several:
        return same
    if not layout.names:
        return bool(chosen)
    return model in dict(chosen) or (same and bool(layout.roles))


def _of_layers(
    layout: FigureLayout, chosen: Chosen, heading: str, *, published: bool
) -> tuple[Figure, pd.DataFrame]:
    """The figure of decoder layers, and the numbers of its lines."""
    tables, steps = [], []
    for model, run in chosen:
        beside = None
        if published:
            beside = run.published(model) if model else run.store.rows_of(PUBLISHED)
        label = _run_name(layout, model, run)
        tables.append(curves_of_run(layout, model, run.store, label, beside))
        steps.append(step_of(run.record, run.store.name))
    curves = pd.concat(tables, ignore_index=True)
    if not layout.several:
        return drawn_as_paper(heading, curves), curves
    if None in steps:
        places = curves.groupby("panel")["run"].transform(lambda runs: pd.factorize(runs)[0] + 1)
        curves.insert(4, "step", places)
        return drawn_as_paper(heading, curves, "checkpoint, in the order given"), curves
    of_run = dict(zip((str(run.path) for _, run in chosen), steps, strict=True))
    curves.insert(4, "step", curves["run"].map(of_run))
    return drawn_as_paper(heading, curves, "training step"), curves


def _run_name(layout: FigureLayout, model: str, run: Run) -> str:
    """What to call a run: its model, data and samples; of a pair, which of the two it is."""
    role = layout.roles.get(model)
    return (f"{role}: " if role else "") + title(run.store, run.table)


def _of_attention(
    layout: FigureLayout, chosen: Chosen, heading: str
) -> tuple[Figure, pd.DataFrame]:
    """The maps of both models below each other, and their numbers."""
    pairs = attention_pairs([(layout.roles[model], run.store) for model, run in chosen])
    for warning in pairs.warnings:
        console.message(warning)
    models = dict.fromkeys(
        f"{layout.roles[model]}: {run.record.get('model')}" for model, run in chosen
    )
    heading = "\n".join([heading, *map(drawable, ["; ".join(models), *pairs.captions])])
    return draw_heatmaps(heading, pairs.maps, pairs.images, {}), pairs.maps
