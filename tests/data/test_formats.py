"""The same questions from every format that they are published in."""

import base64
import json
import random

import datasets
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from data.conftest import encode, write_tsv
from normprobe.data.bad_rows import BadRows
from normprobe.data.benchmarks import BENCHMARKS
from normprobe.data.datasets import open_data
from normprobe.data.local import read_file
from normprobe.errors import NormprobeError

RED, BLUE, GREEN = (encode(Image.new("RGB", (6, 4), name)) for name in ("red", "blue", "green"))
LETTER = "Answer with the option's letter from the given choices directly."

# As on the hub: columns, and the prompt of the first row.
TABLES = {
    "mmbench": (
        {
            "index": ["5", "6"],
            "question": ["Which?", "Why?"],
            "hint": ["nan", "Look."],
            "A": ["cat", "so"],
            "B": ["dog", "None"],
            "C": ["nan", "nan"],
            "D": [None, None],
        },
        f"Which?\nA. cat\nB. dog\n{LETTER}",
    ),
    "pope": (
        {"question_id": ["1", "2"], "question": ["Is it red?", "Is it?"], "answer": ["yes"] * 2},
        "Is it red?\nAnswer the question using a single word or phrase.",
    ),
    "mmstar": (
        {
            "index": [0, 1],
            "question": ["Which?\nOptions: A: x, B: y", "Why?\nOptions: A: y, B: x"],
            "meta_info": [{"source": "x"}] * 2,
        },
        f"Which?\nOptions: A: x, B: y\n{LETTER[:-1]}",
    ),
    "seedbench2plus": (
        {
            "question_id": ["7", "7"],
            "question": ["Which?", "Why?"],
            **{f"choice_{letter}": [f"{letter} one", f"{letter} two"] for letter in "ABCD"},
        },
        f"Which?\nA. A one\nB. B one\nC. C one\nD. D one\n{LETTER}",
    ),
    "ocrbench": (
        {"dataset": ["x"] * 2, "question": ["what is written?"] * 2, "question_type": ["y"] * 2},
        "what is written?",
    ),
    "scienceqa": (
        {
            "question": ["Which?", "Why?"],
            "choices": [["cat", "dog"], ["so", "thus", "hence", "then", "None"]],
            "hint": ["Look.", ""],
        },
        f"Context: Look.\nWhich?\nA. cat\nB. dog\n{LETTER}",
    ),
    "ai2d": (
        {
            "question": ["Which?", "Why?"],
            "options": [["cat", "dog", "ox", "hen"], ["so", "thus", "hence", "then"]],
            "answer": ["0", "3"],
        },
        f"Which?\nA. cat\nB. dog\nC. ox\nD. hen\n{LETTER}",
    ),
}


def hub_table(name, rows=(0, 1)):
    columns = TABLES[name][0] | {"image": [{"bytes": data, "path": "x"} for data in (RED, BLUE)]}
    return pa.table({key: [values[row] for row in rows] for key, values in columns.items()})


def check(data, name):
    first, second = sorted(data, key=lambda sample: sample.image.getpixel((0, 0)), reverse=True)
    assert first.prompt == TABLES[name][1]
    assert first.image.getpixel((0, 0)) == (255, 0, 0)
    assert second.image.getpixel((0, 0)) == (0, 0, 255)
    assert [source["benchmark"] for source in data.provenance["sources"]] == [name]
    assert all(sample_id.startswith(f"{name}/") for sample_id in data.ids)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_parquet_is_told_by_its_columns(tmp_path, name):
    parquet.write_table(hub_table(name), tmp_path / "test-00000-of-00001.parquet")
    check(open_data(str(tmp_path)), name)
    check(open_data(str(tmp_path / "test-00000-of-00001.parquet")), name)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_shards_and_row_order_leave_ids_alone(tmp_path, name):
    whole, shards = tmp_path / "whole", tmp_path / "shards"
    for folder in (whole, shards):
        folder.mkdir()
    parquet.write_table(hub_table(name), whole / "test.parquet")
    for shard in (0, 1):
        table = hub_table(name, [1 - shard])
        parquet.write_table(table, shards / f"test-0000{shard}-of-00002.parquet")
    assert sorted(open_data(str(shards)).ids) == sorted(open_data(str(whole)).ids)
    assert open_data(str(shards), limit=1).ids == open_data(str(whole), limit=1).ids
    check(open_data(str(shards)), name)
    assert open_data(str(shards)).provenance["sources"][0]["shards"] == 2


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_saved_data_set(tmp_path, name):
    dataset = datasets.Dataset(hub_table(name)).cast_column("image", datasets.Image())
    dataset.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"test": dataset}).save_to_disk(tmp_path / "splits")
    check(open_data(str(tmp_path / "one")), name)
    check(open_data(str(tmp_path / "splits")), name)


@pytest.mark.parametrize("file", ["state.json", "dataset_dict.json"])
def test_a_saved_data_set_stays_in_its_folder(tmp_path, file):
    dataset = datasets.Dataset(hub_table("pope"))
    dataset.save_to_disk(tmp_path / "secret")
    folder = tmp_path / "given"
    if file == "state.json":
        dataset.save_to_disk(folder)
        state = json.loads((folder / file).read_text())
        state["_data_files"][0]["filename"] = "../secret/data-00000-of-00001.arrow"
        (folder / file).write_text(json.dumps(state))
    else:
        folder.mkdir()
        (folder / file).write_text(json.dumps({"splits": ["../secret"]}))
    with pytest.raises(NormprobeError, match=r"it names .*outside of it"):
        open_data(str(folder))


def test_a_damaged_saved_data_set_is_refused(tmp_path):
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(NormprobeError, match="expected a saved data set"):
        open_data(str(tmp_path))


# The TSVs of VLMEvalKit share their columns; their names tell them apart.
@pytest.mark.parametrize(
    ("name", "file", "prompt"),
    [
        ("mmbench", "MMBench_DEV_EN.tsv", f"Look.\nWhich?\nA. cat\nB. None\n{LETTER}"),
        ("mmbench", "mine.tsv", f"Look.\nWhich?\nA. cat\nB. None\n{LETTER}"),
        ("mmstar", "MMStar.tsv", f"Look.\nWhich?\nA. cat\nB. None\n{LETTER}"),
        ("seedbench2plus", "SEEDBench2_Plus.tsv", f"Which?\nA. cat\nB. None\n{LETTER}"),
        ("scienceqa", "ScienceQA_TEST.tsv", f"Context: Look.\nWhich?\nA. cat\nB. None\n{LETTER}"),
        ("ai2d", "AI2D_TEST.tsv", f"Which?\nA. cat\nB. None\n{LETTER}"),
        ("ocrbench", "OCRBench.tsv", "Which?"),
        ("pope", "POPE.tsv", "Which?\nAnswer the question using a single word or phrase."),
    ],
)
def test_tsv(tmp_path, name, file, prompt):
    header = ["index", "question", "hint", "A", "B", "C", "D", "image"]
    options = ["Which?", "Look.", "cat", "None", "", ""]
    image = base64.b64encode(RED).decode()
    rows = [["4", *options, image], ["5", *options, "4"]]
    data = open_data(str(write_tsv(tmp_path / file, [header, *rows])))
    assert data.ids == [f"{name}/4", f"{name}/5"]
    first, second = data
    assert first.prompt == second.prompt == prompt
    wording = data.provenance["sources"][0]["prompt"]
    cells = {"question": "Which?", "hint": "Look.", "options": "A. cat\nB. None"}
    assert wording.format(**cells) == prompt
    assert first.image_hash == second.image_hash  # the second names the row of the first


ODD = {
    "integers": pa.array([1, 2]),
    "floats": pa.array([1.5, float("nan")]),
    "bools": pa.array([True, None]),
    "lists": pa.array([[1], [2, None]]),
    "texts": pa.array([["a"], None]),
    "structs": pa.array([{"x": 1}, {"x": None}]),
    "nulls": pa.nulls(2),
    "bytes": pa.array([b"\xff", b""]),
    "dates": pa.array([1, 2], pa.timestamp("s")),
    "words": pa.array(["\x00", "x" * 100]),
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", BENCHMARKS)
def test_columns_of_odd_types_end_in_known_failures(tmp_path, name, odd):
    for place, column in enumerate(BENCHMARKS[name].columns):
        table = hub_table(name)
        at = table.column_names.index(column)
        path = tmp_path / f"{place}.parquet"
        parquet.write_table(table.set_column(at, column, ODD[odd]), path)
        for skip in (False, True):
            try:
                samples = list(open_data(str(path), skip_bad=skip))
            except NormprobeError as error:
                assert "\n" not in error.problem
            else:
                assert all(sample.prompt.strip() for sample in samples)


def test_pope_of_all_three_thirds_numbers_each_from_one(tmp_path):
    table = pa.table(
        {
            "question_id": ["1", "1"],
            "question": ["Is it?", "Is it?"],
            "category": ["adversarial", "random"],
            "image": [{"bytes": RED, "path": ""}] * 2,
        }
    )
    parquet.write_table(table, tmp_path / "test.parquet")
    assert open_data(str(tmp_path)).ids == ["pope/adversarial/1", "pope/random/1"]
    parquet.write_table(table.slice(1), tmp_path / "test.parquet")
    assert open_data(str(tmp_path)).ids == ["pope/1"]


def test_scienceqa_without_a_picture_is_text(tmp_path):
    columns = TABLES["scienceqa"][0] | {"image": [None, {"bytes": RED, "path": ""}]}
    parquet.write_table(pa.table(columns), tmp_path / "test.parquet")
    text, picture = open_data(str(tmp_path))
    assert (text.image, text.image_hash) == (None, None)
    assert picture.image.size == (6, 4)


def test_a_list_of_options_that_is_none_is_refused(tmp_path):
    columns = TABLES["ai2d"][0] | {
        "options": [["a", None], None],
        "image": [{"bytes": RED, "path": ""}] * 2,
    }
    parquet.write_table(pa.table(columns), tmp_path / "test.parquet")
    first, second = read_file(tmp_path / "test.parquet", BadRows()).questions
    with pytest.raises(NormprobeError, match="row 1, column options: expected text, received None"):
        first.load()
    with pytest.raises(NormprobeError, match="row 2, column options: expected a list of options"):
        second.load()


def test_rows_without_an_id_are_named_by_what_they_hold(tmp_path):
    columns = {
        "dataset": ["x"] * 4,
        "question": ["what is written?"] * 4,
        "question_type": ["y"] * 4,
        "image": [{"bytes": data, "path": ""} for data in (RED, BLUE, GREEN, RED)],
    }
    order = list(range(4))
    found = []
    for seed in range(3):
        random.Random(seed).shuffle(order)
        shuffled = {name: [cells[row] for row in order] for name, cells in columns.items()}
        parquet.write_table(pa.table(shuffled), tmp_path / "test.parquet")
        found.append({s.id: s.image_hash for s in open_data(str(tmp_path))})
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 4
    assert sum(sample_id.endswith("-2") for sample_id in found[0]) == 1  # the red one twice


@pytest.mark.parametrize("suffix", ["tsv", "parquet"])
def test_a_table_of_no_benchmark_is_refused(tmp_path, suffix):
    path = tmp_path / f"x.{suffix}"
    if suffix == "tsv":
        write_tsv(path, [["a", "a\x1bb"], ["1", "2"]])
    else:
        parquet.write_table(pa.table({"a": [1], "a\x1bb": [2]}), path)
    with pytest.raises(NormprobeError, match="missing columns") as refusal:
        open_data(str(path))
    assert "\x1b" not in refusal.value.problem  # a file must not steer the terminal


def test_a_parquet_that_claims_more_rows_than_memory_holds(tmp_path):
    ones = pa.DictionaryArray.from_arrays(pa.array([0] * 10_000_001, pa.int8()), ["x"])
    parquet.write_table(pa.table({"question": ones}), tmp_path / "x.parquet")
    with pytest.raises(NormprobeError, match="the file claims 10000001"):
        open_data(str(tmp_path / "x.parquet"))


def test_an_option_column_that_is_there_twice_is_refused(tmp_path):
    header = ["index", "question", "A", "A", "image"]
    path = write_tsv(tmp_path / "AI2D_TEST.tsv", [header, ["1", "q", "a", "b", "x"]])
    with pytest.raises(NormprobeError, match="columns A are there twice"):
        open_data(str(path))
