"""Examples in docstrings give what they say."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import normprobe

PACKAGE = Path(normprobe.__file__).parent
MODULES = [
    ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)
    for file in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in file.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", MODULES)
def test_examples(module: str) -> None:
    failed, tried = doctest.testmod(import_module(module))
    assert tried > 0
    assert failed == 0
