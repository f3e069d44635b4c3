"""``normprobe attention``."""

from pathlib import Path
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
    Sampling,
    Without,
    grouped,
    only,
)


@grouped
def attention(
    model: Model = "specimen",
    *,
    image: Annotated[
        list[Path],
        typer.Option(help="The picture; repeatable, for models that read several.", metavar="FILE"),
    ],
    prompt: Annotated[
        str,
        typer.Option(
            help="The question; <image> in it: a picture stands there, not before it.",
            metavar="TEXT",
        ),
    ],
    word: Annotated[
        list[str] | None,
        typer.Option(help="Word or phrase of the prompt to follow; repeatable.", metavar="TEXT"),
    ] = None,
    layer: Annotated[
        list[int] | None,
        typer.Option(
            help="Layer to draw over the image; repeatable. Default: four.", metavar="N", min=1
        ),
    ] = None,
    box: Annotated[
        str | None,
        typer.Option(
            help="Target region: left,top,right,bottom in pixels of the image.", metavar="BOX"
        ),
    ] = None,
    sampling: Annotated[Sampling, only(Sampling, "system", "allow_long_prompts")],
    loading: Annotated[Loading, Without("range_reads")],
    parts: Annotated[NamedParts, Without("verify")],
    folder: Annotated[RunFolderOptions, Without("resume")],
    display: Display,
) -> None:
    """How much text attends to the image in each decoder layer, and where (Appendix G)."""
    with console.reported(display):
        region = _parsed_box(box)
        with lasting_imports():
            from normprobe.probe import Probe
            from normprobe.runs.begin import AUTO

        probe = Probe(model, **vars(loading), named=parts.named(), **sampling.prompting)
        run = probe.attention(
            image,
            prompt,
            words=word or [],
            layers=layer or [],
            box=region,
            output=folder.output or AUTO,
            overwrite=folder.overwrite,
        )
        console.show(run, display)


def _parsed_box(text: str | None) -> tuple[float, float, float, float] | None:
    if text is None:
        return None
    try:
        left, top, right, bottom = map(float, text.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"expected four numbers left,top,right,bottom, received {text!r}; e.g. 40,60,200,180",
            param_hint="--box",
        ) from None
    return left, top, right, bottom
