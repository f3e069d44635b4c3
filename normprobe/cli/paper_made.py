"""A table or a figure of the paper, of the runs that are there, and what it lacks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from normprobe.errors import NormprobeError
from normprobe.paper.artefacts import Artefact, Changes, PaperCommand
from normprobe.paper.tables import PaperTable, layouts
from normprobe.reproduction import is_finished

#: Artefact, model, and why nothing of it is there.
Lacking = tuple[str, str, str]


class Made(NamedTuple):
    """What there is of a table or a figure.

    Attributes:
        result: a table, or a figure as a PNG file; None: neither could be made.
        lacking: what is not there, and why.
    """

    result: PaperTable | Path | None
    lacking: list[Lacking]


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
            made = show(name, sources, output / name, changes.trust_remote_code)
    except NormprobeError as error:
        lacking.append((name, "", _in_a_line(error)))
    return Made(made, lacking)


def show(
    name: str, sources: Sequence[tuple[Path, str]], folder: Path, trust_remote_code: bool
) -> PaperTable | Path:
    """Make a table or a figure of runs, or of trained norms, that are there.

    Arguments and errors are those of ``show_paper_table`` and ``show_paper_figure``.
    """
    if name in layouts():
        from normprobe.cli.paper_tables import show_paper_table

        return show_paper_table(name, sources, folder, trust_remote_code)
    from normprobe.cli.paper_figures import show_paper_figure

    return show_paper_figure(name, sources, folder)


def _source_of(command: PaperCommand, changes: Changes) -> tuple[Path, str] | None:
    """The complete run of a model; a trained norm has none, and is read where it lies."""
    if "--stats" in command.words:
        return Path(changes.substitutes[command.model]), command.model
    return (
        (command.folder, command.model) if command.model and is_finished(command.folder) else None
    )


def _in_a_line(failure: NormprobeError) -> str:
    return f"{failure.problem} ({failure.remedy})"
