import pytest

from normprobe.data import data_set
from normprobe.data.data_set import bundled_data_dir, open_data
from normprobe.errors import NormprobeError


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "normprobe" / "data"
    folder.mkdir(parents=True)
    monkeypatch.setattr(data_set, "__file__", str(folder / "bundle.py"))
    return folder


def test_checkout(package, tmp_path):
    (tmp_path / "benchmarks_data").mkdir()
    assert bundled_data_dir() == tmp_path / "benchmarks_data"


def test_installed_wheel(package, tmp_path):
    (tmp_path / "benchmarks_data").mkdir()
    (package / "bundled").mkdir()
    assert bundled_data_dir() == package / "bundled"


def test_neither_is_refused(package):
    with pytest.raises(NormprobeError, match="bundled questions are missing"):
        bundled_data_dir()


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
