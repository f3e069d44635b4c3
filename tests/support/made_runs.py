"""Run folders of made tables."""

from pathlib import Path
from typing import Any

import pandas as pd
from PIL import Image

from normprobe.runs.run_folder import RunFolder
from normprobe.schema import SCHEMA_VERSION
from support.flat import tidied

#: What a model's name or a token may hold.
ATTACK = "</script><script>document.title='gone'</script><img src=x onerror=alert(1)>\"'&"

#: Names that are commands of LaTeX, Markdown, HTML, a terminal or a spreadsheet.
HOSTILE = [
    ATTACK,
    r"\input{/etc/passwd} % & $x^2$ #1 ~ _",
    "[4ex] a | b || *c* `d`",
    "--- em <|vision_start|> {} }{",
    "red \x1b[31m\nnew line",
    "= 1 + 1",
]


def add_figure(path: Path, name: str) -> None:
    """A figure in the folder of a run, as it is drawn there."""
    (path / "plots").mkdir(exist_ok=True)
    Image.new("RGB", (4, 3), "white").save(path / f"plots/{name}.png")


def run_folder(
    path: Path, command: str, *, record: dict[str, Any] | None = None, **tables: pd.DataFrame
) -> Path:
    """A complete run of a command; its tables are tidy, or flat as they are made."""
    facts = {"command": command, "schema_version": SCHEMA_VERSION, **(record or {})}
    run = RunFolder.create(path, overwrite=False, record=facts)
    for name, table in tables.items():
        run.write_table(name, tidied(name, table))
    run.finish(seconds=1.5)
    return path
