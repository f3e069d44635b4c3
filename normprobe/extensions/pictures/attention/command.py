"""The command ``attention``."""

from pathlib import Path
from typing import Annotated

import typer

from normprobe.cli import console
from normprobe.cli.grouping import Display, Model, Without, grouped
from normprobe.cli.measure import probe_of
from normprobe.options import Loading, Output


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
    video: Annotated[
        list[Path] | None,
        typer.Option(help="A clip that the prompt is about, too; repeatable.", metavar="FILE"),
    ] = None,
    audio: Annotated[
        list[Path] | None,
        typer.Option(help="A sound, likewise.", metavar="FILE"),
    ] = None,
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
    loading: Loading,
    output: Annotated[Output, Without("resume")],
    display: Annotated[Display, Without("theory")],
) -> None:
    """How much text attends to the image in each decoder layer, and where (Appendix G)."""
    with console.reported(display):
        region = _parsed_box(box)
        probe = probe_of(model, loading)
        followed = {"words": word or [], "layers": layer or [], "box": region}
        followed |= {"video": video or [], "audio": audio or []}
        console.show_run(probe.attention(image, prompt, **followed, **output.on_disk), display)


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
