"""Tables as text: each format is read back by a reader of its own."""

import io
import json
import re

import numpy as np
import pandas as pd
import pytest
from support import made_tables
from support.made_runs import HOSTILE
from support.read_latex import read_latex

from normprobe.report.table_text import table_text


def table() -> pd.DataFrame:
    columns = {
        "run": HOSTILE,
        "samples": [56.0, np.nan, 3.0, 151_646.0, 0.0, 2.0],
        "norm_mean": [16.528, 1.234567e-5, np.nan, 12345.6, -0.04321, -np.inf],
        "below_resolution": [True, False, True, True, False, False],
        "50 % of a_b": [1, 2, 3, 4, 5, 10**12],
    }
    return pd.DataFrame(columns)


ROUNDED = [
    ["56", "16.53", "True", "1"],
    ["-", "1.235e-5", "False", "2"],
    ["3", "-", "True", "3"],
    ["151646", "12350", "True", "4"],
    ["0", "-0.04321", "False", "5"],
    ["2", "-inf", "False", "1000000000000"],
]


def test_csv_and_json_keep_every_digit() -> None:
    numbers = table().drop(columns="run").replace(-np.inf, np.nan)
    read = pd.read_csv(io.StringIO(table_text(table().replace(-np.inf, np.nan), "csv")))
    pd.testing.assert_frame_equal(read.drop(columns="run"), numbers)
    rows = json.loads(table_text(table(), "json"))
    pd.testing.assert_frame_equal(pd.DataFrame(rows).drop(columns="run"), numbers)
    assert [row["run"] for row in rows] == HOSTILE
    assert read["run"].iloc[-1] == "'= 1 + 1"  # a spreadsheet does not run it


#: Of Markdown: a backslash before ASCII punctuation makes it text.
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")


def visible(text: str) -> str:
    return text.replace("\x1b", "\\x1b").replace("\n", "\\x0a")


def test_latex_reads_back_as_the_same_text() -> None:
    read = read_latex(table_text(table(), "tex"))
    assert read.columns == "lrrlr"
    assert read.rows[0] == list(table())
    assert [row[1:] for row in read.rows[1:]] == ROUNDED
    assert [row[0] for row in read.rows[1:]] == [visible(text) for text in HOSTILE]
    assert "% Numbers have 4 significant digits; counts are exact." in read.comments


def test_what_pdflatex_has_no_glyph_of_stands_as_a_code_point() -> None:
    names = ["中a", "Łódź áveis", "ð \u200b", "''x--", "\u2423±"]
    read = read_latex(table_text(pd.DataFrame({"name": names}), "tex"))
    printed = [r"\u4e2da", "Łódź áveis", r"\xf0 \u200b", "''x--", "\u2423±"]
    assert [row[0] for row in read.rows[1:]] == printed


def test_markdown_reads_back_as_the_same_text() -> None:
    lines = table_text(table(), "md").splitlines()
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line.startswith("|")]
    assert {len(row) for row in rows} == {5}  # no name opens a column, or a line
    assert [cell.strip() for cell in rows[1]] == ["---", "--:", "--:", "---", "--:"]
    plain = [[_ESCAPED.sub(r"\1", cell).strip() for cell in row] for row in rows]
    assert plain[0] == list(table())
    assert [row[1:] for row in plain[2:]] == ROUNDED
    assert [row[0] for row in plain[2:]] == [visible(text) for text in HOSTILE]
    for unescaped in (r"(?<!\\)<", r"(?<!\\)`", r"(?<!\\)\$"):
        assert not re.search(unescaped, "".join(lines))
    assert lines[-1] == "Numbers have 4 significant digits; counts are exact."


def test_a_token_shows_every_character() -> None:
    tokens = pd.DataFrame({"token": [" is", ">();\n\n", ""], "rank": [1, 2, 3]})
    read = read_latex(table_text(tokens, "tex"))
    assert [row[0] for row in read.rows[1:]] == ['"\u2423is"', '">();\\n\\n"', ""]


@pytest.mark.parametrize("name", ["interface", "layers", "embeddings", "tokens", "attention"])
def test_the_tables_of_every_measurement(name: str) -> None:
    made = getattr(made_tables, name)()
    read = read_latex(table_text(made, "tex"))
    assert len(read.rows) == 1 + len(made)
    assert read.rows[0] == list(made)
    place = list(made).index(made.select_dtypes("float").columns[-1])
    numbers = [float("nan" if row[place] == "-" else row[place]) for row in read.rows[1:]]
    assert numbers == pytest.approx(made.iloc[:, place].tolist(), rel=5e-3, nan_ok=True)
    lines = table_text(made, "md").splitlines()
    assert len([line for line in lines if line.startswith("|")]) == 2 + len(made)


def test_a_table_without_rows() -> None:
    assert len(read_latex(table_text(table().iloc[:0], "tex")).rows) == 1
