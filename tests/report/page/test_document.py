"""The page of a report: what stands in it, and that strangers' text stays text."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from report import made_tables
from report.made_runs import ATTACK, run_folder
from typer.testing import CliRunner

from normprobe.cli.app import app
from normprobe.measurements.layers.assumptions import assumptions_table
from normprobe.measurements.layers.theory_words import theory_verdict
from normprobe.report.figures.style import GROUP_LOOKS, SERIES_COLORS
from normprobe.report.page.document import page
from normprobe.runs.run_folder import RunDir


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    record = {
        "model": "org/model",
        "data": "sample",
        "argv": ["x/normprobe", "layers", "org/model"],
    }
    return run_folder(tmp_path / "one", "layers", record=record, layers=made_tables.layers())


class Reader(HTMLParser):
    """Elements, attributes and visible text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data


def charts(text: str) -> list[list[dict]]:
    found = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    return [json.loads(chart) for chart in found]


def test_curves_hold_the_numbers_of_the_table(layers: Path) -> None:
    table = made_tables.layers().set_index(["group", "layer"])
    (found,) = charts(page([layers]))
    assert found[0]["label"] == "L2 norm of the hidden state"
    assert [series["name"] for series in found[0]["series"]] == [
        "visual",
        "text",
        "special",
        "structural",
    ]
    for chart, metric in zip(found, ("norm", "cosine", "angle"), strict=False):
        for series in chart["series"]:
            rows = table.loc[series["name"]]
            assert series["x"] == list(rows.index)
            for line, column in (("y", "mean"), ("low", "q05"), ("high", "q95")):
                written = pd.Series(series[line], dtype=float)
                expected = rows[f"{metric}_{column}"].reset_index(drop=True)
                pd.testing.assert_series_equal(written, expected, rtol=1e-5, check_names=False)
    assert found[0]["log"]
    assert not found[1]["log"]


def test_heat_map_and_words(layers: Path) -> None:
    text = page([layers])
    read = Reader(text)
    assert "Visual tokens enter the decoder 57 x louder than text tokens" in read.text
    assert ">16.53</td>" in text
    shades = [float(s) for s in re.findall(r"rgba\(213,94,0,([\d.]+)\)", text)]
    assert min(shades) == 0.0
    assert max(shades) == pytest.approx(0.6)
    assert "normprobe layers org/model" in read.text


def test_every_command_has_its_section(tmp_path: Path, layers: Path) -> None:
    interface = run_folder(tmp_path / "two", "interface", interface=made_tables.interface())
    embeddings = run_folder(
        tmp_path / "three",
        "embeddings",
        embeddings=made_tables.embeddings("text", "visual"),
        tokens=made_tables.tokens("text"),
    )
    other = run_folder(tmp_path / "four", "other", numbers=pd.DataFrame({"some_share": [0.25]}))
    (other / "plots").mkdir()
    (other / "plots/heat.png").write_bytes(b"\x89PNG")
    read = Reader(page([layers, interface, embeddings, other]))
    assert read.tags.count("section") == 4
    assert [
        value for name, value in read.attributes if name == "href" and value.startswith("#")
    ] == [f"#run-{number}" for number in (1, 2, 3, 4)]
    for words in (
        "57 x louder than the text tokens",
        "Loudest and quietest",
        "some share",
        "0.2500",
    ):
        assert words in read.text
    assert ("src", "data:image/png;base64,iVBORw==") in read.attributes


def compared(step: bool) -> pd.DataFrame:
    runs = {"first": made_tables.layers(), "second": made_tables.layers(4)}
    tables = [table.assign(run=name) for name, table in runs.items()]
    if step:
        tables = [table.assign(step=100 * place) for place, table in enumerate(tables)]
    return pd.concat(tables, ignore_index=True)


def test_the_theory_is_judged_in_words_and_its_verdicts_come_first(tmp_path: Path) -> None:
    theory = made_tables.theory()
    assumptions = assumptions_table(theory)
    path = run_folder(
        tmp_path / "run",
        "layers",
        layers=made_tables.layers(),
        theory=theory,
        assumptions=assumptions,
    )
    text = page([path])
    assert theory_verdict(theory, assumptions) in Reader(text).text
    assert text.count(">Uniform Update Magnitude<") == 1
    assert text.index(">verdict</th>") < text.index(">median</th>")
    drawn = {chart["label"]: chart["series"] for chart in charts(text)[1]}
    measured, predicted = drawn["cross-modal cosine (Eq. 15)"]
    group_colors = {look.color for look in GROUP_LOOKS.values()}
    assert not {measured["color"], predicted["color"]} & group_colors
    turns = drawn["cosine between the turn and the other modality's states"]
    for series, column in zip(turns, ("visual_turn_to_text", "text_turn_to_visual"), strict=True):
        assert series["y"][1:] == pytest.approx(theory[f"{column}_mean"].tolist()[1:], rel=1e-5)


def test_no_run_has_the_color_of_a_token_group() -> None:
    assert not set(SERIES_COLORS) & {look.color for look in GROUP_LOOKS.values()}


@pytest.mark.parametrize("step", [False, True])
def test_compared_runs_are_lines_of_one_chart(step: bool, tmp_path: Path) -> None:
    ranking = pd.DataFrame(
        {
            "rank": [1, 2],
            "run": ["second", "first"],
            "disparity_input": [40.0, 20.0],
            "inertia_gap": [0.3, 0.2],
        }
    )
    path = run_folder(tmp_path / "run", "compare", compare=compared(step), ranking=ranking)
    text = page([path])
    (found,) = charts(text)
    norm = {series["name"]: series for series in found[0]["series"]}
    assert list(norm) == ["first, visual", "first, text", "second, visual", "second, text"]
    assert norm["second, text"]["x"] == list(range(5))
    expected = made_tables.layers(4).query("group == 'text'")["norm_mean"]
    assert norm["second, text"]["y"] == pytest.approx(expected.tolist(), rel=1e-5)
    assert norm["first, visual"]["color"] == norm["first, text"]["color"]
    assert norm["first, visual"]["color"] != norm["second, visual"]["color"]
    assert norm["first, visual"]["dash"] != norm["first, text"]["dash"]
    assert "Ranked by disparity" in text
    assert "largest in second (40" in text


def test_attention_has_a_line_for_each_query_and_its_pictures(tmp_path: Path) -> None:
    table = made_tables.attention(layers=2, queries=("all", "dog")).sort_values(["query", "layer"])
    table["share_mean"], table["heads"] = [0.5, 0.2] * 2, 8
    path = run_folder(tmp_path / "run", "attention", attention=table)
    (path / "plots").mkdir()
    (path / "plots/heatmaps.png").write_bytes(b"\x89PNG")
    text = page([path])
    (chart, *_), *_ = charts(text)
    assert [(line["name"], line["y"]) for line in chart["series"]] == [
        ("all", [0.5, 0.2]),
        ("dog", [0.5, 0.2]),
    ]
    assert "<summary>Figures" not in text  # the pictures are not folded away
    assert 'alt="heatmaps"' in text
    assert "Text gives 35% of its attention to visual tokens" in text


@pytest.mark.parametrize("place", ["model", "data", "warning", "token", "column", "step"])
def test_text_of_strangers_stays_text(place: str, tmp_path: Path) -> None:
    tokens = made_tables.tokens("text")
    table = made_tables.embeddings("text")
    record = {"model": "m", "data": "d", "step": 1} | ({place: ATTACK} if place != "token" else {})
    if place == "token":
        tokens.loc[0, "token"] = ATTACK
    if place == "column":
        tokens[ATTACK] = 1
    path = run_folder(
        tmp_path / "run", "embeddings", record=record, embeddings=table, tokens=tokens
    )
    if place == "warning":
        RunDir.open(path).add_warning(ATTACK)
    read = Reader(page([path]))
    assert read.tags.count("script") == 1
    assert "img" not in read.tags
    assert not any(name.startswith("on") for name, _ in read.attributes)
    assert "document.title='gone'" in read.text.replace("␣", " ")


def test_names_in_curves_cannot_leave_their_element(layers: Path) -> None:
    table = made_tables.layers()
    table["group"] = table["group"].replace("text", "</script><script>x")
    table.to_csv(layers / "layers.csv", index=False)
    assert Reader(page([layers])).tags.count("script") == 2


def test_labels_are_shown_as_they_are_given(tmp_path: Path) -> None:
    ranking = pd.DataFrame({"rank": [1], "run": ["my_run_2"]})
    path = run_folder(tmp_path / "run", "compare", compare=compared(False), ranking=ranking)
    assert "my_run_2" in Reader(page([path])).text


def test_a_text_only_model_and_an_empty_table_have_a_page(tmp_path: Path) -> None:
    table = made_tables.layers()
    text = run_folder(tmp_path / "text", "layers", layers=table[table["group"] == "text"])
    empty = run_folder(tmp_path / "empty", "layers", layers=table.iloc[:0])
    (found,) = charts(page([text, empty]))
    assert [series["name"] for series in found[0]["series"]] == ["text"]


def test_nothing_is_fetched(layers: Path) -> None:
    text = page([layers])
    read = Reader(text)
    for name, value in read.attributes:
        if name in ("src", "href"):
            assert value.startswith(("#", "data:")), value
    assert not re.search(r"@import|url\(", text)


def test_a_partial_run_says_so(tmp_path: Path) -> None:
    RunDir.create(tmp_path / "run", overwrite=False, record={"command": "layers"})
    assert "This run is partial" in Reader(page([tmp_path / "run"])).text


def test_the_command_writes_one_file_and_keeps_another(layers: Path, tmp_path: Path) -> None:
    output = tmp_path / "page.html"
    arguments = ["report", str(layers), "-o", str(output)]
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 0, first.output
    assert first.stdout == f"{output}\n"
    assert output.read_text().startswith("<!doctype html>")
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 1
    assert "--overwrite" in again.stderr
    assert CliRunner().invoke(app, [*arguments, "--overwrite"]).exit_code == 0
    no_run = CliRunner().invoke(app, ["report", str(tmp_path / "none"), "-o", f"{output}.new"])
    assert no_run.exit_code == 1
    assert "is not a run folder" in no_run.stderr


def test_a_report_loads_no_torch(layers: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from normprobe.cli.app import app;"
        f"CliRunner().invoke(app, ['report', {str(layers)!r}, '-o', {str(tmp_path / 'p.html')!r}]);"
        "print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert (tmp_path / "p.html").is_file()
