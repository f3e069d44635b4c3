"""``normprobe embeddings``."""

from typing import Annotated

import typer

from normprobe.cli import console
from normprobe.cli.lasting import lasting_imports
from normprobe.cli.options import (
    Display,
    Loading,
    Model,
    NamedParts,
    RunFolderOptions,
    Without,
    grouped,
    only,
)


@grouped
def embeddings(
    model: Model = "specimen",
    top: Annotated[
        int, typer.Option("--top", "-k", min=1, help="Loudest and quietest tokens to name.")
    ] = 10,
    base: Annotated[
        str | None,
        typer.Option(
            help="The language model it was trained from: how far has the table moved?",
            metavar="MODEL",
        ),
    ] = None,
    *,
    loading: Annotated[Loading, Without("device_map", "attn_implementation")],
    parts: Annotated[NamedParts, only(NamedParts, "text_embedding")],
    folder: Annotated[RunFolderOptions, Without("resume")],
    display: Display,
) -> None:
    """Norms of the embedding tables, and the tokens that stand out (Tables 3, 6-8)."""
    with console.reported(display):
        with lasting_imports():
            from normprobe.probe import Probe
            from normprobe.runs.begin import AUTO

        run = Probe(model, **vars(loading), named=parts.named()).embeddings(
            top=top, base=base, output=folder.output or AUTO, overwrite=folder.overwrite
        )
        console.show(run, display)
