"""What each benchmark asks, in the wording it was published with, from its own tables."""

import pyarrow as pa
import pytest
from pyarrow import parquet

from data.files import write_tsv
from data.published import (
    LETTER,
    MMBENCH_COLUMNS,
    PUBLISHED,
    RED,
    base64_image,
    mmbench_row,
    write_mmbench,
)
from normprobe.data.benchmarks import BENCHMARKS, Benchmark, HubSource
from normprobe.data.data_set import open_data
from normprobe.data.local import read_file
from normprobe.data.rows import BadRows
from normprobe.errors import NormprobeError


def mmbench(tmp_path, *rows):
    return read_file(write_mmbench(tmp_path / "mmbench.tsv", *rows), BadRows()).questions


def mmbench_prompt(tmp_path, **cells):
    return mmbench(tmp_path, mmbench_row(1, **cells))[0].load()[0]


def test_mmbench(tmp_path):
    assert mmbench_prompt(
        tmp_path,
        question="Which animal?",
        hint="Look closely.",
        options=("cat", "dog", "ox", "hen"),
    ) == (
        "Look closely.\nWhich animal?\nA. cat\nB. dog\nC. ox\nD. hen\n"
        "Answer with the option's letter from the given choices directly."
    )


@pytest.mark.parametrize("empty", ["", "nan"])
def test_mmbench_without_hint_and_with_two_options(tmp_path, empty):
    assert mmbench_prompt(tmp_path, hint=empty, options=("cat", "dog", empty, empty)) == (
        "What?\nA. cat\nB. dog\nAnswer with the option's letter from the given choices directly."
    )


def test_a_choice_keeps_its_letter_where_one_before_it_is_absent(tmp_path):
    assert "\nA. cat\nC. ox\n" in mmbench_prompt(tmp_path, options=("cat", "", "ox", ""))


def test_mmbench_options_that_pandas_would_drop(tmp_path):
    assert mmbench_prompt(tmp_path, options=("None", "NA", "null", "N/A")) == (
        "What?\nA. None\nB. NA\nC. null\nD. N/A\n"
        "Answer with the option's letter from the given choices directly."
    )


def test_braces_in_a_cell_stay(tmp_path):
    assert mmbench_prompt(tmp_path, question="What is {A}?").startswith("What is {A}?\nA. a\n")


def test_mmbench_circular_copies_are_no_questions(tmp_path):
    questions = mmbench(
        tmp_path, mmbench_row(7), mmbench_row(1_000_007, image="7"), mmbench_row(999_999)
    )
    assert [question.id for question in questions] == ["mmbench/7", "mmbench/999999"]


def test_mmstar(tmp_path, red_png):
    columns = {
        "index": [0],
        "question": ["Which?\nOptions: A: cat, B: dog, C: ox, D: hen"],
        "image": [{"bytes": red_png, "path": None}],
        "meta_info": [{"source": "x"}],
    }
    parquet.write_table(pa.table(columns), tmp_path / "val.parquet")
    (question,) = read_file(tmp_path / "val.parquet", BadRows()).questions
    prompt, (image,), _ = question.load()
    assert question.id == "mmstar/0"
    assert prompt == (
        "Which?\nOptions: A: cat, B: dog, C: ox, D: hen\n"
        "Answer with the option's letter from the given choices directly"
    )
    assert image.size == (6, 4)


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
    columns = PUBLISHED["scienceqa"].columns | {"image": [None, {"bytes": RED, "path": ""}]}
    parquet.write_table(pa.table(columns), tmp_path / "test.parquet")
    text, picture = open_data(str(tmp_path))
    assert (text.image, text.image_hash) == (None, None)
    assert picture.image.size == (6, 4)


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
    image = {"bytes": RED, "path": ""}
    columns = {"id": ["x"], "question": ["Which?"], "answers": [["cat", "dog"]], "image": [image]}
    parquet.write_table(pa.table(columns), tmp_path / "test.parquet")
    (sample,) = open_data(str(tmp_path))
    assert (sample.id, sample.prompt) == ("new/x", "Which?\nA. cat\nB. dog")
    with pytest.raises(NormprobeError, match=r"pairs, boxes, mmbench, .*, ai2d, new, paper"):
        open_data("newer")
