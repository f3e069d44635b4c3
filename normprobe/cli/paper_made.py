"""A table or a figure of the paper, of the runs that are there, and what it lacks."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from normprobe.cli.paper_figures import show_paper_figure
from normprobe.cli.paper_tables import show_paper_table
from normprobe.errors import NormprobeError
from normprobe.paper.artefacts import Artefact, Changes, PaperCommand
from normprobe.paper.layouts import PaperTable, layouts
from normprobe.reproduction.jobs import is_finished

#: Artefact, model, and why nothing of it is there.
Lacking = tuple[str, str, str]


class Made(NamedTuple):
    """What there is of a table or a figure.

    Attributes:
        table: of a table.
        picture: of a figure, a PNG file.
        lacking: what is not there, and why.
    """

    table: PaperTable | None
    picture: Path | None
    lacking: list[Lacking]


def make(
    artefact: Artefact, changes: Changes, output: Path, failures: Mapping[Path, NormprobeError]
) -> Made:
    """Make a table or a figure, write its files and show it.

    Args:
        artefact: which.
        changes: of its commands.
        output: the folder of all runs.
        failures: why a run folder holds no complete run.
    """
    name, commands = artefact.name, list(artefact.commands(output))
    lacking = [
        (name, command.model, _in_a_line(failure))
        for command in commands
        if (failure := failures.get(command.folder))
    ]
    sources = [source for command in commands if (source := _source_of(command, changes))]
    table, picture = None, None
    try:
        if sources and name in layouts():
            table = show_paper_table(name, sources, output / name, changes.trust_remote_code)
        elif sources:
            show_paper_figure(name, sources, output / name)
            picture = output / name / f"{name}.png"
    except NormprobeError as error:
        lacking.append((name, "", _in_a_line(error)))
    return Made(table, picture, lacking)


def _source_of(command: PaperCommand, changes: Changes) -> tuple[Path, str] | None:
    """The complete run of a model; a trained norm has none, and is read where it lies."""
    if "--stats" in command.words:
        return Path(changes.substitutes[command.model]), command.model
    return (
        (command.folder, command.model) if command.model and is_finished(command.folder) else None
    )


def _in_a_line(failure: NormprobeError) -> str:
    return f"{failure.problem} ({failure.remedy})"
