import base64

import datasets
import pytest
from PIL import Image

from data.conftest import encode
from normprobe.data.datasets import BENCHMARKS, open_data
from normprobe.errors import NormprobeError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
IMAGES = [Image.new("RGB", (6, 4), "red"), Image.new("RGB", (4, 6), "blue")]

# The columns of each data set on the hub that matter here.
HUB_ROWS = {
    "mmbench": {
        "index": ["5", "1000005"],
        "question": ["Which?", "Which?"],
        "hint": ["nan", "nan"],
        "answer": ["A", "B"],
        "A": ["cat", "dog"],
        "B": ["dog", "cat"],
        "C": ["nan", "nan"],
        "D": [None, None],
    },
    "pope": {
        "question_id": ["1", "2"],
        "question": ["Is it red?", "Is it?"],
        "answer": ["yes"] * 2,
    },
    "seedbench2plus": {
        "question_id": ["7", "7"],
        "question": ["Which?", "Which one?"],
        "choice_A": ["cat", "dog"],
        "choice_B": ["dog", "cat"],
        "choice_C": ["None", "ox"],
        "choice_D": ["hen", "ox"],
        "answer": ["A", "B"],
    },
    "ocrbench": {
        "dataset": ["IIIT5K"] * 2,
        "question": ["what is written in the image?"] * 2,
        "question_type": ["Regular Text Recognition"] * 2,
        "answer": [["RED"], ["BLUE"]],
    },
    "scienceqa": {
        "question": ["Which?", "Why?"],
        "choices": [["cat", "dog"], ["so", "thus", "hence"]],
        "answer": [0, 1],
        "hint": ["Look.", ""],
    },
    "ai2d": {
        "question": ["Which?", "Why?"],
        "options": [["cat", "dog", "ox", "None"], ["so", "thus", "hence", "then"]],
        "answer": ["0", "1"],
    },
    "mmstar": {
        "index": [0, 1],
        "question": ["Which?\nOptions: A: x", "Which?\nOptions: A: y"],
        "meta_info": [{"source": "x"}] * 2,
    },
}
PROMPTS = {
    "mmbench": "Which?\nA. cat\nB. dog\n"
    "Answer with the option's letter from the given choices directly.",
    "pope": "Is it red?\nAnswer the question using a single word or phrase.",
    "seedbench2plus": "Which?\nA. cat\nB. dog\nC. None\nD. hen\n"
    "Answer with the option's letter from the given choices directly.",
    "ocrbench": "what is written in the image?",
    "scienceqa": "Context: Look.\nWhich?\nA. cat\nB. dog\n"
    "Answer with the option's letter from the given choices directly.",
    "ai2d": "Which?\nA. cat\nB. dog\nC. ox\nD. None\n"
    "Answer with the option's letter from the given choices directly.",
    "mmstar": "Which?\nOptions: A: x\n"
    "Answer with the option's letter from the given choices directly",
}
CALLS = {
    "mmbench": ("lmms-lab-encoder/MMBench", "en", "dev"),
    "pope": ("lmms-lab-encoder/POPE", "Full", "adversarial"),
    "mmstar": ("Lin-Chen/MMStar", None, "val"),
    "seedbench2plus": ("doolayer/SEED-Bench-2-Plus", None, "test"),
    "ocrbench": ("echo840/OCRBench", None, "test"),
    "scienceqa": ("lmms-lab-encoder/ScienceQA", "ScienceQA-IMG", "test"),
    "ai2d": ("lmms-lab-encoder/ai2d", None, "test"),
}


def hub_dataset(benchmark):
    dataset = datasets.Dataset.from_dict(HUB_ROWS[benchmark] | {"image": IMAGES})
    dataset = dataset.cast_column("image", datasets.Image())
    url = f"hf://datasets/x/y@{COMMIT}/data/part-0.parquet"
    dataset.info.download_checksums = {url: {"num_bytes": 1, "checksum": None}}
    return dataset


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_published_columns(monkeypatch, benchmark):
    calls = []

    def load_dataset(repo, config, *, split):
        calls.append((repo, config, split))
        return hub_dataset(benchmark)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data = open_data(benchmark)
    samples = list(data)
    assert calls == [CALLS[benchmark]]
    assert data.name == benchmark
    assert len(samples) == (1 if benchmark == "mmbench" else 2)
    assert samples[0].prompt == PROMPTS[benchmark]
    assert samples[0].image.getpixel((0, 0)) == (255, 0, 0)
    source = data.provenance["sources"][0]
    assert (source["hub"], source["config"], source["split"]) == CALLS[benchmark]
    assert source["revision"] == COMMIT


def test_second_id_is_tried_and_recorded(monkeypatch):
    def load_dataset(repo, config, *, split):
        if repo == "lmms-lab-encoder/POPE":
            raise datasets.exceptions.DatasetNotFoundError("Dataset doesn't exist on the Hub")
        return hub_dataset("pope")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert open_data("pope").provenance["sources"][0]["hub"] == "lmms-lab/POPE"


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("Couldn't reach 'lmms-lab/POPE' on the Hub (OfflineModeIsEnabled)"),
        ValueError("BuilderConfig 'Full' not found."),
        datasets.exceptions.DatasetNotFoundError("Dataset is a gated dataset on the Hub."),
        datasets.exceptions.DatasetGenerationError("An error occurred"),
    ],
)
def test_failure_names_both_ids_and_the_way_out(monkeypatch, error):
    def load_dataset(*_, **__):
        raise error

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(
        NormprobeError, match=r"lmms-lab-encoder/POPE: .*; lmms-lab/POPE: "
    ) as refusal:
        open_data("pope")
    assert "--data sample" in refusal.value.remedy
    assert "--data PATH" in refusal.value.remedy


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_really_offline(monkeypatch, tmp_path, benchmark):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)  # nothing cached
    with pytest.raises(NormprobeError, match="OfflineModeIsEnabled"):
        open_data(benchmark)  # tests/conftest.py sets HF_HUB_OFFLINE


def test_missing_column_names_the_data_set(monkeypatch):
    dataset = hub_dataset("mmstar").remove_columns("question")
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: dataset)
    with pytest.raises(NormprobeError, match="Lin-Chen/MMStar: missing columns question"):
        open_data("mmstar")


SUBSETS = [
    ("mmbench:test", "lmms-lab-encoder/MMBench", "en", "test"),
    ("pope:random", "lmms-lab-encoder/POPE", "Full", "random"),
    ("pope:popular", "lmms-lab-encoder/POPE", "Full", "popular"),
    ("pope:all", "lmms-lab-encoder/POPE", "default", "test"),
    ("scienceqa:full", "lmms-lab-encoder/ScienceQA", "ScienceQA-FULL", "test"),
    ("mmstar:val", "Lin-Chen/MMStar", None, "val"),
]


@pytest.mark.parametrize("call", SUBSETS)
def test_subsets(monkeypatch, call):
    spec, *expected = call
    calls = []

    def load_dataset(repo, config, *, split):
        calls.append([repo, config, split])
        return hub_dataset(spec.partition(":")[0])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data = open_data(spec)
    assert calls == [expected]
    assert data.name == spec.replace(":", "-")


@pytest.mark.parametrize("spec", ["pope:adversarialy", "mmstar:", "ai2d:val"])
def test_unknown_subset_names_those_there_are(spec):
    name = spec.partition(":")[0]
    with pytest.raises(
        NormprobeError, match=f"expected one of {next(iter(BENCHMARKS[name].subsets))}"
    ):
        open_data(spec)


def test_third_id_of_mmbench_holds_base64(monkeypatch):
    columns = HUB_ROWS["mmbench"] | {"image": [png_text(image) for image in IMAGES]}
    calls = []

    def load_dataset(repo, config, *, split):
        calls.append((repo, config, split))
        if repo != "HuggingFaceM4/MMBench":
            raise datasets.exceptions.DatasetNotFoundError("Dataset doesn't exist on the Hub")
        return datasets.Dataset.from_dict(columns | {"index": [5, 1000005]})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    (sample,) = open_data("mmbench")
    assert calls[-1] == ("HuggingFaceM4/MMBench", None, "validation")
    assert (sample.id, sample.prompt) == ("mmbench/5", PROMPTS["mmbench"])
    assert sample.image.getpixel((0, 0)) == (255, 0, 0)


def test_one_bad_image_leaves_the_others(monkeypatch):
    dataset = hub_dataset("pope").cast_column("image", datasets.Image(decode=False))
    images = [{"bytes": b"none", "path": None}, dataset[1]["image"]]
    broken = dataset.remove_columns("image").add_column("image", images)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: broken)
    data = open_data("pope", skip_bad=True)
    assert [sample.id for sample in data] == ["pope/2"]
    (row,) = data.bad.skipped
    assert (row.file, row.row, row.column) == ("lmms-lab-encoder/POPE", 1, "image")
    with pytest.raises(NormprobeError, match="lmms-lab-encoder/POPE, row 1, column image"):
        list(open_data("pope"))


def test_the_papers_draw_names_its_three_sources(monkeypatch):
    calls = []

    def load_dataset(repo, config, *, split):
        name = next(name for name, call in CALLS.items() if call == (repo, config, split))
        calls.append(name)
        rows = range(700)
        dataset = datasets.Dataset.from_dict(
            {
                **{key: [values[0]] * 700 for key, values in HUB_ROWS[name].items()},
                {"pope": "question_id"}.get(name, "index"): [str(row) for row in rows],
                "image": [pixel(row + 700 * len(calls)) for row in rows],
            }
        ).cast_column("image", datasets.Image())
        dataset.info.download_checksums = {f"hf://datasets/x/y@{COMMIT}/a.parquet": {}}
        return dataset

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data = open_data("paper", limit=30)
    assert calls == ["mmbench", "pope", "mmstar"]
    assert (data.name, len(list(data))) == ("paper", 30)
    assert [source["revision"] for source in data.provenance["sources"]] == [COMMIT] * 3


def pixel(number):
    return {"bytes": encode(Image.new("RGB", (1, 1), (number % 256, number // 256, 0)), "BMP")}


def png_text(image):
    return base64.b64encode(encode(image)).decode()
