"""Tables as text: each format is read back by a reader of its own."""

import io
import json
from dataclasses import replace

import numpy as np
import pandas as pd
from support.made_runs import HOSTILE
from support.read_latex import read_latex

from normprobe.report.readable import ReadableTable, readable_table
from normprobe.report.table_text import latex, markdown, table_text


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


def visible(text: str) -> str:
    return text.replace("\x1b", "\\x1b").replace("\n", "\\x0a")


def test_latex_reads_back_as_the_same_text() -> None:
    read = read_latex(table_text(table(), "tex"))
    assert read.columns == "lrrlr"
    assert read.rows[0] == list(table())
    assert [row[1:] for row in read.rows[1:]] == ROUNDED
    assert [row[0] for row in read.rows[1:]] == [visible(text) for text in HOSTILE]
    assert read.notes == ["Numbers have 4 significant digits; counts are exact."]
    assert (read.caption, read.label) == ("", "")


def test_a_caption_and_a_label_are_written_where_there_is_a_title() -> None:
    titled = replace(
        readable_table(table()), title="Table 2: norms of a_b, 5 %", label="org/a_b table"
    )
    read = read_latex(latex(titled))
    assert (read.caption, read.label) == ("norms of a_b, 5 %", "org-a-b-table")


def test_what_pdflatex_has_no_glyph_of_stands_as_a_code_point() -> None:
    names = ["中a", "Łódź áveis", "ð \u200b", "''x--", "\u2423±"]
    read = read_latex(table_text(pd.DataFrame({"name": names}), "tex"))
    printed = [r"\u4e2da", "Łódź áveis", r"\xf0 \u200b", "''x--", "\u2423±"]
    assert [row[0] for row in read.rows[1:]] == printed


def test_a_token_shows_every_character() -> None:
    tokens = pd.DataFrame({"token": [" is", ">();\n\n", ""], "rank": [1, 2, 3]})
    read = read_latex(table_text(tokens, "tex"))
    assert [row[0] for row in read.rows[1:]] == ['"\u2423is"', '">();\\n\\n"', ""]


def test_a_table_without_rows() -> None:
    assert len(read_latex(table_text(table().iloc[:0], "tex")).rows) == 1


def test_a_rule_is_as_wide_as_its_header() -> None:
    sides = [(name, side) for name in ("norm", "angle") for side in ("visual", "text")]
    headers = [("layer",), *sides[:2], ("n",), *sides[2:]]
    text = latex(ReadableTable(headers, [["1"] * 6], [True] * 6))
    assert "\n\\cmidrule(lr){2-3}\\cmidrule(lr){5-6}\n" in text


def test_a_title_stands_above_a_markdown_table_that_has_one() -> None:
    bare = ReadableTable([("norm",)], [["1"]], [True])
    assert markdown(bare) == "| norm |\n| --: |\n| 1 |\n"
    assert markdown(replace(bare, title="Norms")) == f"**Norms**\n\n{markdown(bare)}"
