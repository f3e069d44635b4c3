"""The options of all commands: each once, and those that belong together as a group.

A command takes groups as arguments. ``grouped`` shows typer their fields as options of their own:

    @grouped
    def layers(model: Model = "specimen", *, loading: Loading, run: RunOptions) -> None: ...

``Annotated[Loading, Without("device_map")]`` leaves options out: these keep their defaults.
"""

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import typer


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
        ways = [*map(_flag, self.names), *(f"{_flag(n)} {v}" for n, v in self.values.items())]
        return f"changes nothing without {' or '.join(ways)}"


class Excludes:
    """Of an option: it cannot go with any of these others."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def problem(self, given: Mapping[str, Any]) -> str:
        """What is wrong with these options; empty: nothing."""
        clash = next((name for name in self.names if name in given), None)
        return f"cannot go with {_flag(clash)}" if clash else ""


class GoesWith:
    """Of an option: it can go with these others alone."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def problem(self, given: Mapping[str, Any]) -> str:
        """What is wrong with these options; empty: nothing."""
        clash = next((name for name in given if name not in self.names), None)
        return f"cannot go with {_flag(clash)}" if clash else ""


class NeededByAll:
    """Of an argument: without it no option changes anything."""

    def __init__(self, what: str) -> None:
        self.what = what

    def missing(self) -> str:
        """What is wrong with an option that is given without it."""
        return f"changes nothing without {self.what}"


def _flag(name: str) -> str:
    return f"--{name.rstrip('_').replace('_', '-')}"


_PARTS = "Parts, where they are not found"
_NORM = "Norm alignment"
_WATCHING = "What else to measure"

Model = Annotated[
    str, typer.Argument(metavar="[MODEL]", help="Hub id, local folder, or the bundled `specimen`.")
]
Data = Annotated[
    str,
    typer.Option(
        help="sample, pairs, boxes (bundled), text (no images), paper, a benchmark (mmbench, "
        "pope:random, mmstar, ...), or a local file or folder.",
        show_default=True,
    ),
]
Prompt = Annotated[
    str | None,
    typer.Option(help="The question about each picture of a folder of pictures.", metavar="TEXT"),
    Needs("data"),
]
Revision = Annotated[
    str | None, typer.Option(help="Branch, tag or commit of a hub model.", metavar="REV")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"], typer.Option(help="auto: as saved.")
]
DeviceMap = Annotated[
    str | None,
    typer.Option(help="auto: spread over devices with accelerate.", metavar="MAP"),
    Excludes("device"),
]
RangeReads = Annotated[
    bool,
    typer.Option("--range-reads", help="Fetch the needed bytes of a hub model, not whole files."),
]
Attention = Annotated[
    str | None,
    typer.Option("--attn-implementation", help="sdpa, eager, flash_attention_2.", metavar="NAME"),
]
Kind = Annotated[
    Literal["vision-language", "vision-encoder", "language"] | None,
    typer.Option(help="What the model is, where its config does not tell.", rich_help_panel=_PARTS),
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
        "--verify",
        help="Check parts, buffers and numbers on ways of their own.",
        rich_help_panel=_PARTS,
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
Map = Annotated[
    bool,
    typer.Option("--map", help="Lay the norm of each visual token over the first pictures."),
]
MapPictures = Annotated[
    int, typer.Option(min=1, help="How many pictures --map draws.", metavar="N"), Needs("map")
]
Branches = Annotated[
    bool,
    typer.Option(
        "--branches",
        help="What attention and MLP write, each by itself.",
        rich_help_panel=_WATCHING,
    ),
]
Massive = Annotated[
    bool,
    typer.Option(
        "--massive",
        help="Massive activations: which dimensions and tokens, and all without them.",
        rich_help_panel=_WATCHING,
    ),
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run the model's own code. Read it first.")
]

Inputs = Annotated[
    Path | None,
    typer.Option(
        "--inputs",
        metavar="FILE.py",
        help="How the model takes its inputs, for code of its own: docs/how-to/remote-code.md.",
    ),
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
        help="Samples a forward; auto: as many as fit, fewer when memory runs out; one in float32.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Processes that decode pictures; 0: none but this one. Default: half of the cores.",
        metavar="N",
    ),
]
Limit = Annotated[
    int | None, typer.Option("--limit", "-n", min=1, help="Draw this many samples.", metavar="N")
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave bad rows out and list them in skipped.csv.")
]
Seed = Annotated[
    int,
    typer.Option(help="Seed of the draw of --limit or of --data paper."),
    Needs("limit", data="paper"),
]
System = Annotated[
    str | None,
    typer.Option(help="System prompt; `none` for none. Default: the template's.", metavar="TEXT"),
]
AllowLongPrompts = Annotated[
    bool,
    typer.Option(
        "--allow-long-prompts", help="Measure prompts beyond the model's positions, with a warning."
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Run folder. Default: below runs/.", metavar="DIR"),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a run folder that exists.")]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Go on with the run in --output, or the last unfinished."),
    Excludes("overwrite"),
]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="End with exit code 1 where the numbers are in doubt."),
]
Format = Annotated[
    Literal["csv", "json", "md", "tex"] | None,
    typer.Option("--format", help="Print the table alone, as CSV, JSON, Markdown or LaTeX."),
    Excludes("quiet"),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object: table, sentence, folder."),
    Excludes("quiet", "format"),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the run folder alone.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show the libraries' messages and warnings.")
]


@dataclass(frozen=True)
class Sampling:
    """Which samples are measured, and how many at once."""

    data: Data = "sample"
    prompt: Prompt = None
    batch_size: BatchSize = 1
    workers: Workers = None
    limit: Limit = None
    seed: Seed = 42
    skip_bad: SkipBad = False
    system: System = None
    allow_long_prompts: AllowLongPrompts = False

    @property
    def prompting(self) -> dict[str, Any]:
        """What ``Probe`` takes of prompts."""
        return {"system": self.system, "allow_long_prompts": self.allow_long_prompts}


@dataclass(frozen=True)
class Loading:
    """How the model is loaded."""

    revision: Revision = None
    device: Device = "auto"
    dtype: Dtype = "auto"
    device_map: DeviceMap = None
    attn_implementation: Attention = None
    range_reads: RangeReads = False
    trust_remote_code: TrustRemoteCode = False
    inputs: Inputs = None
    kind: Kind = None


@dataclass(frozen=True)
class NamedParts:
    """Parts that are named by hand."""

    vision_encoder: PartName = None
    projector: PartName = None
    decoder_layers: PartName = None
    text_embedding: PartName = None
    image_token_id: ImageTokenId = None
    verify: Verify = False

    def named(self) -> dict[str, Any]:
        """The parts as ``find_parts`` takes them."""
        roles = ("vision_encoder", "projector", "decoder_layers", "text_embedding")
        named = {role: getattr(self, role) for role in roles if getattr(self, role) is not None}
        if self.image_token_id is not None:
            named["image_token_ids"] = (self.image_token_id,)
        return named


@dataclass(frozen=True)
class NormAlignment:
    """Whether to measure with an alignment norm."""

    align: Align = False
    align_target: Annotated[AlignTarget, Needs("align")] = "table"

    @property
    def target(self) -> str | None:
        """What to align to; None: nothing."""
        return self.align_target if self.align else None


@dataclass(frozen=True)
class NormMaps:
    """Whether to lay norms over pictures."""

    map: Map = False
    map_pictures: MapPictures = 4

    @property
    def pictures(self) -> int | None:
        """How many pictures; None: no map."""
        return self.map_pictures if self.map else None


@dataclass(frozen=True)
class Watching:
    """What else to look at: options of the names of a measurement's ``watchers``."""

    branches: Branches = False
    massive: Massive = False


@dataclass(frozen=True)
class RunFolderOptions:
    """Where the run goes."""

    output: Output = None
    overwrite: Overwrite = False
    resume: Resume = False


@dataclass(frozen=True)
class Display:
    """What is printed."""

    format: Format = None
    json: Json = False
    quiet: Quiet = False
    verbose: Verbose = False


class Without:
    """Leaves options of a group out of a command."""

    def __init__(self, *names: str) -> None:
        self.names = frozenset(names)


class Starting:
    """Gives options of a group other defaults."""

    def __init__(self, **defaults: Any) -> None:
        self.defaults = defaults


def only(group: type, *names: str) -> Without:
    """Leaves all options of a group out but these."""
    return Without(*(field.name for field in fields(group) if field.name not in names))


_CONTEXT = "_context"


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Show typer the fields of option groups as options of their own."""
    groups: dict[str, tuple[type, list[str]]] = {}
    options: list[Parameter] = []
    for argument in signature(command).parameters.values():
        group, without, defaults = _group_of(argument.annotation)
        if group is None:
            options.append(argument.replace(kind=Parameter.KEYWORD_ONLY))
            continue
        shown = [o for o in _options_of(group, defaults) if o.name not in without]
        groups[argument.name] = group, [option.name for option in shown]
        options += shown
    takes_context = any(option.annotation is typer.Context for option in options)
    if not takes_context:
        context = Parameter(_CONTEXT, Parameter.KEYWORD_ONLY, annotation=typer.Context)
        options.insert(0, context)
    name_of_context = next(o.name for o in options if o.annotation is typer.Context)

    @wraps(command)
    def with_groups(**given: Any) -> None:
        _refuse_silent(given[name_of_context], options)
        if not takes_context:
            del given[name_of_context]
        for name, (group, names) in groups.items():
            given[name] = group(**{option: given.pop(option) for option in names})
        command(**given)

    described: Any = with_groups
    described.__signature__ = signature(command).replace(parameters=options)
    described.__annotations__ = {option.name: option.annotation for option in options}
    return with_groups


def _refuse_silent(context: typer.Context, options: Sequence[Parameter]) -> None:
    """End with a usage error where an option would change nothing, or contradict another."""
    sources = {option.name: context.get_parameter_source(option.name) for option in options}
    given = {
        option.name: context.params.get(option.name)
        for option in options
        if (source := sources[option.name]) is not None and source.name == "COMMANDLINE"
    }
    for option in options:
        if option.name not in given:
            needed = [rule for rule in get_args(option.annotation) if isinstance(rule, NeededByAll)]
            if needed and given:
                first = _flag(next(iter(given)))
                raise typer.BadParameter(needed[0].missing(), ctx=context, param_hint=first)
            continue
        others = {name: value for name, value in given.items() if name != option.name}
        for rule in get_args(option.annotation):
            if isinstance(rule, Needs | Excludes | GoesWith) and (text := rule.problem(others)):
                raise typer.BadParameter(text, ctx=context, param_hint=_flag(option.name))


def _group_of(annotation: Any) -> tuple[type | None, frozenset[str], dict[str, Any]]:
    """The group that an argument is annotated with, the options left out, and other defaults."""
    if isinstance(annotation, type) and is_dataclass(annotation):
        return annotation, frozenset(), {}
    arguments = get_args(annotation)
    if arguments and isinstance(arguments[0], type) and is_dataclass(arguments[0]):
        left_out = (extra.names for extra in arguments[1:] if isinstance(extra, Without))
        starting = [extra.defaults for extra in arguments[1:] if isinstance(extra, Starting)]
        return arguments[0], frozenset().union(*left_out), dict(ChainMap(*starting))
    return None, frozenset(), {}


def _options_of(group: type, defaults: Mapping[str, Any]) -> Iterator[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        yield Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=defaults.get(field.name, field.default),
            annotation=hints[field.name],
        )
