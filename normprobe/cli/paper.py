"""``normprobe paper``."""

import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normprobe.cli import console
from normprobe.cli.options import (
    Display,
    Excludes,
    Limit,
    Needs,
    Overwrite,
    TrustRemoteCode,
    grouped,
    only,
)
from normprobe.errors import NormprobeError

if TYPE_CHECKING:
    from normprobe.paper.artefacts import Artefact, Changes, PaperCommand


@grouped
def paper(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[TABLE|FIGURE]", help="E.g. table2; else all."),
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", help="Run these commands, e.g. table2.", metavar="NAME")
    ] = None,
    from_: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            help="Make it of runs that exist: a run folder, or NAME=RUN where a run of NAME "
            "read a local copy; repeatable.",
            metavar="[NAME=]RUN",
        ),
        Excludes("run"),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Take VALUE where the commands say NAME, e.g. a local copy of a hub id.",
            metavar="NAME=VALUE",
        ),
        Needs("run"),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Instead of the paper's samples."), Needs("run")
    ] = None,
    limit: Annotated[Limit, Needs("run")] = None,
    trust_remote_code: Annotated[TrustRemoteCode, Needs("run", "from_")] = False,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder of the runs and tables.", metavar="DIR")
    ] = Path("runs/paper"),
    overwrite: Annotated[Overwrite, Needs("run")] = False,
    *,
    display: Annotated[Display, only(Display, "verbose")],
) -> None:
    """Which commands make each table and figure of the paper; --run runs them.

    --run and --from end with the paper's own table, each cell measured and below it as published,
    as CSV, Markdown and LaTeX; or with its own figure, its panels and their order, as PNG, PDF and
    CSV.

    Left out: Table 4, which scores trained models, and the drawing in Figure 1 (a).
    """
    if name is not None and run is not None:
        raise typer.BadParameter(f"cannot go with {name}", param_hint="--run")
    if name is None and from_:
        raise typer.BadParameter("changes nothing without a table or figure", param_hint="--from")
    with console.reported(display):
        from normprobe.paper.artefacts import Changes, artefacts, substitutes

        known = artefacts()
        if wanted := name or run:
            _require(wanted, known)
        if name is not None and from_:
            sources = [_source(text, known[name].models) for text in from_]
            _show(name, sources, output / name, trust_remote_code)
            return
        if run is None:
            for listed in known if name is None else [name]:
                console.data(_described(known[listed], output))
            return
        taken = substitutes(model or [], known[run], run)
        changes = Changes(taken, data, limit, trust_remote_code, overwrite)
        commands = list(known[run].commands(output))
        for command in commands:
            _run(context, command, changes)
        sources = [_source_of(command, taken) for command in commands if command.model]
        _show(run, sources, output / run, trust_remote_code)


def _show(
    name: str, sources: Sequence[tuple[Path, str]], folder: Path, trust_remote_code: bool
) -> None:
    """Make a table or a figure of runs, or of trained norms, that are there."""
    from normprobe.paper.layouts import layouts

    if name in layouts():
        from normprobe.cli.paper_tables import show_paper_table

        show_paper_table(name, sources, folder, trust_remote_code)
    else:
        from normprobe.cli.paper_figures import show_paper_figure

        show_paper_figure(name, sources, folder)


def _require(name: str, known: Collection[str]) -> None:
    if name not in known:
        raise NormprobeError(
            f"{name}: expected one of {', '.join(known)}",
            "`normprobe paper` tells what each is",
        )


def _source(text: str, names: Sequence[str]) -> tuple[Path, str]:
    """``--from``: a folder, and the model that it is named after; a folder may hold a ``=``."""
    name, _, folder = text.partition("=")
    return (Path(folder), name) if folder and name in names else (Path(text), "")


def _source_of(command: "PaperCommand", substitutes: Mapping[str, str]) -> tuple[Path, str]:
    """The run of a command; a norm has none, and is read where it lies."""
    trained = command.model in substitutes and "--stats" in command.words
    return Path(substitutes[command.model]) if trained else command.folder, command.model


def _run(context: typer.Context, command: "PaperCommand", changes: "Changes") -> None:
    """Run one command as if it had been typed, and put the paper's numbers beside its own."""
    from normprobe.run import load_run, write_published
    from normprobe.runs.run_folder import read_record

    words = changes.apply(command.words)
    console.message(f"normprobe {shlex.join(words)}")
    application = context.find_root().command
    code = application.main(words, prog_name="normprobe", standalone_mode=False)
    if code:
        raise typer.Exit(code)
    if changes.substitutes.keys() & set(command.words) and read_record(command.folder) is not None:
        measured = load_run(command.folder)
        write_published(measured.store, command.model, command.base)
        with console.stdout_console() as target:
            measured.show_published(target)


def _described(artefact: "Artefact", output: Path) -> str:
    notes = [f"# {artefact.note}"] if artefact.note else []
    lines = [command.line for command in artefact.commands(output)]
    return "\n".join([f"# {artefact.name}: {artefact.shows}", *notes, *lines, ""])
