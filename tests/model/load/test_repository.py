"""Spans of a file on a hub, of a file system that hands over a few bytes at a time."""

from io import BytesIO
from pathlib import Path

import huggingface_hub
import pytest

from normprobe.errors import NormprobeError
from normprobe.model.load.repository import Repository

CONTENT = bytes(range(100))


class Remote(BytesIO):
    """A file that is read in pieces, as a network does."""

    size = len(CONTENT)

    def read(self, size: int | None = -1) -> bytes:
        return super().read(min(7, size or 0))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The places that were opened."""
    places: list[str] = []

    class FileSystem:
        def open(self, place: str, cache_type: str) -> Remote:
            assert cache_type == "none"  # what is read ahead would be fetched for nothing
            places.append(place)
            return Remote(CONTENT)

    monkeypatch.setattr(huggingface_hub, "HfFileSystem", FileSystem)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    return places


@pytest.mark.parametrize(
    ("revision", "place"), [(None, "org/model/a.bin"), ("v1", "org/model@v1/a.bin")]
)
def test_spans_are_read_whole_from_the_begin_and_from_the_end(
    revision: str | None, place: str, opened: list[str]
) -> None:
    repository = Repository("model", "org/model", revision)
    spans = [(3, 25), (50, 51), (-9, 0)]
    read = [(start, bytes(data)) for start, data in repository.read_spans("a.bin", spans)]
    assert read == [(3, CONTENT[3:25]), (50, CONTENT[50:51]), (-9, CONTENT[-9:])]
    assert opened == [place]


def test_a_file_in_the_cache_is_that_of_the_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    cache = tmp_path / "models--org--model"
    (cache / "refs").mkdir(parents=True)
    for revision, commit in (("main", "a" * 40), ("v1", "b" * 40)):
        (cache / "refs" / revision).write_text(commit)
        (cache / "snapshots" / commit).mkdir(parents=True)
        (cache / "snapshots" / commit / "a.bin").write_text(revision)
    for revision, held in ((None, "main"), ("v1", "v1"), ("v2", None)):
        path = Repository("model", "org/model", revision).path_here("a.bin")
        assert (path and path.read_text()) == held


@pytest.mark.usefixtures("opened")
def test_a_file_that_ends_early_is_refused() -> None:
    with pytest.raises(NormprobeError, match="it ends 8 bytes early"):
        list(Repository("model", "org/model", None).read_spans("a.bin", [(80, 108)]))
