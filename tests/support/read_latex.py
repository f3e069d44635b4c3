"""Reads what LaTeX prints of a booktabs table: a small lexer that knows commands and groups."""

import re
from typing import NamedTuple

from normprobe.report.readable import SUPERSCRIPTS

_LEXEME = re.compile(r"\\[a-zA-Z]+|\\.|.", re.DOTALL)
_PRINTS = {
    r"\textbackslash": "\\",
    r"\textasciitilde": "~",
    r"\textasciicircum": "^",
    r"\textless": "<",
    r"\textgreater": ">",
    r"\textbar": "|",
    r"\textasciigrave": "`",
    r"\textvisiblespace": "\u2423",
    r"\pm": "\u00b1",
    r"\par": "",
    **{f"\\{character}": character for character in "&%$#_{}"},
}


_FLOAT = re.compile(
    r"""% Needs \\usepackage\{booktabs\}\.
\\begin\{table\}
\\centering\\small\\setlength\{\\tabcolsep\}\{3pt\}
(?:\\caption\{(?P<caption>[^\n]*)\}
)?(?:\\label\{tab:(?P<label>[A-Za-z0-9.-]+)\}
)?\\smallskip
\\begin\{tabular\}\{@\{\}(?P<columns>[lr]+)@\{\}\}
\\toprule
(?P<rows>.*)\\bottomrule
\\end\{tabular\}
(?:\\par\\smallskip
\\begin\{minipage\}\{\\linewidth\}
\\footnotesize\\raggedright
(?P<notes>.*)
\\end\{minipage\}
)?\\end\{table\}""",
    re.DOTALL,
)


class ReadTable(NamedTuple):
    """What a reader of the print sees."""

    columns: str
    rows: list[list[str]]  # a shared header once, and an empty cell for every further column
    caption: str
    label: str
    notes: list[str]


def read_latex(text: str) -> ReadTable:
    """The table, or an assertion where LaTeX would stop or print another character."""
    found = _FLOAT.fullmatch(text.strip())
    assert found, text
    columns, inside = found["columns"], found["rows"]
    inside = re.sub(r"\\(midrule|cmidrule\(lr\)\{\d+-\d+\})", "", inside)
    rows = [_read_row(row.strip()) for row in re.split(r"\\\\(?=\n)", inside) if row.strip()]
    assert {len(row) for row in rows} == {len(columns)}
    (caption,) = _read_row(found["caption"] or "")
    notes = [note for line in (found["notes"] or "").splitlines() for note in _read_row(line)]
    return ReadTable(columns, rows, caption, found["label"] or "", notes)


def _read_row(row: str) -> list[str]:
    assert not row.startswith(("[", "*")), "taken for an argument of the line break before"
    cells, depth, math, before = [""], 0, False, ""
    lexemes = iter(_LEXEME.findall(row))
    for lexeme in lexemes:
        assert lexeme not in ("%", "#", "^", "_", "~", "\\\\", "<", ">", "|", "`"), (lexeme, row)
        if lexeme == r"\textsuperscript":
            cells[-1] += SUPERSCRIPTS[int(_group(lexemes))]
        elif lexeme == r"\multicolumn":
            width, _, name = _group(lexemes), _group(lexemes), _group(lexemes)
            cells[-1] += name
            cells += [""] * (int(width) - 1)
        elif lexeme == "{":
            depth += 1
        elif lexeme == "}":
            depth -= 1
            assert depth >= 0, row
        elif lexeme == "$":
            math = not math
        elif lexeme == "&":
            cells.append("")
        else:
            assert not lexeme.startswith("\\") or lexeme in _PRINTS, (lexeme, row)
            assert lexeme not in ("-", "'", ",") or before != lexeme, "they print as one sign"
            cells[-1] += _PRINTS.get(lexeme, lexeme)
        before = lexeme
    assert depth == 0
    assert not math
    return [cell.strip() for cell in cells]


def _group(lexemes) -> str:
    assert next(lexemes) == "{"
    text, depth = "", 0
    for lexeme in lexemes:
        if lexeme == "}" and depth == 0:
            return text
        depth += {"{": 1, "}": -1}.get(lexeme, 0)
        text += "" if lexeme in "{}" else _PRINTS.get(lexeme, lexeme)
    raise AssertionError("a group does not end")
