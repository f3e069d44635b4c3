"""The options of every command, in the order of ``--help``: none is renamed or moved unnoticed."""

import re

import pytest
from typer.testing import CliRunner

from normprobe.cli.app import COMMANDS, app

WHERE = "--device --dtype --device-map"
CODE = "--trust-remote-code --inputs"
NAMED = "--vision-encoder --projector --decoder-layers --text-embedding --image-token-id"
FOLDER = "--output -o --overwrite"
SHOWN = "--json --quiet -q --verbose -v --help -h"
ALIGN = "--align --align-target"

#: As they are shown: a panel after the other.
OPTIONS = {
    "interface": f"""
        --data --limit -n --seed --skip-bad --system --revision {WHERE} --attn-implementation
        --range-reads {CODE} {FOLDER} --resume {SHOWN} {NAMED} --verify {ALIGN}
    """,
    "layers": f"""
        --data --batch-size -b --limit -n --seed --skip-bad --system --revision {WHERE}
        --attn-implementation {CODE} {FOLDER} --resume {SHOWN} {NAMED} --verify {ALIGN}
    """,
    "embeddings": f"""
        --top -k --base --revision --device --dtype --range-reads {CODE}
        {FOLDER} {SHOWN}
    """,
    "attention": f"""
        --image --prompt --word --layer --box --system --revision {WHERE} --attn-implementation
        {CODE} {FOLDER} {SHOWN} {NAMED}
    """,
    "compare": f"--label {FOLDER} {SHOWN}",
    "inspect": f"""
        --revision {CODE} --weights --json --verbose -v --help -h {NAMED}
    """,
    "align": f"""
        --stats --data --limit -n --seed --system --revision {WHERE} {CODE}
        {FOLDER} {SHOWN} --target {NAMED}
    """,
    "report": f"{FOLDER} --verbose -v --help -h",
    "paper": f"""
        --run --model --data --limit -n --trust-remote-code {FOLDER} --verbose -v --help -h
    """,
    "models": "--json --verbose -v --help -h",
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
    assert options_of() == ["--version", "--help", "-h"]


@pytest.mark.parametrize("command", OPTIONS)
def test_the_options_of_a_command(command: str) -> None:
    assert options_of(command) == OPTIONS[command].split()
