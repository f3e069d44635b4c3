"""The paper's own tables: rows, columns, order and digits are those of the shipped files."""

import pandas as pd
import pytest
from rich.cells import cell_len
from support.made_cells import made_cells, shipped
from support.made_runs import ATTACK
from support.printed import printed
from support.read_latex import read_latex

from normprobe.extensions.paper.artefacts import artefacts
from normprobe.paper.numbers import published_numbers
from normprobe.paper.tables import Named, layouts, measured_csv, measured_table
from normprobe.report.table_text import latex
from normprobe.report.terminal import print_readable

TABLES = [f"table{n}" for n in (1, 2, 3, 5, 6, 7, 8)]

#: What is printed of each table, from the paper's text; parentheses of Table 5 are its deviations.
PRINTED = {
    "table1": [
        ["Modality", "Model", "Dimension", "Average L2 Norm"],
        ["Visual", "CLIP-ViT-large-patch14", "1024", "29.30 ± 17.12"],
        ["Visual", "SigLIP-SO-400m-patch14-384", "1152", "71.78 ± 13.95"],
        ["Visual", "SigLIP2-SO-400m-patch14-384", "1152", "59.37 ± 106.08"],
        ["Visual", "MoonViT-SO-400M", "1152", "72.17 ± 7.13"],
        ["Text", "Qwen2.5-7B-Instruct", "3584", "0.80"],
        ["Text", "Qwen3-8B-Instruct", "4096", "1.38"],
        ["Text", "Llama3.2-3B-Instruct", "3072", "1.09"],
    ],
    "table2": [
        ["Model", "Visual (Before Proj.)", "Visual (After Proj.)", "Text (Embedding)"],
        ["LLaVA-v1.5", "28.71 ± 16.87", "39.96 ± 45.58", "1.08"],
        ["Qwen-2.5-VL", "3484.24 ± 3882.82", "56.88 ± 25.73", "0.86"],
        ["KimiVL", "137.93 ± 34.43", "4.78 ± 2.21", "0.85"],
        ["GLM-4.1V", "47.44 ± 4.58", "4.58 ± 2.03", "0.80"],
    ],
    "table3": [
        ["Modality", "Source", "Avg L2 Norm"],
        ["Visual", "SigLIP2 Vocab (Frozen)", "64.00 ± 0.71"],
        ["Text", "Text Vocab (Base LLM)", "1.38 ± 0.32"],
    ],
    "table5": [
        ["Parameter", "Metric", "Default Init", "Our Init"],
        ["Gain (g)", "L2 Norm", "53.2500", "2.2812"],
        ["", "Mean of Abs.", "0.9609 ± 0.0005", "0.0400 ± 0.0001"],
        ["Bias (b)", "Mean of Abs.", "0.0175 ± 0.0002", "0.0152 ± 0.0001"],
    ],
    "table6": [
        ["", "Qwen2 Family (7B)", "", "Qwen2.5 Family (7B)", ""],
        ["Metric", "Base", "VL", "Base", "VL"],
        ["Mean Norm", "0.6908", "0.6820", "0.8031", "0.8965"],
        ["Std. Deviation", "0.1610", "0.1588", "0.1801", "0.1821"],
    ],
}


def test_every_table_that_commands_make_has_a_layout() -> None:
    assert list(layouts()) == TABLES == [name for name in artefacts() if name.startswith("table")]


@pytest.mark.parametrize("name", TABLES)
def test_the_csv_has_the_rows_columns_and_order_of_the_shipped_file(name: str) -> None:
    cells, lines = made_cells(name), shipped(name)
    table = measured_csv(layouts()[name], cells)
    own = [column for column in table if not column.endswith(("_published", "_published_rank"))]
    assert own == list(lines[0])
    assert len(table) == len(lines)
    for row, expected in enumerate(lines):
        for column, text in expected.items():
            if column in layouts()[name].keys:
                assert table[column][row] == text
                continue
            measured = cells[row, column]
            if isinstance(measured, str):
                measured = measured.replace("\n", "\\n")
            assert table[column][row] == measured
            beside = table[f"{column}_published"][row]
            assert (beside == text) if text else pd.isna(beside)


@pytest.mark.parametrize("name", PRINTED)
def test_the_published_rows_are_what_the_paper_prints(name: str) -> None:
    cells = made_cells(name)
    read = read_latex(latex(measured_table(layouts()[name], cells, [])))
    heads = 2 if name == "table6" else 1
    assert read.rows[:heads] == PRINTED[name][:heads]
    measured, published = read.rows[heads::2], read.rows[heads + 1 :: 2]
    keys = [place for place, numeric in enumerate(read.columns) if numeric == "l"]
    for expected, above, below in zip(PRINTED[name][heads:], measured, published, strict=True):
        assert [above[place] for place in keys] == [expected[place] for place in keys]
        numbers = [text for place, text in enumerate(expected) if place not in keys]
        assert [text for text in below if text] == [f"({text})" for text in numbers]


@pytest.mark.parametrize("name", PRINTED)
def test_measured_cells_have_the_digits_of_the_published(name: str) -> None:
    cells = made_cells(name)
    rows = measured_table(layouts()[name], cells, []).rows
    shown = " ".join(" ".join(row) for row in rows[0::2])
    expected = [
        f"{cells[row, column]:.{len(text.partition('.')[2])}f}"
        for row, line in enumerate(shipped(name))
        for column, text in line.items()
        if text and column not in layouts()[name].keys
    ]
    assert len(expected) > 3
    assert all(shown.split().count(number) == 1 for number in expected)


@pytest.mark.parametrize(("name", "family"), [("table7", "Qwen2"), ("table8", "Qwen2.5")])
def test_top_tokens_stand_in_the_order_of_their_rank(name: str, family: str) -> None:
    cells = made_cells(name) | {(1, "vl_token_published_rank"): 7}
    read = read_latex(latex(measured_table(layouts()[name], cells, [])))
    assert read.rows[0][1] == f"{family}-7B-Instruct (Base)"
    assert read.rows[0][3] == f"{family}-VL-7B-Instruct (VL)"
    assert read.rows[1] == ["Rank", "Token", "L2 Norm", "Token", "L2 Norm"]
    assert [row[0] for row in read.rows[2::2]] == [str(rank) for rank in range(1, 11)]
    for place, line in enumerate(shipped(name)):
        above, below = read.rows[2 + 2 * place], read.rows[3 + 2 * place]
        assert above[3] == '"' + str(cells[place, "vl_token"]).replace(" ", "␣")[:-1] + '\\n"'
        assert above[4] == f"{cells[place, 'vl_l2_norm']:.4f}"
        assert below[4] == f"({line['vl_l2_norm']})"
        described = line["vl_token"] == "(Chinese Char)"
        assert below[3].startswith("((Chinese Char)" if described else '("')
        assert below[3].endswith(", here 7)") == (place == 1)


SAID = {
    "table2": {"KimiVL": Named("", "Odd."), "GLM-4.1V": Named("tiny", "Odder.")},
    "table7": {"Qwen2-7B vl": Named("tiny", "Odd.")},
}


def test_a_note_has_its_mark_at_the_name_that_it_is_about() -> None:
    layout = layouts()["table2"]
    read = read_latex(latex(measured_table(layout, made_cells("table2"), ["Z."], SAID["table2"])))
    column = [row[0] for row in read.rows[1:]]
    assert column == ["LLaVA-v1.5", "", "Qwen-2.5-VL", "", "KimiVL¹", "", "tiny", "(GLM-4.1V²)"]
    assert read.notes[1:] == ["Z.", "¹ Odd.", "² Odder."]


def test_a_model_that_heads_a_column_has_its_stand_in_there() -> None:
    table = measured_table(layouts()["table7"], made_cells("table7"), [], SAID["table7"])
    assert [parts[0] for parts in table.headers] == [
        "Rank",
        *["Qwen2-7B-Instruct (Base)"] * 2,
        *["Qwen2-VL-7B-Instruct (VL)¹: tiny"] * 2,
    ]


@pytest.mark.parametrize("name", TABLES)
def test_measured_numbers_stand_alone(name: str) -> None:
    cells = made_cells(name)
    both = measured_table(layouts()[name], cells, [], SAID.get(name))
    alone = measured_table(layouts()[name], cells, [], SAID.get(name), published=False)
    told = [row for row in both.rows if "(" not in row[-1]]
    assert [row[-1] for row in alone.rows] == [row[-1] for row in told]
    assert not [note for note in alone.notes if "published" in note or "Odd" in note]
    first = {place: value for place, value in cells.items() if place[0] == 0}
    few = measured_table(layouts()[name], first, [], published=False)
    assert len(few.rows) == (2 if name == "table6" else 1)  # whose columns are models
    assert list(measured_csv(layouts()[name], cells, published=False)) == list(shipped(name)[0])


@pytest.mark.parametrize("name", TABLES)
def test_what_was_not_measured_is_a_dash(name: str) -> None:
    table = measured_table(layouts()[name], {}, [])
    for row in table.rows[0::2]:
        for cell, numeric in zip(row, table.numeric, strict=True):
            assert cell == "-" or not numeric
    measured = measured_csv(layouts()[name], {})
    own = [c for c in shipped(name)[0] if c not in layouts()[name].keys]
    assert measured[own].isna().all().all()


@pytest.mark.parametrize("name", TABLES)
def test_every_number_has_its_cell(name: str) -> None:
    """Row and column of a published number hold that number."""
    numbers = [n for n in published_numbers() if n.source == layouts()[name].source]
    lines = shipped(name)
    for number in numbers:
        assert float(lines[number.row][number.column]) == number.value
    places = {(number.row, number.column) for number in numbers}
    assert len(places) == len(numbers)
    if name != "table5":  # of checkpoints that no run is of
        filled = {
            (row, column)
            for row, line in enumerate(lines)
            for column, text in line.items()
            if text and column not in layouts()[name].keys and not column.endswith("_token")
        }
        assert places == filled


@pytest.mark.parametrize("name", TABLES)
def test_a_terminal_shows_all_of_it(name: str) -> None:
    readable = measured_table(layouts()[name], made_cells(name), ["A note."])
    shown = printed(print_readable, readable)
    assert max(map(cell_len, shown.splitlines())) <= 80
    assert "\u2026" not in shown  # nothing is cut
    for row in readable.rows:
        assert any(all(cell in line for cell in row) for line in shown.splitlines())


def test_a_name_from_elsewhere_stays_text() -> None:
    table = measured_table(layouts()["table7"], {(0, "vl_token"): ATTACK}, [])
    assert f'"{ATTACK}"'.replace(" ", "␣")[:20] in read_latex(latex(table)).rows[2][3]
