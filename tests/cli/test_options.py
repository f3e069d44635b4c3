"""The options of every command, in the order of ``--help``: none is renamed or moved unnoticed."""

import re

import pytest
from typer.testing import CliRunner

from normprobe.cli.app import COMMANDS, app

PROMPTS = "--system --allow-long-prompts"
WHERE = "--device --dtype --device-map"
CODE = "--trust-remote-code --inputs"
NAMED = "--kind --vision-encoder --projector --decoder-layers --text-embedding --image-token-id"
FOLDER = "--output -o --overwrite"
SHOWN = "--format --json --quiet -q --verbose -v --help -h"
ALIGN = "--align --align-target"

#: As they are shown: a panel after the other.
OPTIONS = {
    "interface": f"""
        --data --prompt --workers --limit -n --seed --skip-bad {PROMPTS} --revision {WHERE}
        --attn-implementation --range-reads {CODE} --map --map-pictures {FOLDER}
        --resume --strict {SHOWN} {NAMED} --verify {ALIGN}
    """,
    "layers": f"""
        --data --prompt --batch-size -b --workers --limit -n --seed --skip-bad {PROMPTS} --revision
        {WHERE} --attn-implementation {CODE} --map --map-pictures {FOLDER} --resume --strict {SHOWN}
        {NAMED} --verify {ALIGN} --branches --massive
    """,
    "grounding": f"""
        --data --workers --limit -n --seed --skip-bad {PROMPTS} --revision {WHERE}
        --attn-implementation {CODE} {FOLDER} --resume --strict {SHOWN} {NAMED} --verify {ALIGN}
    """,
    "embeddings": f"""
        --top -k --base --revision --device --dtype --range-reads {CODE}
        {FOLDER} {SHOWN} --kind --text-embedding
    """,
    "attention": f"""
        --image --prompt --word --layer --box {PROMPTS} --revision {WHERE} --attn-implementation
        {CODE} {FOLDER} {SHOWN} {NAMED}
    """,
    "compare": f"--label {FOLDER} {SHOWN}",
    "verify": f"--limit -n --seed {CODE} --format --json --verbose -v --help -h",
    "survey": f"""
        --layers --batch-size -b --data --prompt --workers --limit -n --seed --skip-bad {PROMPTS}
        {WHERE} --attn-implementation --trust-remote-code --keep --timeout {FOLDER}
        --resume --retry {SHOWN}
    """,
    "inspect": f"""
        --revision {CODE} --weights --format --json --verbose -v --help -h {NAMED}
    """,
    "align": f"""
        --stats --data --limit -n --seed {PROMPTS} --revision {WHERE} {CODE}
        {FOLDER} {SHOWN} --target {NAMED}
    """,
    "report": f"{FOLDER} --table --format --json --verbose -v --help -h",
    "paper": f"""
        --run --from --model --data --limit -n --trust-remote-code {FOLDER}
        --yes -y --verbose -v --help -h
    """,
    "models": "--format --json --verbose -v --help -h",
    "demo": f"{FOLDER} --quiet -q --verbose -v --help -h",
}

#: A line that begins an option: its long name, then its short one.
BEGINS = re.compile(r"^│ [ *]*(--[a-z-]+)(?: +(-[a-z]))?(?= )", re.MULTILINE)


def options_of(*words: str) -> list[str]:
    shown = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "120"})
    assert shown.exit_code == 0, shown.output
    return [name for names in BEGINS.findall(shown.stdout) for name in names if name]


def test_every_command_is_listed_in_its_order() -> None:
    assert list(OPTIONS) == list(COMMANDS)
    completion = ["--install-completion", "--show-completion"]
    assert options_of() == ["--version", *completion, "--help", "-h"]


@pytest.mark.parametrize("command", OPTIONS)
def test_the_options_of_a_command(command: str) -> None:
    assert options_of(command) == OPTIONS[command].split()


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
        ("layers --align-target prompt", "--align-target: changes nothing without --align"),
        ("layers --map-pictures 2", "--map-pictures: changes nothing without --map"),
        ("interface --align-target 2", "--align-target: changes nothing without --align"),
        ("survey specimen --retry", "--retry: changes nothing without --resume"),
        ("survey --limit 3", "--limit: changes nothing without a model: name models, or"),
        ("survey --format csv", "--format: changes nothing without a model"),
        ("survey specimen -b 2", "--batch-size: changes nothing without --layers"),
        ("layers --resume -o x --overwrite", "--resume: cannot go with --overwrite"),
        ("embeddings --json --quiet", "--json: cannot go with --quiet"),
        ("embeddings --format tex --json", "--json: cannot go with --format"),
        ("layers --format md -q", "--format: cannot go with --quiet"),
        ("layers --format html", "'html' is not one of 'csv', 'json', 'md', 'tex'"),
        ("report a --table x", "--table: changes nothing without --format or --json"),
        ("report a --format md -o x", "--output: cannot go with --format"),
        ("compare a b --json -q", "--json: cannot go with --quiet"),
        ("layers --seed 7", "--seed: changes nothing without --limit or --data paper"),
        ("layers --seed 7 --data mmbench", "--seed: changes nothing without --limit"),
        ("layers --device-map auto --device cpu", "--device-map: cannot go with --device"),
        ("align --stats --target 2", "--stats: cannot go with --target"),
        ("align x --stats -n 2", "--stats: cannot go with --limit"),
        ("align x --stats -o out", "--stats: cannot go with --output"),
        ("paper --limit 3", "--limit: changes nothing without --run"),
        ("paper --data sample", "--data: changes nothing without --run"),
        ("paper --from x", "--from: changes nothing without a table or figure"),
        ("paper table2 --run table2", "--run: cannot go with table2"),
        ("paper --from x --run table2", "--from: cannot go with --run"),
        ("paper --yes", "--yes: changes nothing without --run"),
        ("paper --model a=b", "--model: changes nothing without --run"),
        ("layers --dtype float3", "'float3' is not one of 'auto', 'float32'"),
        ("attention --image a --prompt b --layer 0", "greater than or equal to 1"),
        ("attention --image a --prompt b --box 1,2", "--box: expected four numbers"),
    ],
)
def test_options_that_make_no_sense_together_are_usage_errors(words: str, problem: str) -> None:
    assert problem in refused(*words.split())


RESUMING = {"layers", "interface", "grounding", "survey"}


@pytest.mark.parametrize("command", sorted(set(OPTIONS) - RESUMING))
def test_resuming_is_offered_where_something_is_resumed(command: str) -> None:
    assert "No such option: --resume" in refused(command, "--resume")


@pytest.mark.parametrize(
    "words", ["layers nowhere --seed 7 -n 2", "layers nowhere --seed 7 --data paper:x"]
)
def test_a_seed_that_draws_is_taken(words: str) -> None:
    assert CliRunner().invoke(app, words.split()).exit_code == 1  # there is no such model


def test_what_a_default_says_is_not_given() -> None:
    """``--data sample`` and the like, typed or not."""
    assert CliRunner().invoke(app, ["layers", "nowhere", "--data", "sample"]).exit_code == 1
