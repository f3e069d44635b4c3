"""Tables as their readers render them: LaTeX compiles, and Markdown is a table with its cells."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest
from markdown_it import MarkdownIt
from support import made_tables
from support.flat import tidied
from support.made_cells import made_cells
from support.made_runs import HOSTILE

from normprobe.extensions.survey.printed import printed_table
from normprobe.paper.tables import layouts, measured_table
from normprobe.report.readable import ReadableTable, readable_table
from normprobe.report.table_text import latex, markdown

ENGINES = ("pdflatex", "tectonic", "xelatex", "lualatex")
ENGINE = next((name for name in ENGINES if shutil.which(name)), None)
MADE = ("interface", "layers", "theory", "accounted", "branches", "embeddings", "tokens")
MADE += ("histogram", "attention", "heads", "grounding", "heatmaps", "norm_map")

#: What names hold in other scripts, and what pdfLaTeX prints of Latin ones.
SCRIPTS = [
    "中文 漢字",
    "áveis Łódź Əlifba",
    "العربية עברית",
    "жук 😀 ∑",
    "a\u0301 ﬁ «ð»",
    "\u200b\ufeff",
]


def tables() -> Iterator[tuple[str, ReadableTable]]:
    names = [*HOSTILE, *SCRIPTS]
    yield "hostile", readable_table(pd.DataFrame({"a_b %": names, **dict.fromkeys(names, 1.5)}))
    yield (
        "every latin letter",
        readable_table(pd.DataFrame({"name": [chr(code) for code in range(0x20, 0x250)]})),
    )
    for name in MADE:
        yield name, readable_table(tidied(name, getattr(made_tables, name)().head(40)))
    for name, layout in layouts().items():
        yield name, measured_table(layout, made_cells(name), [*names])
    rows = [{"model": name, "mean": 1.5, "mean_published": 1.0, "std": 0.5} for name in names]
    printed = printed_table("table6", pd.DataFrame(rows).assign(std_published=float("nan")))
    assert printed is not None
    yield "survey", printed


@pytest.mark.slow
@pytest.mark.skipif(ENGINE is None, reason=f"none of {', '.join(ENGINES)} is on PATH")
def test_every_table_compiles(tmp_path: Path) -> None:
    for number, (_, table) in enumerate(tables()):
        (tmp_path / f"{number}.tex").write_text(latex(table), encoding="utf-8")
    # As pasted into one paper: a float each, and nothing is edited.
    inputs = [f"\\input{{{place}}}\\clearpage" for place in range(number + 1)]
    lines = [r"\documentclass{article}", r"\usepackage{booktabs}", r"\begin{document}"]
    (tmp_path / "all.tex").write_text("\n".join([*lines, *inputs, r"\end{document}"]))
    plain = ["-interaction=nonstopmode", "-halt-on-error"] if ENGINE != "tectonic" else ["-p"]
    done = subprocess.run(
        [str(ENGINE), *plain, "all.tex"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "Missing character" not in done.stdout
    assert "multiply defined" not in done.stdout
    labels = re.findall(r"newlabel\{tab:(table\d)\}", (tmp_path / "all.aux").read_text())
    assert labels == [*layouts()]
    assert (tmp_path / "all.pdf").stat().st_size > 10_000


@pytest.mark.parametrize("table", [pytest.param(table, id=name) for name, table in tables()])
def test_markdown_renders_as_a_table_with_its_cells(table: ReadableTable) -> None:
    text = markdown(table)
    assert not re.search(r"(?<!\\)\$", text)  # a formula, on GitHub
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)
    rows: list[list[str]] = []
    for before, token in pairwise(tokens):
        if before.type == "tr_open":
            rows.append([])
        if before.type in ("th_open", "td_open"):
            assert {child.type for child in token.children or []} <= {"text", "text_special"}
            rows[-1].append("".join(child.content for child in token.children or []))
    assert rows[0] == [" ".join(" ".join(parts).split()) for parts in table.headers]
    assert rows[1:] == [[cell.strip() for cell in row] for row in table.rows]
    assert [token.type for token in tokens].count("table_open") == 1
    outside = {token.type for token in tokens if token.level == 0} - {"inline"}
    assert outside <= {"paragraph_open", "paragraph_close", "table_open", "table_close"}
