"""The options of every command, in the order of ``--help``, and what goes with what."""

import re
from inspect import signature
from typing import get_args

import pytest
from typer.models import OptionInfo
from typer.testing import CliRunner

from normprobe.cli.app import COMMANDS, app
from normprobe.cli.grouping import PANELS

MODEL = "--revision --trust-remote-code --inputs --part"
PROMPTED = f"{MODEL} --system --allow-long-prompts"
DRAW = "--limit -n --seed"
ON = "--device --dtype"
ANY = f"{ON} --attn-implementation"
FOLDER = "--output -o --overwrite"
SHOWN = "--format --quiet -q --verbose -v --help -h"
QUIET = "--quiet -q --verbose -v --help -h"

OPTIONS = {
    "interface": f"--align --map --verify {PROMPTED} --data --prompt {DRAW} --skip-bad --workers "
    f"{ANY} {FOLDER} --resume --strict {SHOWN}",
    "layers": f"--also --by --tower --align --map --verify {PROMPTED} --data --prompt {DRAW} "
    f"--skip-bad --batch-size -b --workers {ANY} {FOLDER} --resume --strict --format --theory "
    f"{QUIET}",
    "cause": f"--do --answer --align --verify {PROMPTED} --data {DRAW} --skip-bad --batch-size -b "
    f"--workers {ANY} {FOLDER} --resume --strict {SHOWN}",
    "check": f"--against --against-dtype --fake-quant --states --tolerance {PROMPTED} --data "
    f"--prompt {DRAW} --workers {ANY} --write --junit {SHOWN}",
    "states": f"--engine --tensor-parallel --export-inputs --script --snippet {PROMPTED} --data "
    f"--prompt {DRAW} --dtype --output -o {QUIET}",
    "follow": f"--align --verify {PROMPTED} --data {DRAW} --skip-bad --workers {ANY} {FOLDER} "
    f"--resume --strict {SHOWN}",
    "nearest": f"--align --verify {PROMPTED} --data {DRAW} --skip-bad --workers {ANY} {FOLDER} "
    f"--resume --strict {SHOWN}",
    "grounding": f"--align --verify {PROMPTED} --data {DRAW} --skip-bad --workers {ANY} {FOLDER} "
    f"--resume --strict {SHOWN}",
    "embeddings": f"--top -k --base {MODEL} {ON} {FOLDER} {SHOWN}",
    "attention": f"--video --audio --word --layer --box {PROMPTED} --image --prompt --data {DRAW} "
    f"--skip-bad --workers {ANY} {FOLDER} --resume {SHOWN}",
    "show": f"--table --format --theory {QUIET}",
    "compare": f"--label {FOLDER} {SHOWN}",
    "verify": f"--trust-remote-code --inputs {DRAW} {SHOWN}",
    "survey": f"--measure {PROMPTED.replace('--revision ', '')} --data --prompt {DRAW} --skip-bad "
    f"--batch-size -b --workers {ANY} --keep --timeout {FOLDER} --resume --strict {SHOWN}",
    "inspect": f"--weights {MODEL} {SHOWN}",
    "inputs": f"{MODEL} {ON} --attn-implementation --write {QUIET}",
    "watch": "--snippet --quiet -q --help -h",
    "align": f"--target {PROMPTED} --data {DRAW} {ON} {FOLDER} {SHOWN}",
    "report": f"{FOLDER} {QUIET}",
    "card": f"--write {QUIET}",
    "atlas": f"--output -o {QUIET}",
    "paper": "--run --from --without-published --model --trust-remote-code --data --limit -n "
    f"{FOLDER} --yes -y {QUIET}",
    "demo": f"{FOLDER} {QUIET}",
}

#: A line that begins an option: its long name, then its short one.
BEGINS = re.compile(r"^│ [ *]*(--[a-z-]+)(?: +(-[a-z]))?(?= )", re.MULTILINE)


HELP = ["--help", "--help-all"]


def options_of(*words: str) -> list[str]:
    shown = CliRunner().invoke(app, [*words, HELP[bool(words)]], env={"COLUMNS": "120"})
    assert shown.exit_code == 0, shown.output
    return [name for names in BEGINS.findall(shown.stdout) for name in names if name]


def test_every_command_is_listed() -> None:
    assert sorted(OPTIONS) == sorted(COMMANDS)
    completion = ["--install-completion", "--show-completion"]
    assert options_of() == ["--version", *completion, "--help", "-h"]


@pytest.mark.parametrize("command", OPTIONS)
def test_the_options_of_a_command(command: str) -> None:
    assert options_of(command) == OPTIONS[command].split()


@pytest.mark.parametrize("command", OPTIONS)
def test_no_flag_hangs_on_its_placeholder(command: str) -> None:
    """Where these are the same word typer 0.27 takes the placeholder, in capitals, for the flag."""
    for name, parameter in signature(COMMANDS[command]).parameters.items():
        for info in get_args(parameter.annotation):
            if isinstance(info, OptionInfo) and (info.metavar or "").lower() == name:
                assert f"--{name}" in (info.default, *(info.param_decls or ()))


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("command", OPTIONS)
def test_help_is_in_panels_and_whole(command: str, columns: int) -> None:
    environment = {"COLUMNS": str(columns)}
    short, shown = (
        CliRunner().invoke(app, [command, each], env=environment).stdout for each in HELP
    )
    assert len(short.splitlines()) <= 64
    assert all(option in short for option in OPTIONS[command].split() if option.startswith("--"))
    panels = re.findall(r"^╭─ ([\w ]+) ─", shown, re.MULTILINE)
    assert panels == [panel for panel in ("Arguments", *PANELS) if panel in panels]
    assert "Where it goes" in panels
    assert not re.search(r"<\w+(\[\w+\])?>", re.sub("<(image|video|audio)>", "", shown))
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= columns


@pytest.mark.parametrize(
    ("words", "near"),
    [
        ("layers --part projecto=x", "did you mean projector or audio_projector?"),
        ("layers --part kind=languagex", "did you mean language or"),
        ("layers --btch-size 2", "--batch-size"),
        ("lyers", "Did you mean 'layers'?"),
    ],
)
def test_a_mistyped_word_is_met_with_the_nearest(words: str, near: str) -> None:
    assert near in refused(*words.split())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("layers -n many", "expected a whole number"),
        ("layers -n 0", "expected a number greater than or equal to 1"),
        ("survey specimen --timeout long", "expected a number"),
        ("layers --format html", "'html' is not one of"),
    ],
)
def test_a_value_is_refused_in_plain_words(words: str, expected: str) -> None:
    problem = refused(*words.split())
    assert expected in problem
    assert not re.search("Input should|Value error|unable to parse", problem)


def refused(*words: str) -> str:
    """A usage error, before anything is opened: what it says, in one line."""
    result = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "reads " not in result.stderr
    return " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("layers --map 0", "'--map': 0 is not in the range"),
        ("layers --map specimen", "'--map': expected a whole number"),
        ("layers --align -o out", "'--align': expected table, prompt or a norm, received '-o'"),
        ("layers --align", "'--align' requires an argument"),
        ("layers --part tower=x", "expected ROLE=NAME, ROLE one of vision_encoder, projector"),
        ("layers --part projector", "expected ROLE=NAME"),
        ("layers --part kind=video", "expected kind=vision-language, vision-encoder, language"),
        (
            "layers --part fusion=late",
            "expected fusion=in-sequence, prepended, discrete, added, cross",
        ),
        ("layers --part image_token_ids=a", "expected image_token_ids=ID or ID,ID"),
        ("survey --limit 3", "--limit: changes nothing without a model: name models, or"),
        ("survey --format csv", "--format: changes nothing without a model"),
        ("survey specimen -b 2", "--batch-size: changes nothing without --measure"),
        ("inspect --part kind=language", "--part: changes nothing without a MODEL"),
        ("inspect --format csv --weights", "--weights: changes nothing without a MODEL"),
        ("layers --resume -o x --overwrite", "--resume: cannot go with --overwrite"),
        ("layers --format md -q", "--format: cannot go with --quiet"),
        ("layers --theory -q", "--theory: cannot go with --quiet"),
        ("layers --format html", "'html' is not one of 'csv', 'json', 'md', 'tex'"),
        ("show a --table x --theory", "--table: cannot go with --theory"),
        ("compare a b --format json -q", "--format: cannot go with --quiet"),
        ("layers --seed 7", "--seed: changes nothing without --limit or --data paper"),
        ("layers --seed 7 --data mmbench", "--seed: changes nothing without --limit"),
        ("paper --limit 3", "--limit: changes nothing without --run"),
        ("paper --data sample", "--data: changes nothing without --run"),
        ("paper --from x", "--from: changes nothing without a table or figure"),
        ("paper table2 --run table2", "--run: cannot go with table2"),
        ("paper --from x --run table2", "--from: cannot go with --run"),
        ("paper --yes", "--yes: changes nothing without --run"),
        ("paper --model a=b", "--model: changes nothing without --run"),
        ("layers --dtype float3", "'float3' is not one of 'auto', 'float32'"),
        *(
            (
                f"layers --batch-size {wrong}",
                f"expected auto or a number from 1 on, received '{wrong}'",
            )
            for wrong in ("0", "-1", "many", "1.5")
        ),
        ("attention --image a --prompt b --layer 0", "greater than or equal to 1"),
        ("attention --image a --prompt b --box 1,2", "--box: expected four numbers"),
        *((f"{command} --resume", "No such option: --resume") for command in ("demo", "align")),
    ],
)
def test_options_that_make_no_sense_together_are_usage_errors(words: str, problem: str) -> None:
    if "is not in the range" in problem:
        problem = "greater than or equal to 1"
    assert problem in refused(*words.split())


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("nowhere --seed 7 -n 2", {"seed": 7, "limit": 2}),
        ("nowhere --seed 7 --data paper:x", {"seed": 7}),
        ("nowhere --data sample", {"align": None, "map": None, "also": None}),
        ("nowhere --align table", {"align": "table"}),
        ("--align prompt nowhere --map 2", {"align": "prompt", "map": 2}),
        ("nowhere --align=3.5 --map=1", {"align": "3.5", "map": 1}),
        ("nowhere --align -3", {"align": "-3"}),
        ("--also a,b --also c nowhere", {"also": ["a,b", "c"]}),
        ("-b auto nowhere", {"batch_size": "auto"}),
    ],
)
def test_what_is_typed_is_what_is_asked(
    words: str, asked: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, object] = {}

    class Probe:
        def __init__(self, model: str, **_: object) -> None:
            assert model == "nowhere"

        def measure(self, *_: object, **options: object) -> None:
            seen.update(options)
            raise KeyboardInterrupt

    monkeypatch.setattr("normprobe.probe.Probe", Probe)
    CliRunner().invoke(app, ["layers", *words.split()])
    assert asked.items() <= seen.items()


def test_parts_are_named_by_role(monkeypatch: pytest.MonkeyPatch) -> None:
    named: dict[str, object] = {}
    monkeypatch.setattr("normprobe.probe.Probe", lambda _, **how: named.update(dict(how["named"])))
    parts = ["--part", "projector=a.b", "--part=image_token_ids=3,4", "--part", "kind=language"]
    parts += ["--part", "fusion=cross-attention"]
    CliRunner().invoke(app, ["layers", "x", *parts])
    assert named == {"projector": "a.b", "image_token_ids": (3, 4)} | {
        "kind": "language",
        "fusion": "cross-attention",
    }
