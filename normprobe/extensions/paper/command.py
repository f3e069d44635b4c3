"""``normprobe paper``."""

import tomllib
from collections.abc import Collection, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normprobe.cli import console
from normprobe.cli.grouping import Display, grouped, only
from normprobe.errors import NormprobeError, did_you_mean
from normprobe.options import Excludes, Needs

if TYPE_CHECKING:
    from normprobe.extensions.paper.artefacts import Artefact

#: Of ``--run``: every table and figure.
_ALL = "all"

#: Why something of the paper is not here, and what is.
_NOT_HERE = {
    "table4": (
        "table4 holds benchmark scores of 7B models that the paper trained, with and without "
        "alignment: normprobe neither trains nor scores",
        "`normprobe align` makes the norm to train with; `normprobe paper figure4` compares both",
    ),
    "figure1a": ("figure1a is a drawing: no command measures it", "`normprobe paper figure1b`"),
}


def _names() -> list[str]:
    """What the Tab key finds: tables and figures, without what reads them."""
    return list(tomllib.loads((files(__package__) / "commands.toml").read_text("utf-8")))


@grouped
def paper(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[TABLE|FIGURE]", help="E.g. table2; else all.", autocompletion=_names
        ),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            help="Run the commands of table2, ..., or of all.",
            metavar="NAME",
            autocompletion=lambda: [*_names(), _ALL],
        ),
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
            help="Take VALUE where the commands say NAME, e.g. a local copy of a hub id; NAME * is "
            "every hub id.",
            metavar="NAME=VALUE",
            autocompletion=lambda: [],
        ),
        Needs("run"),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", help="Instead of the paper's samples.", metavar="DATA"),
        Needs("run"),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", min=1, help="Draw this many samples.", metavar="N"),
        Needs("run"),
    ] = None,
    trust_remote_code: Annotated[
        bool,
        typer.Option("--trust-remote-code", help="Run the model's own code. Read it first."),
        Needs("run", "from_"),
    ] = False,
    without_published: Annotated[
        bool,
        typer.Option("--without-published", help="Measured numbers alone, not the paper's beside."),
        Needs("run", "from_"),
    ] = False,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder of the runs and tables.", metavar="DIR")
    ] = Path("runs/paper"),
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace a run folder that exists."),
        Needs("run"),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Fetch without a question."), Needs("run")
    ] = False,
    *,
    display: Annotated[Display, only(Display, "quiet", "verbose")],
) -> None:
    """Which commands make each table and figure of the paper; --run runs them.

    It says first what is fetched, and asks. The same command goes on after an interruption: runs
    that are finished are taken as they are. --run all ends with one page.

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
        from normprobe.extensions.paper.artefacts import Changes, artefacts, substitutes

        known = artefacts()
        if (asked := name or run) and run != _ALL:
            _require(asked, known)
        changes = Changes({}, data, limit, trust_remote_code, published=not without_published)
        if name is not None and from_:
            sources = [_source(text, known[name].models) for text in from_]
            from normprobe.extensions.paper.made import show_artefact

            show_artefact(name, sources, output / name, changes)
            return
        if run is None:
            for listed in known if name is None else [name]:
                console.data(_described(known[listed], output))
            return
        from normprobe.extensions.paper.running import run_artefacts

        wanted = list(known.values()) if run == _ALL else [known[run]]
        taken = substitutes(model or [], wanted, run)
        changes = replace(changes, substitutes=taken)
        run_artefacts(run, wanted, changes, output, yes=yes, overwrite=overwrite)


def _require(name: str, known: Collection[str]) -> None:
    if name in _NOT_HERE:
        raise NormprobeError(*_NOT_HERE[name])
    if name not in known:
        raise NormprobeError(
            f"{name}: expected one of {', '.join(known)}",
            did_you_mean(name, known, "`normprobe paper` tells what each is"),
        )


def _source(text: str, names: Sequence[str]) -> tuple[Path, str]:
    """``--from``: a folder, and the model that it is named after; a folder may hold a ``=``."""
    name, _, folder = text.partition("=")
    return (Path(folder), name) if folder and name in names else (Path(text), "")


def _described(artefact: "Artefact", output: Path) -> str:
    notes = [f"# {artefact.note}"] if artefact.note else []
    lines = [command.line for command in artefact.commands(output)]
    return "\n".join([f"# {artefact.name}: {artefact.shows}", *notes, *lines, ""])
