"""What pages quote, and what their notebooks print, says no more than its brackets."""

import contextlib
import io
import re
from pathlib import Path

import matplotlib
import pytest
from support.documents import blocks, is_notebook, name, pages
from support.sentence_check import complaints, of_line

#: A number with its bracket, as verdicts print it.
_BRACKETED = re.compile(r"\d (?:x|%) \[")


@pytest.mark.parametrize("page", pages(), ids=name)
def test_quotes(page: Path) -> None:
    text = re.sub(r"^(```.*|<!--.*-->)$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        if "\n- [ ]: " in paragraph:  # a verdict, its lines broken
            found += complaints(re.sub(r"\n(?!- )\s*", " ", paragraph))
            continue
        on_one_line = " ".join(paragraph.replace('"', "").split())
        if _BRACKETED.search(on_one_line):
            found += of_line(on_one_line)
    assert not found, "\n".join(found)


#: Notebooks that print a verdict; the build of the documentation runs the others, too.
TELLING = [page for page in pages() if is_notebook(page) and "verdict" in page.read_text("utf-8")]


@pytest.mark.slow
@pytest.mark.parametrize("page", TELLING, ids=name)
def test_notebooks(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(page.parent)  # as the build does
    matplotlib.use("Agg")
    names: dict[str, object] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for block in blocks(page):
            if block.language == "{code-cell}":
                exec(compile(_code(block.text), name(page), "exec"), names)
    verdicts = re.findall(r"^.+\n(?:- .+\n)+", printed.getvalue(), flags=re.MULTILINE)
    found = [complaint for verdict in verdicts for complaint in complaints(verdict)]
    assert not found, "\n".join([*found, *verdicts])
    text = page.read_text(encoding="utf-8")
    assert verdicts or "watch(" in text  # a training has no intervals


def _code(cell: str) -> str:
    """Without the options of a cell."""
    return re.sub(r"\A---\n(?:.*\n)*?---$|^:.*$", "", cell, flags=re.MULTILINE)
