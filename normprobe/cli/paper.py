"""``normprobe paper``."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normprobe.cli import console
from normprobe.cli.options import Display, Limit, Needs, Overwrite, TrustRemoteCode, grouped, only
from normprobe.errors import NormprobeError

if TYPE_CHECKING:
    from normprobe.paper.artefacts import Artefact, Changes, PaperCommand


@grouped
def paper(
    context: typer.Context,
    run: Annotated[
        str | None, typer.Option("--run", help="Run these commands, e.g. table2.", metavar="NAME")
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
    trust_remote_code: Annotated[TrustRemoteCode, Needs("run")] = False,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder of the runs.", metavar="DIR")
    ] = Path("runs/paper"),
    overwrite: Annotated[Overwrite, Needs("run")] = False,
    *,
    display: Annotated[Display, only(Display, "verbose")],
) -> None:
    """Which commands make each table and figure of the paper; --run runs them.

    Left out: Table 4, which scores trained models, and the drawing in Figure 1 (a).
    """
    with console.reported(display):
        from normprobe.paper.artefacts import Changes, artefacts, substitutes

        known = artefacts()
        if run is None:
            for name, artefact in known.items():
                console.data(_described(name, artefact, output))
            return
        if run not in known:
            raise NormprobeError(
                f"--run {run}: expected one of {', '.join(known)}",
                "`normprobe paper` tells what each is",
            )
        taken = substitutes(model or [], known[run], run)
        changes = Changes(taken, data, limit, trust_remote_code, overwrite)
        for command in known[run].commands(output / run):
            _run(context, command, changes)


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
        base = command.words[command.words.index("--base") + 1] if "--base" in words else None
        measured = load_run(command.folder)
        write_published(measured.store, command.model, base)
        with console.stdout_console() as target:
            measured.show_published(target)


def _described(name: str, artefact: "Artefact", output: Path) -> str:
    notes = [f"# {artefact.note}"] if artefact.note else []
    lines = [command.line for command in artefact.commands(output / name)]
    return "\n".join([f"# {name}: {artefact.shows}", *notes, *lines, ""])
