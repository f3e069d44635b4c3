"""All messages are written in one way: no capital at the beginning, no full stop at the end."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import normprobe

RAISED = {"NormprobeError", "BadRow", "RefusedSample", "BadParameter"}
LOGGED = {"message", "warn", "warning", "doubt", "add_warning", "info"}
CAPITAL = re.compile(r"[A-Z][a-z']*[ :,]")  # names such as NVILA and DeepSeek-VL2 stay as they are


def messages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of what a user may be told; ``{}`` for what is put in."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        name = getattr(call.func, "id", getattr(call.func, "attr", ""))
        if name in RAISED | LOGGED:
            for argument in call.args:
                yield from ((argument.lineno, text) for text in texts(argument))


def texts(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(
            str(getattr(part, "value", "")) if isinstance(part, ast.Constant) else "{}"
            for part in node.values
        )
    elif isinstance(node, ast.IfExp):
        yield from texts(node.body)
        yield from texts(node.orelse)


@pytest.mark.parametrize("text", ["Pass another.", "pass another.", "Pass another"])
def test_another_style_is_found(text: str) -> None:
    found = [told for _, told in messages(ast.parse(f"raise NormprobeError('right', {text!r})"))]
    assert found == ["right", text]
    assert not is_in_style(text)
    assert is_in_style("right")


def is_in_style(text: str) -> bool:
    return not CAPITAL.match(text) and (text.endswith("...") or not text.endswith("."))


@pytest.mark.slow  # no behaviour of the package
def test_messages_begin_small_and_end_without_a_full_stop() -> None:
    told = [
        (f"{path}:{line}", text)
        for path in Path(normprobe.__file__).parent.rglob("*.py")
        for line, text in messages(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert len(told) > 100
    assert [(where, text) for where, text in told if not is_in_style(text)] == []
