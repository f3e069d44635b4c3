import datasets
import pytest
from PIL import Image

from data.files import encode
from data.published import BLUE, PUBLISHED, RED, base64_image, hub_table
from normprobe.data.benchmarks import BENCHMARKS
from normprobe.data.data_set import open_data
from normprobe.errors import NormprobeError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def hub_dataset(benchmark):
    dataset = datasets.Dataset(hub_table(benchmark)).cast_column("image", datasets.Image())
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
    assert calls == [PUBLISHED[benchmark].call]
    assert data.name == benchmark
    assert len(samples) == 2
    assert samples[0].prompt == PUBLISHED[benchmark].prompt
    assert samples[0].image.getpixel((0, 0)) == (255, 0, 0)
    source = data.provenance["sources"][0]
    assert (source["hub"], source["config"], source["split"]) == PUBLISHED[benchmark].call
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
    images = [base64_image(RED), base64_image(BLUE)]
    columns = PUBLISHED["mmbench"].columns | {"image": images, "index": [5, 1000005]}
    calls = []

    def load_dataset(repo, config, *, split):
        calls.append((repo, config, split))
        if repo != "HuggingFaceM4/MMBench":
            raise datasets.exceptions.DatasetNotFoundError("Dataset doesn't exist on the Hub")
        return datasets.Dataset.from_dict(columns)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    (sample,) = open_data("mmbench")
    assert calls[-1] == ("HuggingFaceM4/MMBench", None, "validation")
    assert (sample.id, sample.prompt) == ("mmbench/5", PUBLISHED["mmbench"].prompt)
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
        name = next(
            name for name, known in PUBLISHED.items() if known.call == (repo, config, split)
        )
        calls.append(name)
        rows = range(700)
        dataset = datasets.Dataset.from_dict(
            {
                **{key: [values[0]] * 700 for key, values in PUBLISHED[name].columns.items()},
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
