"""What a terminal gets: tables as wide as it is, colour where it is wanted, the demo's end."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.commands import spawned
from typer.testing import Result

Run = Callable[..., Result]

WITH_TABLES = [
    ("interface", "-n", "1"),
    ("layers", "-n", "1", "--also", "branches,massive", "--theory"),
    ("embeddings",),
    ("embeddings", "--base", "specimen"),
    ("cause", "-n", "1", "--do", "scale,norm-at-layer,freeze,freeze-layer"),
    ("grounding", "-n", "1"),
    ("align",),
    ("inspect", "specimen", "--weights"),
    ("inspect",),
]


@pytest.mark.parametrize("command", WITH_TABLES, ids=" ".join)
def test_tables_follow_columns_and_lose_nothing(
    command: tuple[str, ...], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = () if command[0] == "inspect" else ("--overwrite", "-o", "out")
    words = {}
    for columns in (60, 140):
        monkeypatch.setenv("COLUMNS", str(columns))
        result = run(*command, *folder)
        assert result.exit_code == 0, result.output
        lines = result.stdout.splitlines()
        assert max(map(len, lines)) <= columns
        assert "\N{HORIZONTAL ELLIPSIS}" not in result.stdout
        words[columns] = set(re.findall(r"\w+", result.stdout))
    assert words[60] == words[140]


def test_a_file_gets_80_columns(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert 75 <= max(map(len, run("inspect").stdout.splitlines())) <= 80


@pytest.mark.parametrize("words", [["inspect"], ["inspect", "--help"], ["inspect", "--nothing"]])
def test_no_color_means_no_bold_either(words: list[str], tmp_path: Path) -> None:
    wanted = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    coloured = spawned(tmp_path, words, {**wanted, "NO_COLOR": ""})
    plain = spawned(tmp_path, words, {**wanted, "NO_COLOR": "1"})
    assert "\x1b[1" in coloured.stdout + coloured.stderr
    assert "\x1b" not in plain.stdout + plain.stderr
    assert plain.returncode == coloured.returncode
