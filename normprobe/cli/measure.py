"""The commands that measure a model: over samples, its tables, one question; align and demo."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from normprobe.cli import console
from normprobe.cli.grouping import (
    Asked,
    Display,
    Model,
    Starting,
    Strict,
    Without,
    grouped,
    only,
)
from normprobe.measurements import Measurement
from normprobe.options import Loading, Output, Sampling

_BATCH = 8  # of the demo, like the number of tokens it names
_TOP = 5


def command_of(offered: Measurement) -> Callable[..., None]:
    """The command that runs a measurement over samples."""
    not_sampled = [] if offered.batches else ["batch_size"]
    if offered.reads_samples:  # they say more than a prompt that all have in common
        not_sampled.append("prompt")
    not_asked = [*([] if offered.maps else ["map"]), *([] if offered.watchers else ["also"])]
    not_asked += [*([] if offered.intervenes else ["do"]), *([] if offered.turns else ["by"])]
    not_shown = [] if offered.theory else ["theory"]

    def command(
        model: Model = "specimen",
        *,
        sampling: Annotated[Sampling, Without(*not_sampled), Starting(data=offered.data)],
        loading: Loading,
        asked: Annotated[Asked, Without(*not_asked)],
        output: Output,
        strict: Strict = False,
        display: Annotated[Display, Without(*not_shown)],
    ) -> None:
        with console.reported(display, resumes=True):
            probe = _probe(model, loading)
            everything = {**vars(sampling), **vars(asked), **output.on_disk}
            run = probe.measure(offered.name, **everything)
            console.show_run(run, display, run.record.get("doubts", []) if strict else [])

    command.__doc__ = offered.summary
    return grouped(command)


def _probe(model: str, loading: Loading) -> Any:
    with console.lasting_imports():
        from normprobe.probe import Probe

    return Probe(model, **vars(loading))


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
    loading: Annotated[Loading, Without("attn_implementation", "system", "allow_long_prompts")],
    output: Annotated[Output, Without("resume")],
    display: Annotated[Display, Without("theory")],
) -> None:
    """Norms of the embedding tables, and the tokens that stand out (Tables 3, 6-8)."""
    with console.reported(display):
        probe = _probe(model, loading)
        console.show_run(probe.embeddings(top=top, base=base, **output.on_disk), display)


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
        probe = _probe(model, loading)
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


@grouped
def align(
    model: Model = "specimen",
    target: Annotated[
        str,
        typer.Option(
            help="What visual tokens are aligned to: table (text embedding), prompt, or a norm.",
            metavar="table|prompt|FLOAT",
        ),
    ] = "table",
    *,
    sampling: Annotated[Sampling, only(Sampling, "data", "limit", "seed")],
    loading: Annotated[Loading, Without("attn_implementation")],
    output: Annotated[Output, Without("resume")],
    display: Annotated[Display, Without("theory")],
) -> None:
    """Save a norm that makes visual tokens as loud as text, to train with (Section 5).

    The folder is an adapter: pass it as MODEL to the other commands, or to
    `normprobe.load_aligned` in Python. The model itself is left as it is.
    """
    with console.reported(display):
        probe = _probe(model, loading)
        drawn = {"limit": sampling.limit, "seed": sampling.seed}
        console.show_run(probe.align(target, sampling.data, **drawn, **output.on_disk), display)


@grouped
def demo(
    output: Annotated[Output, Without("resume")],
    display: Annotated[Display, only(Display, "quiet", "verbose")],
) -> None:
    """Every measurement on the bundled specimen and photographs. No download.

    Norms at the interface, through the decoder and in the embedding table; the attention of one
    question to its photograph; and the decoder again with visual tokens made as loud as text.
    """
    with console.reported(display):
        with console.lasting_imports():
            from normprobe.data.data_set import SAMPLE, open_data
            from normprobe.measurements.layers.words import loudness, turning
            from normprobe.model.checkpoint import SPECIMEN
            from normprobe.probe import Probe
            from normprobe.run import Run, compare, page_of
            from normprobe.runs.files import write_by_rename

        now = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        place = output.output or Path("runs") / SPECIMEN / f"demo-{now}"
        runs: list[Run] = []

        def to(name: str) -> dict[str, Any]:
            return {"output": place / name, "overwrite": output.overwrite}

        def done(run: Run) -> Run:
            if not display.quiet:
                console.message(f"{run.command}: {run.path}")
            runs.append(run)
            return run

        probe = Probe(SPECIMEN).load("layers")  # all that the others read, too
        done(probe.interface(**to("interface")))
        layers = done(probe.layers(batch_size=_BATCH, **to("layers")))
        done(probe.embeddings(top=_TOP, **to("embeddings")))
        pictured = next(sample for sample in open_data(SAMPLE) if sample.image is not None)
        done(probe.attention(pictured, **to("attention")))
        aligned = done(probe.layers(batch_size=_BATCH, align="table", **to("layers-aligned")))
        done(compare([layers, aligned], **to("compare")))
        page = place / "report.html"
        write_by_rename(page, page_of(runs).encode())
        if display.quiet:
            console.data(str(place))
            return
        console.data(f"Visual tokens enter the decoder {loudness(layers.table)}.")
        console.data(f"They turn {turning(layers.table)}.")
        console.data(f"Made as loud as text, they turn {turning(aligned.table)}.")
        console.data(f"All tables and figures on one page: {page}")
        console.data("Your own model: normprobe layers org/model")
