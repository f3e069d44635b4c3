"""The command ``attention``."""

from pathlib import Path
from typing import Annotated

import typer

from normprobe.cli import console
from normprobe.cli.grouping import Display, Model, Starting, Without, grouped, only
from normprobe.cli.measure import probe_of
from normprobe.options import Excludes, Loading, Needs, Output, Sampling


@grouped
def attention(
    model: Model = "specimen",
    *,
    image: Annotated[
        list[Path] | None,
        typer.Option(help="The picture; repeatable, for models that read several.", metavar="FILE"),
        Excludes("data"),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            help="The question; <image> in it: a picture stands there, not before it. With --data: "
            "about each picture of a folder of pictures.",
            metavar="TEXT",
        ),
    ] = None,
    sampling: Annotated[
        Sampling, Without("batch_size", "prompt"), Starting(data=None), Needs("data")
    ],
    video: Annotated[
        list[Path] | None,
        typer.Option(help="A clip that the prompt is about, too; repeatable.", metavar="FILE"),
        Excludes("data"),
    ] = None,
    audio: Annotated[
        list[Path] | None,
        typer.Option(help="A sound, likewise.", metavar="FILE"),
        Excludes("data"),
    ] = None,
    word: Annotated[
        list[str] | None,
        typer.Option(help="Word or phrase of the prompt to follow; repeatable.", metavar="TEXT"),
        Excludes("data"),
    ] = None,
    layer: Annotated[
        list[int] | None,
        typer.Option(
            help="Layer to draw over the image; repeatable. Default: four.", metavar="N", min=1
        ),
        Excludes("data"),
    ] = None,
    box: Annotated[
        str | None,
        typer.Option(
            "--box",
            help="Target region: left,top,right,bottom in pixels of the image.",
            metavar="BOX",
        ),
        Excludes("data"),
    ] = None,
    loading: Loading,
    output: Annotated[Output, Without("resume")],
    going_on: Annotated[Output, only(Output, "resume"), Needs("data")],
    display: Annotated[Display, Without("theory")],
) -> None:
    """How much text attends to the image in each decoder layer, and where (Appendix G).

    With --image one prompt: each layer and head, and heat maps over the picture. With --data many
    samples: shares by layer and head with intervals over images, and norms of keys.
    """
    with console.reported(display, resumes=True):  # one prompt is made in this process
        region = _parsed_box(box)
        probe = probe_of(model, loading, sampling.data)
        if sampling.data is not None:
            asked = {**vars(sampling), **output.on_disk, "resume": going_on.resume}
            console.show_run(probe.measure("shares", **{**asked, "prompt": prompt}), display)
            return
        if not image or prompt is None:
            raise typer.BadParameter(
                "expected --image and --prompt, or --data for many samples", param_hint="--image"
            )
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
