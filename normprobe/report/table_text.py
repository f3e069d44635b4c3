"""A table as text: CSV, JSON, Markdown or LaTeX."""

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Literal

import pandas as pd

from normprobe.errors import escape, markdown_text
from normprobe.report.readable import SUPERSCRIPTS, ReadableTable, readable_table
from normprobe.report.verdict import Verdict
from normprobe.runs.files import csv_bytes, json_text


def markdown(table: ReadableTable) -> str:
    """A table as Markdown, its notes below it; ends with a newline.

    Markdown has one row of headers: the parts of a header stand behind each other.
    """
    rules = ["--:" if numeric else "---" for numeric in table.numeric]
    lines = [
        _markdown_row(markdown_text(" ".join(parts)) for parts in table.headers),
        _markdown_row(rules),
    ]
    lines += [_markdown_row(map(markdown_text, row)) for row in table.rows]
    notes = [f"\n{markdown_text(note)}" for note in table.notes]
    title = [f"**{markdown_text(table.title)}**\n"] if table.title else []
    return "\n".join([*title, *lines, *notes]) + "\n"


def _markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


_LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    "\u2423": r"\textvisiblespace{}",
    "\u00b1": r"$\pm$",
    **{mark: rf"\textsuperscript{{{place}}}" for place, mark in enumerate(SUPERSCRIPTS)},
    "[": "{[}",  # behind a line break they are its arguments
    "*": "{*}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}

_LIGATURES = re.compile(r"([-,'])(?=\1)")  # two of them would be a dash, or a quotation mark

# Beyond these pdfLaTeX needs further packages, or has no glyph: ASCII, most of Latin-1 and Latin
# Extended-A, dashes, quotation marks and an ellipsis, and the visible space.
_WITHOUT_GLYPH = re.compile(
    "[^\x20-\x7e"
    "\u00a1-\u00aa\u00ac\u00ae-\u00ba\u00bc-\u00cf\u00d1-\u00dd\u00df-\u00ef"
    "\u00f1-\u00fd\u00ff-\u0103\u0106-\u010f\u0112-\u0117\u011a-\u0125"
    "\u0128-\u012d\u0130-\u0137\u0139-\u013e\u0141-\u0148\u014c-\u0165"
    "\u0168-\u0171\u0174-\u017e"
    "\u2013\u2014\u2018\u2019\u201c\u201d\u2026\u2070\u2074-\u2079\u2423]"
)

_MINUS = re.compile(r"^-(?=[\d.]|inf)")


#: What a caption leaves to LaTeX, and a label does without.
_NUMBERED = re.compile(r"^Table \d+: ")
_NOT_IN_LABEL = re.compile(r"[^A-Za-z0-9.-]+")


def verdict_markdown(verdict: Verdict) -> str:
    """What a run says: its headline, and a list."""
    findings = [f"- {markdown_text(finding.words)}" for finding in verdict.findings]
    return "\n".join([markdown_text(verdict.headline), *([""] if findings else []), *findings])


def latex(table: ReadableTable) -> str:
    """A table as a float to paste, with the rules of booktabs: caption, label, notes below.

    Characters that pdfLaTeX has no glyph of, such as those of other scripts, stand as code points.
    """
    columns = "".join("r" if numeric else "l" for numeric in table.numeric)
    rows = [_latex_row(_cells(row, table.numeric)) for row in table.rows]
    title, label = _NUMBERED.sub("", table.title), _NOT_IN_LABEL.sub("-", table.label)
    lines = [
        "% Needs \\usepackage{booktabs}.",
        "\\begin{table}",
        "\\centering\\small\\setlength{\\tabcolsep}{3pt}",
        *([f"\\caption{{{_latex_text(title)}}}"] if title else []),
        *([f"\\label{{tab:{label}}}"] if title and label else []),
        "\\smallskip",
        f"\\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
        "\\toprule",
        *_headers(table),
        "\\midrule",
        *rows,
        "\\bottomrule",
        "\\end{tabular}",
        *_notes(table.notes),
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _notes(notes: Sequence[str]) -> list[str]:
    """A paragraph each, as wide as the text: no package is needed."""
    if not notes:
        return []
    begin = ["\\par\\smallskip", "\\begin{minipage}{\\linewidth}", "\\footnotesize\\raggedright"]
    return [*begin, *(f"{_latex_text(note)}\\par" for note in notes), "\\end{minipage}"]


def _headers(table: ReadableTable) -> list[str]:
    """One row of headers; with headers of two parts a row of these, ruled, above it."""
    last = _latex_row([_latex_text(parts[-1]) for parts in table.headers])
    if all(len(parts) == 1 for parts in table.headers):
        return [last]
    above, rules, start = list[str](), [], 1
    for name, shared in groupby(parts[0] if len(parts) > 1 else "" for parts in table.headers):
        width = len(list(shared))
        if name:
            above.append(f"\\multicolumn{{{width}}}{{c}}{{{_latex_text(name)}}}")
            rules.append(f"\\cmidrule(lr){{{start}-{start + width - 1}}}")
        else:
            above += [""] * width
        start += width
    return [_latex_row(above), "".join(rules), last]


def _latex_row(cells: Sequence[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def _cells(row: Sequence[str], numeric: Sequence[bool]) -> list[str]:
    texts = [_latex_text(cell) for cell in row]
    return [
        _MINUS.sub("$-$", text) if number else text
        for text, number in zip(texts, numeric, strict=True)
    ]


def _latex_text(text: str) -> str:
    known = _WITHOUT_GLYPH.sub(lambda found: escape(found[0]), text)
    return _LIGATURES.sub(
        r"\1{}", "".join(_LATEX_SPECIAL.get(character, character) for character in known)
    )


Format = Literal["csv", "json", "md", "tex"]


def table_text(table: pd.DataFrame, form: Format) -> str:
    """A table in one of the formats; ends with a newline."""
    if form == "csv":
        return csv_bytes(table).decode("utf-8")
    if form == "json":
        return json_text(table)
    return markdown(readable_table(table)) if form == "md" else latex(readable_table(table))
