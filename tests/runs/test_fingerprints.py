"""Fingerprints of local files: by content, in folders below folders, large files by blocks."""

import os
from pathlib import Path

from normprobe.runs.fingerprints import fingerprints


def test_files_below_a_folder_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    for name in ("a.txt", "below/a.txt", ".cache/a.txt", "below/__pycache__/a.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    single = tmp_path / "below/a.txt"
    found = fingerprints(str(tmp_path), str(single), "org/model")
    assert sorted(found) == ["0:a.txt", "0:below/a.txt", "1:a.txt"]
    assert found["0:below/a.txt"] == found["1:a.txt"] != found["0:a.txt"]


def test_a_copy_is_the_same_and_a_byte_makes_another(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"weights")
    (tmp_path / "b").write_bytes(b"weights")
    (tmp_path / "c").write_bytes(b"weightS")
    os.utime(tmp_path / "b", (1, 1))
    found = fingerprints(str(tmp_path))
    assert found["0:a"] == found["0:b"] != found["0:c"]


def test_a_large_file_is_read_in_blocks_and_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    length = 64 << 20
    file.touch()
    os.truncate(file, length)
    before = fingerprints(str(file))
    for at in (0, length - 1):
        with file.open("r+b") as content:
            content.seek(at)
            content.write(b"x")
        after = fingerprints(str(file))
        assert after != before
        before = after
    os.truncate(file, length + 1)
    assert fingerprints(str(file)) != before
