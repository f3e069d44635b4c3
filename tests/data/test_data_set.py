import json
import pkgutil
import shutil
import subprocess
import sys
from collections import Counter

import pytest

import normprobe.data
from normprobe.data.data_set import bundled_data_dir, open_data
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


def test_bundled_prompts(bundled):
    prompts = {sample.id: sample.prompt for sample in bundled}
    assert prompts["mmbench/1"] == (
        "Judging by the clothing and the objects in the picture, what is the most likely job of "
        "the woman?\nA. Firefighter\nB. Astronaut\nC. Chef\nD. Surgeon\n"
        "Answer with the option's letter from the given choices directly."
    )
    assert prompts["pope/1"] == (
        "Is there a person in the image?\nAnswer the question using a single word or phrase."
    )
    assert prompts["mmstar/0"] == (
        "What time of day does the picture most likely show?\n"
        "Options: A: Noon with the sun high in the sky, B: Twilight or night, C: A cloudy noon, "
        "D: It is an indoor picture, so there is no sky\n"
        "Answer with the option's letter from the given choices directly"
    )


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


def test_single_file():
    data = open_data(str(bundled_data_dir() / "mmbench_dev_en_sample.tsv"))
    assert (data.name, len(data)) == ("mmbench_dev_en_sample", 10)


def test_files_of_one_benchmark_share_a_folder(tmp_path):
    shutil.copytree(bundled_data_dir() / "images", tmp_path / "images")
    for name in ("coco_pope_random.json", "coco_pope_popular.json"):
        shutil.copy(bundled_data_dir() / "pope_sample.jsonl", tmp_path / name)
    data = open_data(str(tmp_path))
    assert len(data) == len(set(data.ids)) == 60
    assert data.ids[0] == "pope/coco_pope_popular.json/1"


def test_bad_row_stops_the_iteration_there(tmp_path):
    shutil.copytree(bundled_data_dir() / "images", tmp_path / "images")
    lines = (bundled_data_dir() / "pope_sample.jsonl").read_text().splitlines()[:3]
    lines[1] = lines[1].replace("astronaut.jpg", "nobody.jpg")
    (tmp_path / "pope.jsonl").write_text("\n".join(lines))
    samples = iter(open_data(str(tmp_path)))
    assert next(samples).id == "pope/1"
    with pytest.raises(NormprobeError, match=r"pope\.jsonl, line 2, column image: .*nobody\.jpg"):
        next(samples)


def test_unknown_names_and_formats_are_refused(tmp_path):
    with pytest.raises(NormprobeError, match="pairs, boxes, mmbench, mmbench_cn, pope") as refusal:
        open_data("mmbensh")
    assert "--data sample" in refusal.value.remedy
    with pytest.raises(NormprobeError, match="no data file found"):
        open_data(str(tmp_path))
    (tmp_path / "data.xlsx").write_bytes(b"")
    with pytest.raises(NormprobeError, match=r"data\.xlsx: expected \.tsv"):
        open_data(str(tmp_path / "data.xlsx"))


@pytest.mark.parametrize("limit", [0, -1])
def test_limit_below_one_is_refused(limit):
    with pytest.raises(NormprobeError, match="--limit"):
        open_data("sample", limit=limit)


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
