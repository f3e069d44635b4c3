import errno
import os
from pathlib import Path

import pytest

from normprobe.errors import NormprobeError
from normprobe.runs.files import write_by_rename


def test_the_file_appears_whole_and_parents_are_made(tmp_path):
    path = tmp_path / "a" / "b.txt"
    write_by_rename(path, b"one")
    write_by_rename(path, b"two")
    assert path.read_bytes() == b"two"
    assert [file.name for file in path.parent.iterdir()] == ["b.txt"]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "no space left in {}"),
        (errno.EDQUOT, "no space left in {}"),
        (errno.EACCES, "{} is not writable"),
        (errno.EROFS, "{} is not writable"),
        (errno.EIO, "cannot write in {}"),
    ],
)
def test_a_refusal_names_the_folder_and_leaves_the_old_file(tmp_path, monkeypatch, number, words):
    path = tmp_path / "b.txt"
    write_by_rename(path, b"old")

    def half_a_write(descriptor):
        os.ftruncate(descriptor, 2)
        raise OSError(number, "refused")

    monkeypatch.setattr(os, "fsync", half_a_write)
    with pytest.raises(NormprobeError) as caught:
        write_by_rename(path, b"new content")
    assert words.format(tmp_path) in caught.value.problem
    assert "complete parts are kept" in caught.value.remedy
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_interrupt_leaves_no_temporary_file(tmp_path, monkeypatch):
    def interrupted(self, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_by_rename(tmp_path / "b.txt", b"new")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_the_folder(tmp_path):
    (tmp_path / "a").write_text("a file")
    with pytest.raises(NormprobeError, match="cannot write in"):
        write_by_rename(tmp_path / "a" / "b.txt", b"new")
