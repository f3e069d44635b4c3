import os
import struct
import zlib
from pathlib import Path

import pytest
from PIL import Image
from support import made_tables
from support.made_runs import run_folder

from normprobe.errors import NormprobeError
from normprobe.run import load_run, page_of
from normprobe.runs.files import is_own, own_files, own_picture
from normprobe.runs.run_folder import read_image


def test_links_out_of_a_folder_and_pipes_are_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("key")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/a.csv").write_text("key")
    run = tmp_path / "run"
    run.mkdir()
    (run / "layers.csv").write_text("layer\n")
    (run / "inside.csv").symlink_to(run / "layers.csv")
    (run / "link.csv").symlink_to(tmp_path / "secret.csv")
    (run / "broken.csv").symlink_to(tmp_path / "absent")
    (run / "folder.csv").mkdir()
    (run / "plots").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(run / "pipe.csv")
    assert [file.name for file in own_files(run, "*.csv")] == ["inside.csv", "layers.csv"]
    assert not is_own(run / "plots/a.csv", run)
    (tmp_path / "linked").symlink_to(run)  # the folder itself may be reached by a link
    assert is_own(tmp_path / "linked/layers.csv", tmp_path / "linked")


def png(width: int, height: int) -> bytes:
    """A picture of one grey level; of a large one the first rows: no more is to be read."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    rows = zlib.compressobj()
    line = b"\0" * (1 + -(-width // 8))  # of one bit a pixel
    data = b"".join(rows.compress(line) for _ in range(min(height, 300))) + rows.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    ending = chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + ending


@pytest.mark.parametrize("side", [9_000, 13_000, 30_000])  # Pillow warns at 9,500, fails at 13,400
def test_pictures_are_bounded_before_they_are_read(side: int, tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", "layers", layers=made_tables.layers())
    (run / "plots").mkdir(exist_ok=True)
    (run / "plots/mine.png").write_bytes(png(side, side))
    (run / "image.png").write_bytes(png(side, side))
    with pytest.raises(NormprobeError, match=r"mine\.png: .* pixels"):
        page_of([load_run(run)])
    with pytest.raises(NormprobeError, match=r"image\.png: .* pixels"):
        read_image(run, "image")


def test_pictures_of_a_usual_size_are_read(tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(png(300, 200))
    assert read_image(tmp_path, "image").shape == (200, 300, 3)


@pytest.mark.parametrize("kind", ["GIF", "TIFF"])
def test_no_other_decoder_is_asked(kind: str, tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png", format=kind)
    with pytest.raises(OSError, match="cannot identify"), own_picture(tmp_path / "a.png", tmp_path):
        pass


@pytest.mark.parametrize("name", ["layers.csv", "run.json"])
def test_tables_are_bounded_before_they_are_read(name: str, tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", "layers", layers=made_tables.layers())
    with (run / name).open("r+b") as file:
        file.truncate(2**40)  # with a hole: no disk is taken
    with pytest.raises(NormprobeError, match="expected 128 MB at most, received 1048576"):
        _ = load_run(run).table
