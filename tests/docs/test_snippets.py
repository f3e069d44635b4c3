"""Every block of the README and of the documentation runs as it is printed.

The specimen stands in for models of a hub. What needs more than that is marked in the page, and its
commands, options, make targets and extras have to exist.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
import yaml
from support.commands import Forked
from support.documents import ROOT, Block, blocks, is_notebook, name, pages

from normprobe.cli.app import app
from normprobe.specimen import SPECIMEN_DIR

STAND_INS = {
    "org/model": "specimen",
    "org/llm": "specimen",
    "--data mmbench": "--data sample -n 2",
}
#: What a block says, and nobody runs.
SHOWN = {"text", "bibtex", "r", "toml", "{toctree}", "{commands}", "{eval-rst}"}
DRAWN = "{drawn}"  # the build of the documentation runs it
PARSED_ONLY, FILE = "parsed only", "file"
PAGES = [page for page in pages() if not is_notebook(page)]
#: Words that mean something to a shell.
SHELL = {">", "|", "&&", ";", "&", "<"}
WITH_COMMANDS = [
    page for page in PAGES if any(block.language in {"bash", "python"} for block in blocks(page))
]
_APPLICATION = typer.main.get_command(app)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with pictures and a checkpoint, where ``normprobe`` and ``python`` are these."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for program, line in {
        "normprobe": f'exec "{sys.executable}" -m support.unrendered "$@"',
        "python": f'exec "{sys.executable}" "$@"',
        "make": f'exec "{shutil.which("make")}" --dry-run -C "{ROOT}" "$@" > /dev/null',
    }.items():
        script = programs / program
        script.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
        script.chmod(0o755)
    photographs = sorted((ROOT / "benchmarks_data/images").glob("*.jpg"))
    desk = tmp_path / "desk"
    desk.mkdir()
    for picture, photograph in zip(("cup.jpg", "a.jpg", "b.jpg"), photographs, strict=False):
        shutil.copy(photograph, desk / picture)
    (desk / "tiny").symlink_to(SPECIMEN_DIR)
    monkeypatch.chdir(desk)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests")]))
    return desk


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name)
def test_every_block_runs_as_printed(page: Path, desk: Path) -> None:
    names: dict[str, object] = {}
    for block in blocks(page):
        if block.mark == FILE:
            (desk / block.value).write_text(block.text, encoding="utf-8")
        elif block.mark == PARSED_ONLY:
            continue
        elif block.language == "bash":
            text = block.text
            for theirs, ours in STAND_INS.items():
                text = text.replace(theirs, ours)
            _run(block._replace(text=text), desk)
        elif block.language == "python":
            exec(compile(block.text, name(page), "exec"), names)


def _run(block: Block, desk: Path) -> None:
    """Run a block by a shell; its commands one by one where there is nothing else in it."""
    commands = _commands(block)
    if any(words[0] != "normprobe" or SHELL.intersection(words) for words in commands):
        command = ["bash", "-euo", "pipefail", "-c", block.text]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
        return
    for _, *words in commands:
        few = ["-n", "4"] if words[0] == "cause" and "-n" not in words else []
        process = Forked(desk, [*words, *few], {})
        ended = process.wait(300)
        process.close()
        assert ended.returncode == 0, f"{words}\n{ended.stdout}\n{ended.stderr}"


def test_the_tokens_of_a_model_that_is_shown_see_each_other() -> None:
    page = ROOT / "docs/how-to/own-architecture.md"
    (shown,) = [block.text for block in blocks(page) if "class Tiny" in block.text]
    names: dict[str, Any] = {}
    exec(shown, names)
    model, ids, image = names["Tiny"]().eval(), names["ids"], names["image"]
    with torch.no_grad():
        one, other = model(ids, image), model(ids, image + 1)
    words = (one != other).any(-1)[:, image.shape[1] :]
    assert words.shape == ids.shape
    assert words.all()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_says_what_it_is_and_parses(page: Path) -> None:
    for block in blocks(page):
        assert block.mark in {"", PARSED_ONLY, FILE}, block
        if block.language == DRAWN:
            for words in _commands(block._replace(text=re.sub("^:.*", "", block.text, flags=re.M))):
                _check(words)
        elif block.language == "bash":
            assert list(_commands(block)), block.text
            for words in _commands(block):
                _check(words)
        elif block.language == "python":
            compile(block.text, name(page), "exec")
        elif block.language == "json":
            assert all(json.loads(line) for line in block.text.splitlines())
        elif block.language == "yaml":
            assert yaml.safe_load(block.text)
        else:
            assert block.language in SHOWN, block


def test_an_option_that_is_not_there_is_found() -> None:
    with pytest.raises(Exception, match="--no-such-option"):
        _check(["torchrun", "-m", "normprobe", "layers", "specimen", "--no-such-option"])


def _commands(block: Block) -> list[list[str]]:
    """The lines of a shell block as words, without comments."""
    lines = re.sub(r"\\\n\s*", " ", block.text).splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def _check(words: list[str]) -> None:
    """A command exists, and so do its options, its make target or its extra."""
    program = Path(words[0]).name
    if program == "uvx":  # --from PACKAGE
        words = words[3:]
    if "normprobe" in map(_program, words) and program not in ("git", "pip"):
        place = [_program(word) for word in words].index("normprobe")
        command, *arguments = words[place + 1 :]
        if ">" in arguments:
            arguments = arguments[: arguments.index(">")]
        found = _APPLICATION.commands[command]  # type: ignore[attr-defined]
        found.make_parser(typer.Context(found)).parse_args(arguments)
    elif program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), words
    elif program == "pip":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for extra in re.findall(r"normprobe\[(\w+)\]", " ".join(words)):
            assert extra in project["optional-dependencies"]


def _program(word: str) -> str:
    return Path(word).name if "/" in word or word == "normprobe" else ""
