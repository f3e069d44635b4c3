"""The command ``inputs``."""

from pathlib import Path
from typing import Annotated

import typer

from normprobe.cli import console
from normprobe.cli.grouping import Display, grouped, only
from normprobe.options import Loading

_OPTIONS = (
    "revision",
    "trust_remote_code",
    "device",
    "dtype",
    "attn_implementation",
    "inputs",
    "named",
)


@grouped
def inputs(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Hub id, folder or GGUF file.")],
    write: Annotated[
        Path,
        typer.Option(
            "--write",
            help="The file to begin; `--inputs FILE.py` of other commands reads it.",
            metavar="FILE.py",
        ),
    ],
    *,
    loading: Annotated[Loading, only(Loading, *_OPTIONS)],
    display: Annotated[Display, only(Display, "quiet", "verbose")],
) -> None:
    """Begin an inputs file for a model with code of its own, and try it on one sample.

    It holds what forward takes, what the processor makes, modules that may be parts, and a `build`.
    With `--inputs`, such as a file whose setup() imports a package, what that one holds is kept.
    """
    with console.reported(display):
        from normprobe.model.checkpoint_place import require_path

        require_path(model)
        from normprobe.extensions.families.inputs_draft import begin_inputs_file

        told = begin_inputs_file(model, write, loading)
        console.data(str(write) if display.quiet else f"{write} is written; {told}")
