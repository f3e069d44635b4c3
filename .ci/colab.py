"""The first tutorial as a notebook that installs normprobe by itself: ``python .ci/colab.py``."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE, NOTEBOOK = ROOT / "docs/tutorial/first-look.md", ROOT / ".github/first-look.ipynb"
INSTALL = "%pip install --quiet git+https://github.com/OWNER/normprobe"
#: What a code cell begins with for the documentation alone.
_OPTIONS = re.compile(r"^(---\n.*?^---\n|:\w+:[^\n]*\n+)", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


def main() -> None:
    NOTEBOOK.write_text(made(PAGE.read_text("utf-8")), encoding="utf-8")


def made(page: str) -> str:
    """The notebook of a page of MyST: a first cell installs normprobe."""
    _, _, body = page.split("---\n", 2)
    body = re.sub(r"^\[!\[.*\n\n", "", body, flags=re.MULTILINE)  # the badge leads here
    cells = [cell("code", INSTALL)]
    for place, text in enumerate(_CODE.split(body)):
        if text.strip():
            kind, shown = ("code", _OPTIONS.sub("", text)) if place % 2 else ("markdown", text)
            cells.append(cell(kind, shown.strip()))
    for number, each in enumerate(cells):
        each["id"] = f"cell-{number}"
    python = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    book = {"cells": cells, "metadata": python, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"


def cell(kind: str, text: str) -> dict[str, object]:
    of_code = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, **of_code, "source": text.splitlines(keepends=True)}


if __name__ == "__main__":
    main()
