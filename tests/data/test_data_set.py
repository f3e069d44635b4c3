"""Data sets by name: what is bundled, the draw of ``--limit`` and that of the paper."""

import base64
import hashlib
import json
import pkgutil
import random
import shutil
import subprocess
import sys
from collections import Counter

import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

import normprobe.data
from data.published import encode, write_mmbench
from normprobe.data import data_set
from normprobe.data.data_set import bundled_data_dir, draw_questions, open_data
from normprobe.data.question import Question
from normprobe.errors import NormprobeError


@pytest.fixture(scope="module")
def bundled():
    return list(open_data("sample"))


def test_bundled_questions(bundled):
    data = open_data("sample")
    assert (data.name, len(data)) == ("sample", 56)
    assert data.ids == [sample.id for sample in bundled]
    assert len(set(data.ids)) == 56
    counts = Counter(sample_id.split("/")[0] for sample_id in data.ids)
    assert counts == {"mmbench": 10, "pope": 30, "mmstar": 16}


def test_bundled_images_are_photographs(bundled):
    for sample in bundled:
        assert sample.image.mode == "RGB"
        assert min(sample.image.size) >= 200
        assert len(sample.image.convert("L").getcolors()) > 100  # shades
    assert len({sample.image_hash for sample in bundled}) >= 10


def test_iteration_is_repeatable_and_limited():
    data = open_data("sample", limit=5)
    first, second = list(data), list(data)
    assert [sample.id for sample in first] == data.ids == open_data("sample", limit=9).ids[:5]
    assert [sample.image_hash for sample in first] == [sample.image_hash for sample in second]
    assert open_data("sample", limit=5, seed=1).ids != data.ids


def test_a_subset_follows_its_ids():
    data = open_data("sample", limit=5)
    first, *_, last = data.ids
    assert data.subset([last, first]).ids == [last, first]


def test_provenance_is_json_and_names_file_seed_limit_and_wording():
    data = open_data("sample", limit=3, seed=7)
    provenance = json.loads(json.dumps(data.provenance))
    assert (provenance["data"], provenance["seed"], provenance["limit"]) == ("sample", 7, 3)
    pope = next(s for s in provenance["sources"] if s["benchmark"] == "pope")
    assert pope == {
        "benchmark": "pope",
        "path": str(bundled_data_dir() / "pope_sample.jsonl"),
        "prompt": "{question}\nAnswer the question using a single word or phrase.",
        "questions": 30,
    }


def test_files_of_one_benchmark_share_a_folder(tmp_path):
    shutil.copytree(bundled_data_dir() / "images", tmp_path / "images")
    for name in ("coco_pope_random.json", "coco_pope_popular.json"):
        shutil.copy(bundled_data_dir() / "pope_sample.jsonl", tmp_path / name)
    data = open_data(str(tmp_path))
    assert len(data) == len(set(data.ids)) == 60
    assert data.ids[0] == "pope/coco_pope_popular.json/1"


def test_unknown_names_and_formats_are_refused(tmp_path):
    with pytest.raises(
        NormprobeError, match="boxes, scenes, turns, mixed, mmbench, mmbench_cn, pope"
    ) as refusal:
        open_data("mmbensh")
    assert "--data sample" in refusal.value.remedy
    with pytest.raises(NormprobeError, match="no data file found"):
        open_data(str(tmp_path))
    (tmp_path / "data.xlsx").write_bytes(b"")
    with pytest.raises(NormprobeError, match=r"data\.xlsx: expected \.csv"):
        open_data(str(tmp_path / "data.xlsx"))


@pytest.mark.parametrize("limit", [0, -1])
def test_limit_below_one_is_refused(limit):
    with pytest.raises(NormprobeError, match="--limit"):
        open_data("sample", limit=limit)


def test_pairs():
    pairs = list(open_data("pairs"))
    assert [len(sample.images) for sample in pairs] == [2, 2]
    assert [sample.is_marked for sample in pairs] == [True, False]
    hashes = {sample.image_hash for sample in open_data("sample")}
    assert {single for sample in pairs for single in sample.image_hashes} <= hashes


def test_boxes():
    """That words stand in their prompts, and boxes in their pictures, is checked on the way."""
    boxes = list(open_data("boxes"))
    assert len(boxes) == 14
    assert len({(sample.image_hash, sample.referent.word) for sample in boxes}) == 14
    assert len({sample.image_hash for sample in boxes}) == 7


@pytest.mark.parametrize(
    ("folders", "found"),
    [
        (["benchmarks_data"], "benchmarks_data"),  # a checkout
        (["benchmarks_data", "normprobe/data/bundled"], "normprobe/data/bundled"),  # a wheel
        ([], None),
    ],
)
def test_where_the_bundle_is(tmp_path, monkeypatch, folders, found):
    monkeypatch.setattr(data_set, "__file__", str(tmp_path / "normprobe/data/data_set.py"))
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    if found is None:
        with pytest.raises(NormprobeError, match="bundled questions are missing"):
            bundled_data_dir()
    else:
        assert bundled_data_dir() == tmp_path / found


def no_load():
    raise AssertionError("a draw must not read rows")


QUESTIONS = [
    Question(benchmark, str(key), no_load) for benchmark in ("mmbench", "pope") for key in range(50)
]


def test_a_draw_follows_the_published_rule_whatever_the_order_of_rows():
    def rule(question):
        return hashlib.sha256(f"42|{question.benchmark}|{question.key}".encode()).hexdigest()

    expected = sorted(QUESTIONS, key=rule)
    for seed in range(3):
        shuffled = random.Random(seed).sample(QUESTIONS, len(QUESTIONS))
        for limit in (5, 20, 1000):
            assert draw_questions(shuffled, limit, seed=42) == expected[:limit]
    assert draw_questions(QUESTIONS, None, seed=1) == QUESTIONS
    assert draw_questions(QUESTIONS, 20, seed=43) != expected[:20]


THIRDS = ("adversarial", "random")
SHARES = {"mmbench": 334, "pope": 333, "mmstar": 333}
# (key, picture): some pictures are asked about twice, some in two benchmarks.
ROWS = {
    "mmbench": [(str(key), key % 390) for key in range(420)],
    "pope": [(str(key), 350 + key // 2) for key in range(1, 901)],
    "mmstar": [(str(key), 700 + key % 500) for key in range(600)],
}


def png(number):
    """Pictures that differ in every number."""
    return encode(Image.new("RGB", (4, 2), (number % 256, number // 256, 7)))


def write(folder, rows):
    folder.mkdir()
    cells = [
        [key, "Which?", "", "a", "b", "", "", base64.b64encode(png(picture)).decode()]
        for key, picture in rows["mmbench"]
    ]
    copies = [["1000007", "Which?", "", "b", "a", "", "", "7"]]
    write_mmbench(folder / "MMBench_DEV_EN.tsv", *cells, *copies)
    for name, key, file in (
        ("pope", "question_id", "POPE_adversarial"),
        ("mmstar", "index", "mmstar"),
    ):
        table = {
            key: [key for key, _ in rows[name]],
            "question": ["Is it?"] * len(rows[name]),
            "image": [{"bytes": png(picture), "path": ""} for _, picture in rows[name]],
        }
        if name == "mmstar":
            table["meta_info"] = [""] * len(rows[name])
        parquet.write_table(pa.table(table), folder / f"{file}.parquet")
    return open_data(f"paper:{folder}", seed=3)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return write(tmp_path_factory.mktemp("paper") / "data", ROWS)


def test_the_papers_rule(drawn):
    seen, expected = set(), []
    for name, share in SHARES.items():
        order = sorted(
            ROWS[name], key=lambda row: hashlib.sha256(f"3|{name}|{row[0]}".encode()).hexdigest()
        )
        mine = []
        for key, picture in order:
            if picture not in seen and len(mine) < share:
                seen.add(picture)
                mine.append(f"{name}/{key}")
        expected += mine
    assert drawn.ids == expected
    assert Counter(sample_id.split("/")[0] for sample_id in drawn.ids) == SHARES
    assert len({sample.image_hash for sample in drawn}) == len(drawn) == 1000


def test_row_order_does_not_matter(drawn, tmp_path):
    shuffled = {name: random.Random(name).sample(rows, len(rows)) for name, rows in ROWS.items()}
    assert write(tmp_path / "shuffled", shuffled).ids == drawn.ids


def test_limit_and_seed_of_the_papers_draw(drawn):
    folder = drawn.provenance["data"]
    few = open_data(folder, seed=3, limit=9)
    assert set(few.ids) < set(drawn.ids)
    assert few.ids == open_data(folder, seed=3, limit=20).ids[:9]
    assert set(open_data(folder, seed=4).ids) != set(drawn.ids)


def test_other_thirds_of_pope_are_left_alone(drawn, tmp_path):
    write(tmp_path / "data", ROWS)
    adversarial, other = (tmp_path / f"data/POPE_{third}.parquet" for third in THIRDS)
    table = parquet.read_table(adversarial)
    parquet.write_table(table, other)
    assert open_data(f"paper:{tmp_path / 'data'}", seed=3).ids == drawn.ids
    # One table of all thirds, as the default configuration on the hub.
    adversarial.unlink()
    thirds = [
        table.append_column("category", pa.array([name] * len(table))) for name in reversed(THIRDS)
    ]
    parquet.write_table(pa.concat_tables(thirds), other)
    assert open_data(f"paper:{tmp_path / 'data'}", seed=3).ids == drawn.ids


def test_a_bad_row_gives_its_place_to_the_next(drawn, tmp_path):
    first = drawn.ids[0].removeprefix("mmbench/")
    write(tmp_path / "data", ROWS)
    path = tmp_path / "data/MMBench_DEV_EN.tsv"
    lines = path.read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith(f"{first}\t"))
    lines[at] = lines[at].rsplit("\t", 1)[0] + "\t" + "*" * 80
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(NormprobeError, match=f"row {at}, column image: expected base64"):
        open_data(f"paper:{path.parent}", seed=3)
    data = open_data(f"paper:{path.parent}", seed=3, skip_bad=True)
    assert len(data) == 1000
    assert drawn.ids[0] not in data.ids
    assert [row.sample for row in data.bad.skipped] == [drawn.ids[0]]


def test_too_little_to_draw_from(tmp_path):
    with pytest.raises(NormprobeError, match="expected a folder"):
        open_data(f"paper:{tmp_path}/none")
    few = ROWS | {"mmstar": ROWS["mmstar"][:300]}
    with pytest.raises(NormprobeError, match=r"mmstar: expected 333 questions .* received"):
        write(tmp_path / "few", few)
    (tmp_path / "few/mmstar.parquet").unlink()
    with pytest.raises(NormprobeError, match=r"expected one file of mmstar \(val\), received 0"):
        open_data(f"paper:{tmp_path / 'few'}")


def test_importing_the_room_loads_nothing_heavy():
    modules = pkgutil.iter_modules(normprobe.data.__path__, "normprobe.data.")
    heavy = "torch transformers datasets pandas pyarrow numpy"
    code = (
        f"import sys, {', '.join(module.name for module in modules)}; "
        f"print([name for name in '{heavy}'.split() if name in sys.modules])"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "[]"
