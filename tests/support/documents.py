"""The pages that people read, and the fenced blocks in them.

A comment before a block says what it is:

    <!-- parsed only: why -->     it cannot run here: its commands and options have to exist
    <!-- file: name -->           a file that later blocks of the page read
"""

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_BLOCK = re.compile(
    r"(?:<!-- (?P<mark>[a-z ]+): (?P<value>.+?) -->\n)?"
    r"^(?P<fence>```+)(?P<language>\S*)[^\n]*\n(?P<text>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str
    mark: str
    value: str


def is_notebook(page: Path) -> bool:
    """Whether a page is run by the build of the documentation."""
    return page.read_text(encoding="utf-8").startswith("---\njupytext:")


def pages() -> list[Path]:
    """The README and every page of the documentation."""
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def name(page: Path) -> str:
    """What a page is called in the output of a test."""
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    for found in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        mark, value = found["mark"] or "", found["value"] or ""
        yield Block(found["language"], found["text"], mark, value)


def loaded(program: Path) -> ModuleType:
    """A program that makes part of a page, as a module; its folder is no package."""
    spec = importlib.util.spec_from_file_location(program.stem, program)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
