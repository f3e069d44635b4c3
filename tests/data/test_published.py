"""What each benchmark asks, in the wording it was published with, from whatever holds its rows."""

import random
import re
from dataclasses import replace

import datasets
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from data.published import (
    BLUE,
    GREEN,
    LETTER,
    MMBENCH_COLUMNS,
    PUBLISHED,
    RED,
    TOLD_BY_COLUMNS,
    base64_image,
    check_two_samples,
    encode,
    hub_table,
    mmbench_row,
    write_lines,
    write_mmbench,
    write_tsv,
)
from normprobe.data.benchmarks import BENCHMARKS, Benchmark, HubSource
from normprobe.data.data_set import open_data
from normprobe.data.sample import Answer
from normprobe.errors import NormprobeError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PICTURE = {"bytes": RED, "path": ""}


def mmbench(tmp_path, *rows):
    return list(open_data(str(write_mmbench(tmp_path / "mmbench.tsv", *rows))))


def from_columns(folder, columns):
    parquet.write_table(pa.table(columns), folder / "test.parquet")
    return open_data(str(folder))


@pytest.mark.parametrize(
    ("cells", "prompt"),
    [
        (
            {
                "question": "Which?",
                "hint": "Look closely.",
                "options": ("cat", "dog", "ox", "hen"),
            },
            "Look closely.\nWhich?\nA. cat\nB. dog\nC. ox\nD. hen",
        ),
        ({"options": ("cat", "dog", "", "")}, "What?\nA. cat\nB. dog"),
        ({"hint": "nan", "options": ("cat", "dog", "nan", "nan")}, "What?\nA. cat\nB. dog"),
        ({"options": ("cat", "", "ox", "")}, "What?\nA. cat\nC. ox"),
        # pandas would drop these
        (
            {"options": ("None", "NA", "null", "N/A")},
            "What?\nA. None\nB. NA\nC. null\nD. N/A",
        ),
        ({"question": "What is {A}?"}, "What is {A}?\nA. a\nB. b"),
    ],
)
def test_the_prompt_of_mmbench(tmp_path, cells, prompt):
    (sample,) = mmbench(tmp_path, mmbench_row(1, **cells))
    assert sample.prompt == f"{prompt}\nAnswer with the option's letter from the given choices " + (
        "directly."
    )


def test_circular_copies_of_mmbench_are_no_questions_but_may_hold_pictures(tmp_path):
    first, second, last = mmbench(
        tmp_path,
        mmbench_row(1, image="1000002"),
        mmbench_row(2),
        mmbench_row(1_000_002, image=base64_image(BLUE)),
        mmbench_row(999_999),
    )
    assert [sample.id for sample in (first, second, last)] == [
        f"mmbench/{key}" for key in (1, 2, 999_999)
    ]
    assert first.image.getpixel((0, 0)) == (0, 0, 255)
    assert second.image.getpixel((0, 0)) == (255, 0, 0)


def test_pope_of_all_three_thirds_numbers_each_from_one(tmp_path):
    columns = {
        "question_id": ["1", "1"],
        "question": ["Is it?", "Is it?"],
        "category": ["adversarial", "random"],
        "image": [PICTURE] * 2,
    }
    assert from_columns(tmp_path, columns).ids == ["pope/adversarial/1", "pope/random/1"]
    last = {name: cells[1:] for name, cells in columns.items()}
    assert from_columns(tmp_path, last).ids == ["pope/1"]


def test_scienceqa_without_a_picture_is_text(tmp_path):
    text, picture = from_columns(
        tmp_path, PUBLISHED["scienceqa"].columns | {"image": [None, PICTURE]}
    )
    assert (text.image, text.image_hash) == (None, None)
    assert picture.image.size == (6, 4)


@pytest.mark.parametrize("wrap", [list, lambda rows: {"questions": rows, "question_type": {}}])
def test_the_official_file_of_seedbench2plus(tmp_path, wrap):
    (tmp_path / "text_rich").mkdir()
    (tmp_path / "text_rich/red.png").write_bytes(RED)
    chart = {"question_id": "0_0", "question": "Which?", "data_id": "text_rich/red.png"} | {
        "choice_a": "cat",  # both spellings are published
        "choice_B": "dog",
        "choice_C": "ox",
        "choice_D": "hen",
    }
    (sample,) = open_data(str(write_lines(tmp_path / "official.json", wrap([chart]))))
    assert sample.id.startswith("seedbench2plus/")
    assert sample.prompt == f"Which?\nA. cat\nB. dog\nC. ox\nD. hen\n{LETTER}"
    assert sample.image.size == (6, 4)


# The TSVs of VLMEvalKit share their columns; their names tell them apart.
@pytest.mark.parametrize(
    ("name", "file", "prompt"),
    [
        ("mmbench", "MMBench_DEV_EN.tsv", f"Look.\nWhich?\nA. cat\nB. None\n{LETTER}"),
        ("mmbench", "mine.tsv", f"Look.\nWhich?\nA. cat\nB. None\n{LETTER}"),
        *(
            ("mmbench_cn", file, "Look.\nWhich?\nA. cat\nB. None\n请直接回答选项字母。")
            for file in ("mmbench_dev_cn_20231003.tsv", "MMBench_DEV_CN.tsv", "MMBench_CN.tsv")
        ),
        ("mmstar", "MMStar.tsv", f"Look.\nWhich?\nA. cat\nB. None\n{LETTER}"),
        ("seedbench2plus", "SEEDBench2_Plus.tsv", f"Which?\nA. cat\nB. None\n{LETTER}"),
        ("scienceqa", "ScienceQA_TEST.tsv", f"Context: Look.\nWhich?\nA. cat\nB. None\n{LETTER}"),
        ("ai2d", "AI2D_TEST.tsv", f"Which?\nA. cat\nB. None\n{LETTER}"),
        ("ocrbench", "OCRBench.tsv", "Which?"),
        ("pope", "POPE.tsv", "Which?\nAnswer the question using a single word or phrase."),
    ],
)
def test_tsv(tmp_path, name, file, prompt):
    options = ["Which?", "Look.", "cat", "None", "", ""]
    rows = [["4", *options, base64_image()], ["5", *options, "4"]]
    data = open_data(str(write_tsv(tmp_path / file, [MMBENCH_COLUMNS, *rows])))
    assert data.ids == [f"{name}/4", f"{name}/5"]
    first, second = data
    assert first.prompt == second.prompt == prompt
    wording = data.provenance["sources"][0]["prompt"]
    cells = {"question": "Which?", "hint": "Look.", "options": "A. cat\nB. None"}
    assert wording.format(**cells) == prompt
    assert first.image_hash == second.image_hash  # the second names the row of the first


def test_a_new_benchmark_is_one_entry(monkeypatch, tmp_path):
    entry = Benchmark(
        name="new",
        template="{question}\n{options}",
        subsets={"test": (HubSource("someone/new", None, "test"),)},
        columns=("id", "question", "answers", "image"),
        key="id",
        options=("answers",),
    )
    monkeypatch.setitem(BENCHMARKS, "new", entry)
    columns = {"id": ["x"], "question": ["Which?"], "answers": [["cat", "dog"]], "image": [PICTURE]}
    (sample,) = from_columns(tmp_path, columns)
    assert (sample.id, sample.prompt) == ("new/x", "Which?\nA. cat\nB. dog")
    with pytest.raises(
        NormprobeError, match=r"boxes, scenes, turns, mixed, mmbench, .*, ai2d, new, paper"
    ):
        open_data("newer")


def saved(folder, name):
    dataset = datasets.Dataset(hub_table(name)).cast_column("image", datasets.Image())
    dataset.save_to_disk(folder)


def saved_splits(folder, name):
    dataset = datasets.Dataset(hub_table(name)).cast_column("image", datasets.Image())
    datasets.DatasetDict({"test": dataset}).save_to_disk(folder)


def one_table(folder, name):
    parquet.write_table(hub_table(name), folder / "test-00000-of-00001.parquet")


def shards(folder, name):
    for shard in (0, 1):
        table = hub_table(name, [1 - shard])
        parquet.write_table(table, folder / f"test-0000{shard}-of-00002.parquet")


@pytest.mark.parametrize("write", [one_table, shards, saved, saved_splits])
@pytest.mark.parametrize("name", TOLD_BY_COLUMNS)
def test_tables_are_told_by_their_columns(tmp_path, name, write):
    whole, folder = tmp_path / "whole", tmp_path / "folder"
    for made in (whole, folder):
        made.mkdir()
    one_table(whole, name)
    write(folder, name)
    data = open_data(str(folder))
    check_two_samples(data, name)
    # Neither shards nor the order of rows change ids or draws.
    assert sorted(data.ids) == sorted(open_data(str(whole)).ids)
    assert open_data(str(folder), limit=1).ids == open_data(str(whole), limit=1).ids
    assert data.provenance["sources"][0].get("shards") == (2 if write is shards else None)


def test_rows_are_numbered_in_each_shard_anew(tmp_path):
    shards(tmp_path, "pope")
    last = tmp_path / "test-00001-of-00002.parquet"
    table = parquet.read_table(last)
    at, images = table.column_names.index("image"), [{"bytes": b"none", "path": "x"}]
    parquet.write_table(table.set_column(at, "image", [images]), last)
    place = f"{last}, row 1, column image"
    with pytest.raises(NormprobeError, match=re.escape(place)):
        list(open_data(str(tmp_path)))
    data = open_data(str(tmp_path), skip_bad=True)
    assert len(list(data)) == 1
    (row,) = data.bad.skipped
    assert f"{row.file}, row {row.row}, column {row.column}" == place


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["index", "question", "A", "image"], "missing columns question_id; received index"),
        (["a", "a\x1bb"], "missing columns"),
    ],
)
@pytest.mark.parametrize("suffix", ["tsv", "parquet"])
def test_a_table_of_no_benchmark_is_refused(tmp_path, suffix, columns, message):
    path = tmp_path / f"x.{suffix}"
    if suffix == "tsv":
        write_tsv(path, [columns, ["1"] * len(columns)])
    else:
        parquet.write_table(pa.table({name: ["1"] for name in columns}), path)
    with pytest.raises(NormprobeError, match=message) as refusal:
        open_data(str(path))
    assert "\x1b" not in refusal.value.problem  # a file must not steer the terminal


def test_an_option_column_that_is_there_twice_is_refused(tmp_path):
    header = ["index", "question", "A", "A", "image"]
    path = write_tsv(tmp_path / "AI2D_TEST.tsv", [header, ["1", "q", "a", "b", "x"]])
    with pytest.raises(NormprobeError, match="columns A are there twice"):
        open_data(str(path))


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


@pytest.mark.parametrize("name", BENCHMARKS)
def test_columns_of_odd_types_end_in_known_failures(tmp_path, name):
    for odd in ODD.values():
        for column in BENCHMARKS[name].columns:
            table = hub_table(name)
            at = table.column_names.index(column)
            parquet.write_table(table.set_column(at, column, odd), tmp_path / "x.parquet")
            for skip in (False, True):
                try:
                    samples = list(open_data(str(tmp_path / "x.parquet"), skip_bad=skip))
                except NormprobeError as error:
                    assert "\n" not in error.problem
                else:
                    assert all(sample.prompt.strip() for sample in samples)


def test_rows_without_an_id_are_named_by_what_they_hold(tmp_path):
    columns = {
        "dataset": ["x"] * 4,
        "question": ["what is written?"] * 4,
        "question_type": ["y"] * 4,
        "image": [{"bytes": data, "path": ""} for data in (RED, BLUE, GREEN, RED)],
    }
    order, found = list(range(4)), []
    for seed in range(3):
        random.Random(seed).shuffle(order)
        shuffled = {name: [cells[row] for row in order] for name, cells in columns.items()}
        found.append({s.id: s.image_hash for s in from_columns(tmp_path, shuffled)})
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 4
    assert sum(sample_id.endswith("-2") for sample_id in found[0]) == 1  # the red one twice


@pytest.mark.parametrize("file", ["state.json", "dataset_dict.json"])
def test_a_saved_data_set_stays_in_its_folder(tmp_path, file):
    dataset = datasets.Dataset(hub_table("pope"))
    dataset.save_to_disk(tmp_path / "secret")
    folder = tmp_path / "given"
    if file == "state.json":
        dataset.save_to_disk(folder)
        state = (folder / file).read_text()
        (folder / file).write_text(state.replace("data-00000", "../secret/data-00000"))
    else:
        folder.mkdir()
        write_lines(folder / file, {"splits": ["../secret"]})
    with pytest.raises(NormprobeError, match=r"it names .*outside of it"):
        open_data(str(folder))


def test_a_damaged_saved_data_set_is_refused(tmp_path):
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(NormprobeError, match="expected a saved data set"):
        open_data(str(tmp_path))


def hub_dataset(benchmark):
    dataset = datasets.Dataset(hub_table(benchmark)).cast_column("image", datasets.Image())
    url = f"hf://datasets/x/y@{COMMIT}/data/part-0.parquet"
    dataset.info.download_checksums = {url: {"num_bytes": 1, "checksum": None}}
    return dataset


@pytest.fixture
def hub(monkeypatch):
    """``hub(answer)``: what is asked of the hub; ``answer`` is a data set, an error, or makes one
    of an id.
    """

    def answered(answer):
        calls = []

        def load_dataset(repo, config, *, split):
            calls.append((repo, config, split))
            found = answer(repo) if callable(answer) else answer
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        return calls

    return answered


GONE = datasets.exceptions.DatasetNotFoundError("Dataset doesn't exist on the Hub")


@pytest.mark.parametrize(
    ("spec", "call"),
    [
        *((name, PUBLISHED[name].call) for name in BENCHMARKS),
        ("mmbench:test", ("lmms-lab-encoder/MMBench", "en", "test")),
        ("pope:random", ("lmms-lab-encoder/POPE", "Full", "random")),
        ("pope:popular", ("lmms-lab-encoder/POPE", "Full", "popular")),
        ("pope:all", ("lmms-lab-encoder/POPE", "default", "test")),
        ("scienceqa:full", ("lmms-lab-encoder/ScienceQA", "ScienceQA-FULL", "test")),
        ("mmstar:val", ("Lin-Chen/MMStar", None, "val")),
    ],
)
def test_published_columns(hub, spec, call):
    name = spec.partition(":")[0]
    calls = hub(hub_dataset(name))
    data = open_data(spec)
    assert calls == [call]
    assert data.name == spec.replace(":", "-")
    check_two_samples(data, name)
    source = data.provenance["sources"][0]
    assert (source["hub"], source["config"], source["split"]) == call
    assert source["revision"] == COMMIT


ABCD = tuple("ABCD")
ANSWERS = {
    "mmbench": [Answer("A", ("A", "B")), Answer("B", ("A", "B"))],
    "pope": [Answer("yes", ("yes", "no"))] * 2,
    "mmstar": [Answer("C", ABCD), Answer("A", ABCD)],  # its options stand in the question
    "seedbench2plus": [Answer("A", ABCD), Answer("B", ABCD)],
    "ocrbench": [Answer("RED"), Answer("BLUE")],
    "scienceqa": [Answer("A", ("A", "B")), Answer("B", tuple("ABCDE"))],  # they number from 0
    "ai2d": [Answer("A", ABCD), Answer("D", ABCD)],
}


def answers_of(name, hub, monkeypatch, **columns):
    there = PUBLISHED[name]
    monkeypatch.setitem(PUBLISHED, name, replace(there, columns=there.columns | columns))
    hub(hub_dataset(name))
    by_colour = sorted(open_data(name), key=lambda s: s.image.getpixel((0, 0)), reverse=True)
    return [sample.answer for sample in by_colour]


@pytest.mark.parametrize("name", ANSWERS)
def test_right_answers_as_the_prompt_asks_for_them(hub, monkeypatch, name):
    columns = {"answer": ["C", "A"]} if name == "mmstar" else {}
    assert answers_of(name, hub, monkeypatch, **columns) == ANSWERS[name]


@pytest.mark.parametrize("hidden", [None, "", "nan"])
def test_a_hidden_answer_is_none(hub, monkeypatch, hidden):
    answer = [hidden, hidden]
    assert answers_of("seedbench2plus", hub, monkeypatch, answer=answer) == [None, None]


def test_second_id_is_tried_and_recorded(hub):
    hub(lambda repo: GONE if repo == "lmms-lab-encoder/POPE" else hub_dataset("pope"))
    assert open_data("pope").provenance["sources"][0]["hub"] == "lmms-lab/POPE"


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("Couldn't reach 'lmms-lab/POPE' on the Hub (OfflineModeIsEnabled)"),
        ValueError("BuilderConfig 'Full' not found."),
        GONE,
        datasets.exceptions.DatasetGenerationError("An error occurred"),
    ],
)
def test_failure_names_both_ids_and_the_way_out(hub, error):
    hub(error)
    with pytest.raises(
        NormprobeError, match=r"lmms-lab-encoder/POPE: .*; lmms-lab/POPE: "
    ) as refusal:
        open_data("pope")
    assert "--data sample" in refusal.value.remedy
    assert "--data PATH" in refusal.value.remedy


def test_really_offline(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)  # nothing cached
    with pytest.raises(NormprobeError, match="OfflineModeIsEnabled"):
        open_data("mmbench")  # tests/conftest.py sets HF_HUB_OFFLINE


def test_missing_column_names_the_data_set(hub):
    hub(hub_dataset("mmstar").remove_columns("question"))
    with pytest.raises(NormprobeError, match="Lin-Chen/MMStar: missing columns question"):
        open_data("mmstar")


@pytest.mark.parametrize("spec", ["pope:adversarialy", "mmstar:", "ai2d:val"])
def test_unknown_subset_names_those_there_are(spec):
    first = next(iter(BENCHMARKS[spec.partition(":")[0]].subsets))
    with pytest.raises(NormprobeError, match=f"expected one of {first}"):
        open_data(spec)


def test_third_id_of_mmbench_holds_base64(hub):
    images = [base64_image(RED), base64_image(BLUE)]
    columns = PUBLISHED["mmbench"].columns | {"image": images, "index": [5, 1000005]}
    third = datasets.Dataset.from_dict(columns)
    calls = hub(lambda repo: third if repo == "HuggingFaceM4/MMBench" else GONE)
    (sample,) = open_data("mmbench")
    assert calls[-1] == ("HuggingFaceM4/MMBench", None, "validation")
    assert (sample.id, sample.prompt) == ("mmbench/5", PUBLISHED["mmbench"].prompt)
    assert sample.image.getpixel((0, 0)) == (255, 0, 0)


def test_one_bad_image_leaves_the_others(hub):
    dataset = hub_dataset("pope").cast_column("image", datasets.Image(decode=False))
    images = [{"bytes": b"none", "path": None}, dataset[1]["image"]]
    hub(dataset.remove_columns("image").add_column("image", images))
    data = open_data("pope", skip_bad=True)
    assert [sample.id for sample in data] == ["pope/2"]
    (row,) = data.bad.skipped
    assert (row.file, row.row, row.column) == ("lmms-lab-encoder/POPE", 1, "image")
    with pytest.raises(NormprobeError, match="lmms-lab-encoder/POPE, row 1, column image"):
        list(open_data("pope"))


def test_the_papers_draw_names_its_three_sources(hub):
    parts = {PUBLISHED[name].call[0]: name for name in ("mmbench", "pope", "mmstar")}

    def answer(repo):
        name = parts[repo]
        colours = [(row % 256, row // 256, list(parts).index(repo)) for row in range(700)]
        images = [encode(Image.new("RGB", (1, 1), colour), "BMP") for colour in colours]
        columns = {key: [values[0]] * 700 for key, values in PUBLISHED[name].columns.items()}
        columns[{"pope": "question_id"}.get(name, "index")] = [str(row) for row in range(700)]
        columns["image"] = [{"bytes": image} for image in images]
        dataset = datasets.Dataset.from_dict(columns).cast_column("image", datasets.Image())
        dataset.info.download_checksums = {f"hf://datasets/x/y@{COMMIT}/a.parquet": {}}
        return dataset

    calls = hub(answer)
    data = open_data("paper", limit=30)
    assert calls == [PUBLISHED[name].call for name in parts.values()]
    assert (data.name, len(list(data))) == ("paper", 30)
    assert [source["revision"] for source in data.provenance["sources"]] == [COMMIT] * 3


def test_a_question_that_would_be_left_out_is_a_bad_row(tmp_path):
    """A cell ``nan`` is empty: the prompt would be the options alone."""
    columns = PUBLISHED["ai2d"].columns | {"question": ["nan", "Why?"], "image": [PICTURE] * 2}
    with pytest.raises(NormprobeError, match="row 1, column question: expected text, received nan"):
        list(from_columns(tmp_path, columns))


def test_an_answer_by_its_number_counts_options_that_are_left_out(tmp_path):
    cells = {"options": [["nan", "cat", "dog", "ox"]] * 2, "answer": ["1", "9" * 5000]}
    columns = PUBLISHED["ai2d"].columns | cells | {"image": [PICTURE] * 2}
    first, second = from_columns(tmp_path, columns)
    assert first.prompt.split("\n")[1] == "B. cat"
    assert first.answer == Answer("B", ("B", "C", "D"))
    assert second.answer.options == ()
