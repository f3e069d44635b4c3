"""What a user chooses: how a model is loaded, which samples are measured, where the run goes.

Each option is said once, with the words that ``--help`` shows. The command line shows the fields of
a group as options of their own, ``Probe`` takes them as keywords; from there on a group is passed
whole. What an option needs or excludes stands with it, for the command line to check.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import typer

from normprobe.errors import did_you_mean

Function = TypeVar("Function", bound=Callable[..., Any])

#: As ``output``: a folder below ``runs/``, named by the model, the command, the data and the time.
AUTO = "auto"
#: As ``device``: spread over all devices with accelerate.
BALANCED = "balanced"
#: As ``device``: the processes of torchrun share each layer, by the model's plan for it.
TENSOR_PARALLEL = "tp"

#: What can be named by hand, where it is not found.
MODULE_ROLES = (
    *("vision_encoder", "projector", "decoder_layers", "text_embedding"),
    *("audio_encoder", "audio_projector"),
)
TOKEN_ROLES = ("image_token_ids", "video_token_ids", "audio_token_ids")
#: How visual tokens meet text.
FUSION_WORDS = ("in-sequence", "prepended", "discrete", "added", "cross-attention")
PART_ROLES = (*MODULE_ROLES, *TOKEN_ROLES, "fusion", "kind")
KIND_WORDS = ("vision-language", "vision-encoder", "language")
WORDS_OF_ROLE = {"kind": KIND_WORDS, "fusion": FUSION_WORDS}


class Needs:
    """Of an option: without one of these others it would change nothing."""

    def __init__(self, *names: str, **values: str) -> None:
        self.names, self.values = names, values

    def problem(self, given: Mapping[str, Any]) -> str:
        """What is wrong with these options; empty: nothing."""
        for name in self.names:
            if name in given:
                return ""
        for name, value in self.values.items():
            if str(given.get(name, "")).startswith(value):
                return ""
        ways = [*map(flag, self.names), *(f"{flag(n)} {v}" for n, v in self.values.items())]
        return f"changes nothing without {' or '.join(ways)}"


class Excludes:
    """Of an option: it cannot go with any of these others."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def problem(self, given: Mapping[str, Any]) -> str:
        """What is wrong with these options; empty: nothing."""
        clash = next((name for name in self.names if name in given), None)
        return f"cannot go with {flag(clash)}" if clash else ""


class NeededByAll:
    """Of an argument: without it no option changes anything, but these."""

    def __init__(self, what: str, *but: str) -> None:
        self.what, self.but = what, but

    def missing(self) -> str:
        """What is wrong with an option that is given without it."""
        return f"changes nothing without {self.what}"


def models_here(start: str) -> list[str]:
    """Models that need no network: the specimen, those in the cache, folders beside ``start``."""
    from huggingface_hub.constants import HF_HUB_CACHE

    cached = Path(HF_HUB_CACHE).glob("models--*/snapshots/*/*config.json")
    ids = {path.parts[-4].removeprefix("models--").replace("--", "/") for path in cached}
    place = start[: start.rfind("/") + 1]  # as it was typed, such as `./`
    files = [*Path(place).glob("*/*config.json"), *Path(place).glob("*/norm_alignment.json")]
    beside = {place + file.absolute().parts[-2] for file in files}
    beside |= {place + file.name for file in Path(place).glob("*.gguf")}
    return ["specimen", *sorted(ids), *sorted(beside)]


def flag(name: str) -> str:
    """An option as it is typed."""
    return "--part" if name == "named" else f"--{name.rstrip('_').replace('_', '-')}"


def _batch_size(value: str | int) -> int | Literal["auto"]:
    text = str(value)  # typer hands over the default as it is
    if text == "auto":
        return "auto"
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"expected auto or a number from 1 on, received {text!r}")
    return int(text)


def _part(text: str) -> tuple[str, Any]:
    """``ROLE=NAME`` as an item of ``Loading.named``."""
    role, _, name = text.partition("=")
    if not name or role not in PART_ROLES:
        raise typer.BadParameter(
            did_you_mean(
                role,
                () if name == "" else PART_ROLES,
                f"expected ROLE=NAME, ROLE one of {', '.join(PART_ROLES)}; received {text!r}",
            )
        )
    words = WORDS_OF_ROLE.get(role, (name,))
    if name not in words:
        expected = f"expected {role}={', '.join(words)}; received {text!r}"
        raise typer.BadParameter(did_you_mean(name, words, expected))
    if role not in TOKEN_ROLES:
        return role, name
    if not all(re.fullmatch(r"-?\d+", number) for number in name.split(",")):
        raise typer.BadParameter(f"expected {role}=ID or ID,ID; received {text!r}")
    return role, tuple(map(int, name.split(",")))


def part_flag(role: str, name: object) -> str:
    """A part that is named by hand as it is typed."""
    text = ",".join(map(str, name)) if isinstance(name, list | tuple) else name
    return f"--part {role}={text}"


BatchSize = Annotated[
    Any,
    typer.Option(
        "--batch-size",
        "-b",
        parser=_batch_size,
        metavar="N",
        help="Samples a forward, by default 1; auto: as many as fit, in float32 1.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class Loading:
    """How a model is loaded and asked."""

    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit of a hub model.", metavar="REV")
    ] = None
    device: Annotated[
        str,
        typer.Option(
            help="Default auto; cpu, cuda:1, mps; balanced: over all; tp: share layers.",
            metavar="NAME",
            show_default=False,
        ),
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        typer.Option(
            help="Default as saved; float32, bfloat16, float16.", metavar="NAME", show_default=False
        ),
    ] = "auto"
    attn_implementation: Annotated[
        str | None, typer.Option(help="sdpa, eager, flash_attention_2.", metavar="NAME")
    ] = None
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run the model's own code. Read it first.")
    ] = False
    inputs: Annotated[
        Path | None,
        typer.Option(
            "--inputs",
            metavar="FILE.py",
            help="How the model takes its inputs, for code of its own: a file that `normprobe "
            "inputs` begins (docs/how-to/remote-code.md).",
        ),
    ] = None
    named: Annotated[
        list[Any] | None,
        typer.Option(
            "--part",
            parser=_part,
            metavar="ROLE=NAME",
            help="A part that is not found, by its dotted name in the model: "
            f"{', '.join(MODULE_ROLES)}; image_token_ids=ID; kind={', '.join(KIND_WORDS)}; "
            f"fusion={', '.join(FUSION_WORDS)}. "
            "Repeatable.",
        ),
    ] = None
    system: Annotated[
        str | None,
        typer.Option(
            help="System prompt; `none` for none. Default: the template's.", metavar="TEXT"
        ),
    ] = None
    allow_long_prompts: Annotated[
        bool,
        typer.Option(
            "--allow-long-prompts",
            help="Measure prompts beyond the model's positions, with a warning.",
        ),
    ] = False

    @property
    def parts(self) -> dict[str, Any]:
        """Parts that are named by hand, as ``find_parts`` takes them."""
        return {role: name for role, name in dict(self.named or ()).items() if role != "kind"}

    @property
    def kind(self) -> str | None:
        """What the checkpoint is said to be; None: its config tells."""
        return dict(self.named or ()).get("kind")

    @property
    def record(self) -> dict[str, Any]:
        """What a record says of it."""
        said = {name: value for name, value in vars(self).items() if name != "named"}
        return said | dict(self.named or ())


@dataclass(frozen=True)
class Sampling:
    """Which samples are measured, and how many at once."""

    data: Annotated[
        str,
        typer.Option(
            "--data",
            help="Bundled: sample, scenes, pairs, boxes, mixed, text, paper. A benchmark: "
            "mmbench, pope:random, ... A file or folder.",
            metavar="DATA",
        ),
    ] = "sample"
    prompt: Annotated[
        str | None,
        typer.Option(
            help="The question about each picture of a folder of pictures.", metavar="TEXT"
        ),
        Needs("data"),
    ] = None
    batch_size: BatchSize = 1
    workers: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Processes that decode pictures; 0: none but this one. Default: half of the "
            "cores.",
            metavar="N",
        ),
    ] = None
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", min=1, help="Draw this many samples.", metavar="N"),
    ] = None
    seed: Annotated[
        int,
        typer.Option(help="Seed of the draw of --limit or of --data paper.", metavar="N"),
        Needs("limit", data="paper"),
    ] = 42
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave bad rows out and list them in skipped.csv.")
    ] = False

    @property
    def draw(self) -> dict[str, Any]:
        """What ``open_data`` takes beside the data: which samples."""
        names = ("prompt", "limit", "seed", "skip_bad")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Output:
    """Where the run goes."""

    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Run folder. Default: below runs/.", metavar="DIR"),
    ] = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run that exists.")] = (
        False
    )
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with --output, or the last unfinished."),
        Excludes("overwrite"),
    ] = False

    @property
    def on_disk(self) -> dict[str, Any]:
        """The keywords of a run that always has a folder, as all of a command have."""
        return {**vars(self), "output": self.output or AUTO}


def chosen(options: Mapping[str, Any], *groups: type) -> tuple[Any, ...]:
    """Keywords as instances of groups; what belongs to none goes to the last, which refuses it."""
    left = dict(options)
    made = []
    for group in groups[:-1]:
        names = [field.name for field in fields(group) if field.name in left]
        made.append(group(**{name: left.pop(name) for name in names}))
    return (*made, groups[-1](**left))


def takes(*groups: type, without: tuple[str, ...] = ()) -> Callable[[Function], Function]:
    """Show the fields of groups in the signature of a function that takes them as ``**options``."""

    def shown(function: Function) -> Function:
        *own, rest = signature(function).parameters.values()
        added = [
            Parameter(
                field.name,
                Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=get_type_hints(group)[field.name],
            )
            for group in groups
            for field in fields(group)
            if field.name not in without
        ]
        assert rest.kind is Parameter.VAR_KEYWORD
        described: Any = function
        described.__signature__ = signature(function).replace(parameters=[*own, *added])
        return function

    return shown


def names_in(words: str | Sequence[str] | None) -> list[str]:
    """Names that are given one by one, or separated by commas; each once."""
    texts = [words] if isinstance(words, str) else words or []
    names = (name.strip() for text in texts for name in text.split(","))
    return list(dict.fromkeys(filter(None, names)))
