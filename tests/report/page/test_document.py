"""The page of runs: what stands in it, and that strangers' text stays text."""

import re
from pathlib import Path

import pandas as pd
import pytest
from support import made_tables
from support.made_runs import ATTACK, add_figure, run_folder
from support.read_page import Reader, page_of_folders

from normprobe.report.page.blocks import note
from normprobe.report.page.document import Section, page
from normprobe.runs.run_folder import RunFolder, RunStore


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    record = {
        "model": "org/model",
        "data": "sample",
        "argv": ["x/normprobe", "layers", "org/model"],
    }
    return run_folder(tmp_path / "one", "layers", record=record, layers=made_tables.layers())


def test_every_run_has_its_section(tmp_path: Path, layers: Path) -> None:
    interface = run_folder(tmp_path / "two", "interface", interface=made_tables.interface())
    embeddings = run_folder(
        tmp_path / "three",
        "embeddings",
        embeddings=made_tables.embeddings("text", "visual"),
        tokens=made_tables.tokens("text"),
    )
    other = run_folder(tmp_path / "four", "other", numbers=pd.DataFrame({"some_share": [0.25]}))
    add_figure(other, "heat")
    read = Reader(page_of_folders(layers, interface, embeddings, other))
    assert read.tags.count("section") == 5
    links = [value for name, value in read.attributes if name == "href"]
    places = [value for name, value in read.attributes if name == "id"]
    assert links[:5] == [*(f"#run-{number}" for number in (1, 2, 3, 4)), "#provenance"]
    assert {link[1:] for link in links if link.startswith("#")} <= set(places)
    for words in (
        "57 x louder than the text tokens",
        "Loudest and quietest",
        "some share",
        "0.2500",
    ):
        assert words in read.text
    assert ("alt", "heat") in read.attributes


def test_a_measurement_without_a_section_shows_its_table_as_it_is(tmp_path: Path) -> None:
    path = run_folder(tmp_path, "align", align=pd.DataFrame({"gain": [0.0125]}))
    read = Reader(page_of_folders(path))
    assert "Align" in read.text
    assert "0.01250" in read.text


def test_the_command_line_is_told_without_the_path_of_the_program(layers: Path) -> None:
    assert "normprobe layers org/model" in Reader(page_of_folders(layers)).text


def test_what_the_blocks_of_a_section_show_is_not_shown_again(tmp_path: Path) -> None:
    table = pd.DataFrame({"some_share": [0.25]})
    run = RunFolder.open(run_folder(tmp_path, "other", numbers=table, others=table))
    for name in ("curves", "heat_map"):
        add_figure(tmp_path, name)
    section = Section(run, [note("said")], shown=["numbers"], repeated=["curves"])
    read = Reader(page([section]))
    assert "said" in read.text
    assert "Others" in read.text
    assert "Numbers" not in read.text
    assert ("alt", "heat map") in read.attributes
    assert ("alt", "curves") not in read.attributes
    assert "plots/curves.png" in read.text
    assert "plots/heat_map.png" not in read.text


def test_a_run_in_memory_has_the_same_page(layers: Path) -> None:
    folder = RunFolder.open(layers)
    memory = RunStore(folder.record)
    memory.note(**folder.record)
    memory.write_table("layers", made_tables.layers())
    in_folder, in_memory = (page([Section(run, [])]) for run in (folder, memory))
    assert in_memory == in_folder.replace(", run folder one", "")


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
        RunFolder.open(path).add_warning(ATTACK)
    read = Reader(page_of_folders(path))
    assert read.tags.count("script") == 1
    assert "img" not in read.tags
    assert not any(name.startswith("on") for name, _ in read.attributes)
    assert "document.title='gone'" in read.text.replace("␣", " ")


def test_names_in_curves_cannot_leave_their_element(layers: Path) -> None:
    table = made_tables.layers()
    table["group"] = table["group"].replace("text", "</script><script>x")
    table.to_csv(layers / "layers.csv", index=False)
    assert Reader(page_of_folders(layers)).tags.count("script") == 3


def test_nothing_is_fetched(layers: Path) -> None:
    text = page_of_folders(layers)
    read = Reader(text)
    for name, value in read.attributes:
        if name in ("src", "href"):
            assert value.startswith(("#", "data:")), value
    assert not re.search(r"@import|url\(", text)


def test_a_partial_run_says_so(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", overwrite=False, record={"command": "layers"})
    assert "This run is partial" in Reader(page_of_folders(tmp_path / "run")).text
