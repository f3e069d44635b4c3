"""Each option that several commands share, once."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

_PARTS = "Parts, where they are not found"
_NORM = "Norm alignment"

Model = Annotated[
    str, typer.Argument(metavar="[MODEL]", help="Hub id, local folder, or the bundled `specimen`.")
]
Data = Annotated[
    str,
    typer.Option(
        help="sample (bundled), text (no images), paper, a benchmark (mmbench, pope:random, "
        "mmstar, ...), or a local file or folder.",
        show_default=True,
    ),
]
Revision = Annotated[
    str | None, typer.Option(help="Branch, tag or commit of a hub model.", metavar="REV")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")]
Dtype = Annotated[str, typer.Option(help="auto (as saved), float32, bfloat16 or float16.")]
DeviceMap = Annotated[
    str | None, typer.Option(help="auto: spread over devices with accelerate.", metavar="MAP")
]
RangeReads = Annotated[
    bool,
    typer.Option("--range-reads", help="Fetch the needed bytes of a hub model, not whole files."),
]
Attention = Annotated[
    str | None,
    typer.Option("--attn-implementation", help="sdpa, eager, flash_attention_2.", metavar="NAME"),
]
PartName = Annotated[
    str | None,
    typer.Option(help="Dotted name in the model.", metavar="NAME", rich_help_panel=_PARTS),
]
ImageTokenId = Annotated[
    int | None,
    typer.Option(help="Id that stands for an image patch.", metavar="ID", rich_help_panel=_PARTS),
]
Verify = Annotated[
    bool,
    typer.Option(
        "--verify", help="Compare with a trace of the running model.", rich_help_panel=_PARTS
    ),
]
Align = Annotated[
    bool,
    typer.Option(
        "--align",
        help="Measure with a norm behind the projector, untrained.",
        rich_help_panel=_NORM,
    ),
]
AlignTarget = Annotated[
    str,
    typer.Option(
        help="What visual tokens are aligned to: table (text embedding), prompt, or a norm.",
        metavar="table|prompt|FLOAT",
        rich_help_panel=_NORM,
    ),
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run the model's own code. Read it first.")
]


def _batch_size(value: str | int) -> int | Literal["auto"]:
    text = str(value)  # typer hands over the default as it is
    if text == "auto":
        return "auto"
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"expected auto or a number from 1 on, received {text!r}")
    return int(text)


BatchSize = Annotated[
    Any,
    typer.Option(
        "--batch-size",
        "-b",
        parser=_batch_size,
        metavar="N",
        help="Samples a forward; auto: as many as fit, fewer when memory runs out.",
    ),
]
Limit = Annotated[
    int | None, typer.Option("--limit", "-n", min=1, help="Draw this many samples.", metavar="N")
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave bad rows out and list them in skipped.csv.")
]
Seed = Annotated[int, typer.Option(help="Seed of the draw.")]
System = Annotated[
    str | None,
    typer.Option(help="System prompt; `none` for none. Default: the template's.", metavar="TEXT"),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Run folder. Default: below runs/.", metavar="DIR"),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a run folder that exists.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with the run in --output, if there is one.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the table as JSON on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the run folder alone.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show the libraries' messages and warnings.")
]


def named_parts(options: Mapping[str, Any]) -> dict[str, Any]:
    """The parts that were named by hand, as ``find_parts`` takes them.

    Args:
        options: a command's options by name.
    """
    parts = ("vision_encoder", "projector", "decoder_layers", "text_embedding")
    named = {part: options[part] for part in parts if options[part] is not None}
    if options["image_token_id"] is not None:
        named["image_token_ids"] = (options["image_token_id"],)
    return named
