"""config.json as it stands in its file; nothing where it cannot be read."""

from pathlib import Path

import pytest

from normprobe.model.config import read_config_file


def test_the_fields_are_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llava"}')
    assert read_config_file(tmp_path / "config.json") == {"model_type": "llava"}


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_what_cannot_be_read_has_no_fields(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    assert read_config_file(tmp_path / "config.json") == {}


def test_no_file_has_no_fields(tmp_path: Path) -> None:
    assert read_config_file(None) == read_config_file(tmp_path / "absent.json") == {}
