"""The page of runs: what stands in it, and that strangers' text stays text."""

import gzip
import json
import re
from base64 import b64decode
from html import unescape
from pathlib import Path

import pandas as pd
import pytest
from support import made_tables
from support.flat import tidied
from support.made_runs import ATTACK, add_figure, run_folder
from support.read_page import Reader, drawn, page_of_folders

import normprobe
from normprobe.data.data_set import bundled_data_dir
from normprobe.report.page.blocks import block, compressed_tables, note, verdict_block
from normprobe.report.page.document import (
    Section,
    measured,
    models,
    own_facts,
    page,
    run_title,
    shared_facts,
    short_titles,
)
from normprobe.report.verdict import Finding, Verdict
from normprobe.run import compare, load_run
from normprobe.runs.run_folder import RunFolder, RunStore
from normprobe.schema import SCHEMA_VERSION


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
        "57 x the norm of the prompts' text tokens",
        "Loudest and quietest",
        "some share",
        "0.2500",
    ):
        assert words in read.text
    assert ("alt", "heat") in read.attributes


def test_tables_are_packed_without_the_time(layers: Path) -> None:
    """The same run gives the same page, whenever it is written."""
    ((name, url),) = compressed_tables(RunFolder.open(layers))
    packed = b64decode(url.partition(",")[2])
    assert (name, gzip.decompress(packed)) == (
        "layers.csv.gz",
        (layers / "layers.csv").read_bytes(),
    )
    assert packed[4:8] == bytes(4)  # where gzip keeps the time


def scaled(factor: float, folder: Path) -> Path:
    """A run of ``layers`` whose visual tokens are so many times as loud."""
    table = made_tables.layers()
    table.loc[table["group"] == "visual", "norm_geometric_ratio_to_text"] *= factor
    return run_folder(folder, "layers", record={"model": folder.name}, layers=table)


def test_a_page_of_several_models_begins_with_all_of_them(tmp_path: Path) -> None:
    runs = [scaled(factor, tmp_path / name) for name, factor in (("a", 1), ("b", 10), ("c", 0.1))]
    other = run_folder(
        tmp_path / "d", "interface", interface=made_tables.interface(), record={"model": "d"}
    )
    text = page_of_folders(*runs, other)
    header = Reader(text[: text.index("</header>")]).text
    assert (
        "at the decoder input is farthest from that of text in b (568 x) and nearest in" in header
    )
    assert "Larger norm of visual tokens in 3 of 3 runs: 5.7 to 568 x." in header
    assert "Without a complete run of layers: d." in header
    assert all(f"layers, {name}" in header for name in "abc")  # each in a sentence
    (dots,) = drawn(text[: text.index("</header>")], "dots")
    assert [row["name"] for row in dots["rows"]] == ["b", "a", "c"]
    panels = drawn(text[: text.index("</header>")], "panels")[0]
    assert [line["name"] for line in panels[0]["series"]] == ["a", "b", "c"]
    colors = {row["name"]: row["color"] for row in dots["rows"]}
    assert {line["name"]: line["color"] for line in panels[0]["series"]} == colors


def test_a_page_of_a_comparison_begins_with_it_and_shows_its_pictures(tmp_path: Path) -> None:
    runs = [scaled(factor, tmp_path / name) for name, factor in (("a", 1), ("b", 10))]
    made = compare([*map(load_run, runs)], output=tmp_path / "compared").path
    assert made is not None
    text = page_of_folders(*runs, made)
    header = text[: text.index("</header>")]
    assert "is farthest from that of text in b" in header and 'From <a href="#run-3">' in header
    pictures = {value for name, value in Reader(text).attributes if name == "alt"}
    assert {"overlay", "ranking", "small multiples"} <= pictures


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
    memory.write_table("layers", tidied("layers", made_tables.layers()))
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
    tidied("layers", table).to_csv(layers / "layers.csv", index=False)
    assert Reader(page_of_folders(layers)).tags.count("script") == 3


def test_nothing_is_fetched(layers: Path) -> None:
    text = page_of_folders(layers)
    read = Reader(text)
    for name, value in read.attributes:
        if name in ("src", "href"):
            assert value.startswith(("#", "data:")), value
    assert not re.search(r"@import|url\(", text)


def test_a_partial_run_says_so(tmp_path: Path) -> None:
    record = {"command": "layers", "schema_version": SCHEMA_VERSION}
    RunFolder.create(tmp_path / "run", overwrite=False, record=record)
    assert "This run is partial" in Reader(page_of_folders(tmp_path / "run")).text


ONE = {
    "model": "org/one",
    "model_type": "llava",
    "sizes": {"decoder_layers": 32, "hidden_size": 4096},
    "data": "sample",
    "data_provenance": {
        "sources": [
            {"benchmark": "pope", "questions": 2},
            {"benchmark": "mmstar", "questions": 1},
        ]
    },
    "sample_ids": ["a", "b", "c"],
    "image_hashes": {"a": "1", "b": "1", "c": "2"},
}


def test_model_data_and_samples() -> None:
    compared = RunStore({"model": "2 runs of layers", "compared": "layers", "data": "sample"})
    runs = [RunStore(ONE), RunStore(ONE), compared]
    assert models(runs) == ["org/one"]
    assert measured(runs) == [
        ("Model", "llava, 32 decoder layers, hidden size 4096"),
        ("Data", "sample (2 pope, 1 mmstar)"),
        ("Samples", "3 with 2 images"),
    ]


def test_clips_and_sounds_are_no_images() -> None:
    hashes = {"a": "1", "b": "2", "c": "1+2+3", "d": None, "e": "3"}
    several = {"sample_ids": list("abcde"), "image_hashes": hashes}
    told = dict(measured([RunStore(several | {"media": ["image", "clip", "sound"]})]))
    assert told["Samples"] == "5 with 3 images, clips, sounds"
    assert dict(measured([RunStore(several)]))["Samples"] == "5 with 4 images"
    words_alone = {"sample_ids": ["a"], "image_hashes": {"a": None}}
    assert dict(measured([RunStore(words_alone)]))["Samples"] == "1"


def test_of_many_models_a_few_are_named() -> None:
    runs = [RunStore(ONE | {"model": f"org/{number}"}) for number in range(6)]
    assert dict(measured(runs))["Model"] == "org/0; org/1; org/2; org/3; 2 more"


def test_what_a_stranger_wrote_in_a_record_is_no_reason_to_fail() -> None:
    strange = {"sizes": [1], "data_provenance": {"sources": [None]}, "image_hashes": 3}
    told = dict(measured([RunStore(ONE | strange)]))
    assert told == {"Data": "sample", "Samples": "3"}


LAYERS = {
    "command": "layers",
    "model": "org/one",
    "device": "cpu",
    "sample_ids": ["a", "b"],
    "argv": ["/x/normprobe", "layers", "a b"],
}


def test_a_page_does_not_say_where_the_package_is_installed(tmp_path: Path) -> None:
    file = bundled_data_dir() / "scenes" / "scenes.jsonl"
    record = {
        "argv": [str(Path(normprobe.__file__).parent / "__main__.py"), "layers"],
        "data_provenance": {"sources": [{"path": str(file)}]},
    }
    run = run_folder(tmp_path / "one", "layers", record=record, layers=made_tables.layers())
    text = unescape(page_of_folders(run))
    assert json.dumps(str(Path("scenes", "scenes.jsonl"))) in text
    assert str(Path(normprobe.__file__).parents[1]) not in text
    assert '"argv": [\n    "normprobe",' in text


def test_a_record_without_a_command_line_is_shown_as_it_is(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "one", "layers", record={}, layers=made_tables.layers())
    assert ('"argv"' in unescape(page_of_folders(run))) == ("argv" in load_run(run).record)


def test_of_one_run_everything_is_shared() -> None:
    runs = [RunStore(LAYERS)]
    assert dict(shared_facts(runs)) == {
        "model": "org/one",
        "samples": "2",
        "command line": "normprobe layers 'a b'",
        "device": "cpu",
    }
    assert own_facts(runs, ["layers"]).empty


def test_what_differs_stands_by_run() -> None:
    aligned = RunStore(LAYERS | {"device": "cuda", "alignment": {"scale": 0.123456, "at": None}})
    compared = RunStore({"command": "compare", "compared": "layers", "model": "2 runs of layers"})
    runs = [RunStore(LAYERS), aligned, compared]
    shared = dict(shared_facts(runs))
    assert shared["model"] == "org/one"  # a comparison has no model of its own
    assert not {"device", "alignment norm"} & set(shared)
    own = own_facts(runs, ["layers", "layers, aligned", "compare"])
    assert own.to_dict("records") == [
        {"run": "layers", "alignment norm": "", "device": "cpu"},
        {"run": "layers, aligned", "alignment norm": "scale: 0.1235", "device": "cuda"},
        {"run": "compare", "alignment norm": "", "device": ""},
    ]


def test_digests_of_all_tensors_are_one() -> None:
    one, other = {"a": "1", "b": "2"}, {"a": "1", "b": "3"}
    runs = [RunStore(LAYERS | {"weight_digests": weights}) for weights in (one, one, other)]
    (told,) = (value for words, value in shared_facts(runs[:2]) if words == "weights")
    assert len(told) == 16
    assert list(own_facts(runs, ["a", "b", "c"])["weights"].value_counts()) == [2, 1]


def run(**record: object) -> RunStore:
    return RunStore({"command": "layers", "model": "org/one", "data": "mmbench"} | record)


@pytest.mark.parametrize(
    ("others", "titles"),
    [
        ([], ["layers"]),
        ([run(command="interface")], ["layers", "interface"]),
        ([run(alignment={"target": "table"})], ["layers", "layers, aligned"]),
        ([run(step=100)], ["layers", "layers, step 100"]),
        ([run(model="org/two")], ["layers, org/one", "layers, org/two"]),
        ([run(data="pope")], ["layers: org/one, mmbench", "layers: org/one, pope"]),
        ([run()], ["layers: org/one, mmbench (1)", "layers: org/one, mmbench (2)"]),
    ],
)
def test_runs_are_told_apart_in_few_words(others: list[RunStore], titles: list[str]) -> None:
    assert short_titles([run(), *others]) == titles


def test_a_local_model_has_the_name_of_its_folder() -> None:
    assert run_title(run(model="/home/me/out/checkpoint")) == "layers: checkpoint, mmbench"


def test_no_control_character_reaches_a_page() -> None:
    name = "a\x1b[31m\x00\x9b\u202e\ud800 1.2 x"
    made = [block(kind, name) for kind in ("heading", "sentence", "note", "warning")]
    made += [block("table", [(name, "")], [[name]], 0), block("picture", name, name)]
    made.append(block("asked", f"one\n{name}", [name]))
    for html in made:
        assert all(line.isprintable() for line in html.split("\n")), html
        assert r"a\x1b[31m\x00\x9b\u202e\ud800" in html


def test_backticks_are_code() -> None:
    told = str(note("`normprobe cause` asks <b>."))
    assert "<code>normprobe cause</code> asks &lt;b&gt;." in told
    verdict = Verdict("See `cause`.", (Finding("a", "It is 2.0 x [1.0, 3.0] by `a`."),))
    listed = str(verdict_block(verdict))
    assert "See <code>cause</code>." in listed
    assert '<b>2.0 x</b> <span class="interval">[1.0, 3.0]</span> by <code>a</code>.' in listed
