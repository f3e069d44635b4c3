"""The commands ``card`` and ``atlas``."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from normprobe.cli import console
from normprobe.cli.grouping import Display, grouped, only
from normprobe.cli.runs import require_folders


@grouped
def card(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of interface or layers.")],
    write: Annotated[
        Path | None,
        typer.Option(
            help="Put it into this model card, a file that exists. Default: print it.",
            metavar="README.md",
        ),
    ] = None,
    *,
    display: Annotated[Display, only(Display, "quiet", "verbose")],
) -> None:
    """A finished run for a model card: its sentence, numbers, digests and command.

    --write adds it to a card, or replaces what an earlier run of the same command has put there.
    In the metadata, model-index alone is changed.
    """
    with console.reported(display):
        require_folders([run])
        from normprobe.extensions.sharing.card import read_card, with_card
        from normprobe.run import load_run
        from normprobe.runs.files import write_by_rename

        made = with_card("" if write is None else read_card(write), load_run(run))
        if write is not None:
            write_by_rename(write, made.encode())
        console.data(made.removesuffix("\n") if write is None else str(write))


@grouped
def atlas(
    action: Annotated[
        Literal["add", "build"], typer.Argument(metavar="add|build", help="An entry; the page.")
    ],
    source: Annotated[
        Path, typer.Argument(metavar="RUN|FOLDER", help="Run of layers; folder of entries.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Folder of entries (atlas); page (atlas.html).", metavar="PATH"
        ),
    ] = None,
    *,
    display: Annotated[Display, only(Display, "quiet", "verbose")],
) -> None:
    """Measured models in one table: add an entry to a folder, or build the page of a folder.

    add RUN writes a finished run as a small file that others can check; build FOLDER checks every
    entry, by itself and against the others, and makes one page of them all.
    """
    with console.reported(display):
        require_folders([source])
        from normprobe.extensions.sharing.atlas import (
            atlas_page,
            entry_of,
            file_name,
            read_entries,
            text_of,
        )
        from normprobe.run import load_run
        from normprobe.runs.files import write_by_rename

        if action == "add":
            entry = entry_of(load_run(source))
            file, text = (output or Path("atlas")) / file_name(entry), text_of(entry)
        else:
            file, text = output or Path("atlas.html"), atlas_page(read_entries(source))
        write_by_rename(file, text.encode())
        console.data(str(file))
