"""How commands take options: groups of them, what goes with what, and what is printed.

A command takes groups as arguments. ``grouped`` shows typer their fields as options of their own:

    @grouped
    def layers(model: Model = "specimen", *, loading: Loading, output: Output) -> None: ...

``Annotated[Loading, Without("inputs")]`` leaves options out: these keep their defaults.
``Annotated[Sampling, Needs("data")]`` says that the others change nothing without that one.
"""

import re
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, cleandoc, signature
from typing import Annotated, Any, Literal, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import OptionInfo, ParameterInfo

from normprobe.options import (
    PART_ROLES,
    WORDS_OF_ROLE,
    Excludes,
    NeededByAll,
    Needs,
    flag,
    models_here,
)


def completed_data(incomplete: str) -> list[str]:
    """What the Tab key finds of data sets; files and folders are found by the shell."""
    from normprobe.data.benchmarks import BENCHMARKS
    from normprobe.data.data_set import data_names

    name, colon, _ = incomplete.partition(":")
    subsets = BENCHMARKS[name].subsets if colon and name in BENCHMARKS else ()
    return [f"{name}:{subset}" for subset in subsets] or data_names()


def completed_part(incomplete: str) -> list[str]:
    """What it finds of ``--part``: roles, and of those that are words also which."""
    role = incomplete.partition("=")[0]
    if "=" in incomplete and role in WORDS_OF_ROLE:
        return [f"{role}={word}" for word in WORDS_OF_ROLE[role]]
    return [f"{role}=" for role in PART_ROLES]


#: By the name of an argument or option.
_COMPLETED: dict[str, Callable[..., list[str]]] = {
    **dict.fromkeys(("model", "models", "base"), models_here),
    "data": completed_data,
    "named": completed_part,
}

#: The panels of ``--help`` in their order; what stands in none of the others is measured.
PANELS = {
    "What is measured": "",
    "Of which model": "model revision trust_remote_code inputs named system allow_long_prompts",
    "On which samples": "data image prompt limit seed skip_bad",
    "On which machine": "batch_size workers device dtype attn_implementation keep timeout",
    "Where it goes": "write junit output overwrite resume strict table yes format theory quiet "
    "verbose",
}
_MEASURED, *_, _WRITTEN = PANELS
#: What few need: ``--help`` names it alone.
_RARE = {
    *("inputs", "named", "system", "allow_long_prompts", "prompt", "seed", "skip_bad", "workers"),
    *("attn_implementation", "verify", "by", "strict", "theory", "verbose", "junit", "keep"),
    *("timeout",),
}
_ALL, _FEW = "--help-all", 3

Model = Annotated[
    str,
    typer.Argument(
        metavar="[MODEL]",
        help="Hub id, folder, GGUF file, script, or the `specimen`.",
    ),
]

Strict = Annotated[
    bool, typer.Option("--strict", help="End with exit code 1 where the numbers are in doubt.")
]


def _in_plain_words(message: str) -> str:
    """What is wrong with a value, without the words of the library that has checked it."""
    message = message.removeprefix("Value error, ").partition(", unable to parse")[0]
    message = message.replace("Input should be a valid integer", "expected a whole number")
    message = message.replace("Input should be a valid number", "expected a number")
    return message.replace("Input should be", "expected a number").rstrip(".")


def plain(shown: list[Any]) -> list[Any]:
    """Options and arguments without what Python calls their types; a flag has no value at all."""
    for parameter in shown:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = lambda **_: None
    return shown


class Commands(TyperGroup):
    """All commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The options as they are shown."""
        return plain(super().get_params(ctx))


class Command(TyperCommand):
    """A command that says in plain words what is wrong with a value."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help; what few need by its names alone, unless all is asked for."""
        rare = [parameter for parameter in self.get_params(ctx) if parameter.name in _RARE]
        if _ALL in ctx.meta or len(rare) < _FEW:
            super().format_help(ctx, formatter)
            return
        for parameter in rare:
            parameter.hidden = True
        names = ", ".join(parameter.opts[0] for parameter in rare)
        self.epilog = f"Also, by {ctx.command_path} {_ALL}: {names}."
        super().format_help(ctx, formatter)
        self.epilog = None
        for parameter in rare:
            parameter.hidden = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of a command."""
        if _ALL in args:
            ctx.meta[_ALL] = True
            args = ["--help"]
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = _in_plain_words(error.message)
            raise

    def get_params(self, ctx: Any) -> list[Any]:
        """The options as they are shown: ``--help`` with the others about what is printed."""
        shown = plain(super().get_params(ctx))
        shown[-1].rich_help_panel = _WRITTEN
        return shown


def _target(text: str) -> str:
    """What to align to; of ``--align -o out`` nobody knows."""
    if re.match("--?[a-z]", text):
        raise typer.BadParameter(f"expected table, prompt or a norm, received {text!r}")
    return text


@dataclass(frozen=True)
class Asked:
    """What is done beside measuring."""

    also: Annotated[
        list[str] | None,
        typer.Option(
            help="Also branches (attention and MLP), massive (activations), headroom (to the end "
            "of float16). Repeatable.",
            metavar="NAME,NAME",
        ),
    ] = None
    by: Annotated[
        Literal["turn"] | None,
        typer.Option(
            help="turn: of conversations, each turn by itself, too. Do later pictures enter as "
            "loud as the first?",
            metavar="turn",
        ),
    ] = None
    tower: Annotated[
        Literal["vision", "audio"] | None,
        typer.Option(
            help="In place of decoder layers: every block of that tower.",
            metavar="vision|audio",
        ),
        Excludes("also", "by", "map", "theory", "align", "verify"),
    ] = None
    do: Annotated[
        list[str] | None,
        typer.Option(
            help="Interventions: scale, scale-to-text, scale-text, norm-at-layer, gain, freeze, "
            "freeze-layer, freeze-text, freeze-attention, freeze-mlp, random-updates, knockout, "
            "knockout-layer, swap, swap-norms, patch-layer, permute, blank, placebo; scale=3 "
            "(dose), freeze@12-20 (layers), freeze:loudest_5 (tokens). Default: six.",
            metavar="NAME,NAME",
        ),
    ] = None
    answer: Annotated[
        bool,
        typer.Option("--answer", help="Also score its own greedy answers."),
    ] = False
    align: Annotated[
        str | None,
        typer.Option(
            help="Give visual tokens the norm of the text table, of the prompt or FLOAT, in this "
            "run alone (`normprobe align` saves it).",
            metavar="table|prompt|FLOAT",
            parser=_target,
        ),
    ] = None
    map: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Norms of visual tokens over the first N pictures.",
            metavar="N",
        ),
    ] = None
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="While measuring, find parts, buffers and numbers in a second way and compare. "
            "(`normprobe verify` measures a finished run again.)",
        ),
    ] = False


@dataclass(frozen=True)
class Display:
    """What is printed."""

    format: Annotated[
        Literal["csv", "json", "md", "tex"] | None,
        typer.Option(
            "--format",
            help="Print the table alone; json: with what it says and where it is.",
            metavar="csv|json|md|tex",
        ),
        Excludes("quiet"),
    ] = None
    theory: Annotated[
        bool,
        typer.Option("--theory", help="Print which of the theory's assumptions hold, too."),
        Excludes("format", "quiet"),
    ] = False
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No messages; of a run its folder alone.")
    ] = False
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the libraries' messages and warnings.")
    ] = False


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
        group, without, defaults, needed = _group_of(argument.annotation)
        if group is None:
            options.append(argument.replace(kind=Parameter.KEYWORD_ONLY))
            continue
        shown = [o for o in _options_of(group, defaults, needed) if o.name not in without]
        groups[argument.name] = group, [option.name for option in shown]
        options += shown
    takes_context = any(option.annotation is typer.Context for option in options)
    if not takes_context:
        context = Parameter(_CONTEXT, Parameter.KEYWORD_ONLY, annotation=typer.Context)
        options.insert(0, context)
    options.sort(key=_place_in_help)
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
    paragraphs = cleandoc(command.__doc__ or "").split("\n\n")  # typer keeps the ends of lines
    described.__doc__ = "\n\n".join(" ".join(lines.split()) for lines in paragraphs)
    described.__annotations__ = {option.name: option.annotation for option in options}
    return with_groups


def _place_in_help(option: Parameter) -> int:
    """Give an option its panel, and say which that is; and to the Tab key what it completes."""
    place = -1  # arguments and the context stay in front
    for info in get_args(option.annotation):
        if isinstance(info, ParameterInfo):
            info.autocompletion = info.autocompletion or _COMPLETED.get(option.name)
        if isinstance(info, OptionInfo):
            named = (panel for panel, names in PANELS.items() if option.name in names.split())
            info.rich_help_panel = next(named, _MEASURED)
            place = [*PANELS].index(info.rich_help_panel)
    return place


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
            first = [flag(name) for name in given if needed and name not in needed[0].but][:1]
            if first:
                raise typer.BadParameter(needed[0].missing(), ctx=context, param_hint=first[0])
            continue
        others = {name: value for name, value in given.items() if name != option.name}
        for rule in get_args(option.annotation):
            if isinstance(rule, Needs | Excludes) and (text := rule.problem(others)):
                raise typer.BadParameter(text, ctx=context, param_hint=flag(option.name))


def _group_of(
    annotation: Any,
) -> tuple[type | None, frozenset[str], dict[str, Any], list[Needs]]:
    """The group of an argument, the options left out, other defaults, and what they need."""
    if isinstance(annotation, type) and is_dataclass(annotation):
        return annotation, frozenset(), {}, []
    arguments = get_args(annotation)
    if arguments and isinstance(arguments[0], type) and is_dataclass(arguments[0]):
        left_out = (extra.names for extra in arguments[1:] if isinstance(extra, Without))
        starting = [extra.defaults for extra in arguments[1:] if isinstance(extra, Starting)]
        needed = [extra for extra in arguments[1:] if isinstance(extra, Needs)]
        return arguments[0], frozenset().union(*left_out), dict(ChainMap(*starting)), needed
    return None, frozenset(), {}, []


def _options_of(
    group: type, defaults: Mapping[str, Any], needed: Sequence[Needs]
) -> Iterator[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        rules = [rule for rule in needed if field.name not in rule.names]
        yield Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=defaults.get(field.name, field.default),
            annotation=Annotated[hints[field.name], *rules] if rules else hints[field.name],
        )
