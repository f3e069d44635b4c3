"""Reads what LaTeX prints of a booktabs table: a small lexer that knows commands and groups."""

import re
from typing import NamedTuple

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
    **{f"\\{character}": character for character in "&%$#_{}"},
}


class ReadTable(NamedTuple):
    """What a reader of the print sees."""

    columns: str
    rows: list[list[str]]  # a shared header once, and an empty cell for every further column
    comments: list[str]


def read_latex(text: str) -> ReadTable:
    """The table, or an assertion where LaTeX would stop or print another character."""
    comments = [line for line in text.splitlines() if line.startswith("%")]
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    found = re.fullmatch(
        r"\\begin\{tabular\}\{([lr]+)\}\n\\toprule\n(.*)\\bottomrule\n\\end\{tabular\}",
        body.strip(),
        re.DOTALL,
    )
    assert found, body
    columns, inside = found.groups()
    inside = re.sub(r"\\(midrule|cmidrule\(lr\)\{\d+-\d+\})", "", inside)
    rows = [_read_row(row.strip()) for row in re.split(r"\\\\(?=\n)", inside) if row.strip()]
    assert {len(row) for row in rows} == {len(columns)}
    return ReadTable(columns, rows, comments)


def _read_row(row: str) -> list[str]:
    assert not row.startswith(("[", "*")), "taken for an argument of the line break before"
    cells, depth, math, before = [""], 0, False, ""
    lexemes = iter(_LEXEME.findall(row))
    for lexeme in lexemes:
        assert lexeme not in ("%", "#", "^", "_", "~", "\\\\", "<", ">", "|", "`"), (lexeme, row)
        if lexeme == r"\multicolumn":
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
