import base64
import io
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from PIL import Image

from data.published import encode
from normprobe.data.images import (
    FORMATS,
    decode_base64,
    decode_image,
    decode_image_cell,
    image_hash,
    read_image_file,
)
from normprobe.data.rows import Place
from normprobe.errors import NormprobeError

WHERE = Place("file.tsv", 3, "image")


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds no pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def palette():
    image = Image.new("P", (2, 2), 0)
    image.putpalette([0, 0, 200, 0, 200, 0])
    return image


def numbers(*values, dtype):
    return Image.fromarray(np.array([values], dtype=dtype))


@pytest.mark.parametrize(
    ("image", "expected", "options"),
    [
        (Image.new("RGB", (2, 2), (10, 20, 30)), [(10, 20, 30)], {}),
        (Image.new("L", (2, 2), 77), [(77, 77, 77)], {}),
        (Image.new("1", (2, 2), 1), [(255, 255, 255)], {}),
        (Image.new("RGBA", (2, 2), (255, 0, 0, 0)), [(255, 255, 255)], {}),
        (Image.new("RGBA", (2, 2), (255, 0, 0, 51)), [(255, 204, 204)], {}),
        (Image.new("LA", (2, 2), (0, 0)), [(255, 255, 255)], {}),
        (Image.new("LA", (2, 2), (10, 255)), [(10, 10, 10)], {}),
        (palette(), [(0, 0, 200)], {}),
        (palette(), [(255, 255, 255)], {"transparency": 0}),
        (Image.new("RGB", (2, 2), (1, 2, 3)), [(255,) * 3], {"transparency": (1, 2, 3)}),
        # 16 bits are scaled, not clipped; wider integers and floats span black to white
        (numbers(65535, 30000, 200, 0, dtype=np.uint16), [255, 117, 1, 0], {}),
        (numbers(0.0, 0.5, 1.0, dtype=np.float32), [0, 128, 255], {"file_format": "TIFF"}),
        (numbers(-100_000, 0, 100_000, dtype=np.int32), [0, 128, 255], {"file_format": "TIFF"}),
        (numbers(-(2**31), 0, 2**31 - 1, dtype=np.int32), [0, 128, 255], {"file_format": "TIFF"}),
        (numbers(np.nan, np.nan, dtype=np.float32), [0, 0], {"file_format": "TIFF"}),
        (numbers(7.0, 7.0, dtype=np.float32), [7, 7], {"file_format": "TIFF"}),
        (numbers(0, 128, 255, dtype=np.int32), [0, 128, 255], {"file_format": "TIFF"}),
        (numbers(0, 32768, 65535, dtype=np.int32), [0, 128, 255], {"file_format": "TIFF"}),
        (numbers(0, 10, 200, dtype=np.float32), [0, 10, 200], {"file_format": "TIFF"}),
        (numbers(0.0, 0.25, dtype=np.float32), [0, 64], {"file_format": "TIFF"}),
    ],
)
def test_what_a_viewer_would_show(image, expected, options):
    picture = decode_image(encode(image, **options), WHERE)
    assert picture.mode == "RGB"
    shown = [colour if isinstance(colour, tuple) else (colour,) * 3 for colour in expected]
    assert [picture.getpixel((x, 0)) for x in range(len(shown))] == shown


def test_wide_samples_are_scaled_a_part_at_a_time():
    """In float64 all at once, the few kB of a picture took 40 bytes a pixel."""
    samples = np.arange(1500 * 2000, dtype=np.uint16).reshape(1500, 2000)
    data = encode(Image.fromarray(samples))
    tracemalloc.start()
    try:
        picture = decode_image(data, WHERE)
        assert tracemalloc.get_traced_memory()[1] < 12 * samples.size + 2**25
    finally:
        tracemalloc.stop()
    expected = np.round(samples.astype(np.float64) / 65535 * 255)
    np.testing.assert_array_equal(np.asarray(picture)[..., 0], expected)


def test_cmyk_jpeg():
    red = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    picture = decode_image(encode(red, "JPEG", quality=100), WHERE)
    assert np.allclose(picture.getpixel((0, 0)), (255, 0, 0), atol=3)


def test_exif_rotation_is_applied():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode(Image.new("RGB", (40, 20)), "JPEG", exif=exif)
    assert decode_image(data, WHERE).size == (20, 40)


def test_animation_gives_its_first_frame():
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    data = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode_image(data, WHERE).getpixel((0, 0)) == (255, 0, 0)


def test_truncated_jpeg_is_refused():
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))
    data = encode(noise, "JPEG")
    decode_image(data, WHERE)
    Image.open(io.BytesIO(data[:-200]))  # the header alone is fine
    with pytest.raises(NormprobeError, match="row 3, column image: the image cannot be decoded"):
        decode_image(data[:-200], WHERE)


@pytest.mark.parametrize("data", [b"", b"<svg/>", b"\xff\xd8\xff", png_header(0, 0)])
def test_bytes_that_are_no_image_are_refused(data):
    with pytest.raises(NormprobeError, match="row 3, column image"):
        decode_image(data, WHERE)


@pytest.mark.parametrize("side", [10_000, 20_000])  # Pillow warns at the first, fails at the second
def test_decompression_bomb_is_refused(side):
    with pytest.raises(NormprobeError, match="decompression bomb"):
        decode_image(png_header(side, side), WHERE)


def test_image_cell(red_png):
    assert decode_image_cell({"bytes": red_png, "path": None}, WHERE).size == (6, 4)


@pytest.mark.parametrize("cell", [None, {}, {"bytes": None, "path": "/etc/passwd"}, "text"])
def test_image_cell_without_bytes_is_refused(cell):
    with pytest.raises(NormprobeError, match="expected the bytes of an image"):
        decode_image_cell(cell, WHERE)


def test_base64():
    text = base64.b64encode(bytes(range(90))).decode()
    assert decode_base64(text, WHERE) == bytes(range(90))
    assert decode_base64(f"{text[:60]}\r\n{text[60:]}\n", WHERE) == bytes(range(90))


@pytest.mark.parametrize("text", ["a*b=", "data:image/png;base64,AAAA", "AAAAA", "é" * 8, "-_-_"])
def test_invalid_base64_is_refused(text):
    with pytest.raises(NormprobeError, match="row 3, column image: expected base64"):
        decode_base64(text, WHERE)


@pytest.fixture
def root(tmp_path, red_png):
    folder = tmp_path / "images"
    (folder / "deeper").mkdir(parents=True)
    (folder / "deeper" / "in.png").write_bytes(red_png)
    (tmp_path / "out.png").write_bytes(red_png)
    (tmp_path / "images2").mkdir()
    (tmp_path / "images2" / "out.png").write_bytes(red_png)
    (folder / "link.png").symlink_to(tmp_path / "out.png")
    return folder


def test_image_file_inside_its_folder(root):
    assert read_image_file("deeper/in.png", root, WHERE).size == (6, 4)
    assert read_image_file("deeper/../deeper/in.png", root, WHERE).size == (6, 4)


@pytest.mark.parametrize("path", ["../out.png", "../images2/out.png", "/etc/passwd", "link.png"])
def test_image_path_that_leaves_its_folder_is_refused(root, path):
    with pytest.raises(NormprobeError, match="leaves the folder"):
        read_image_file(path, root, WHERE)


@pytest.mark.parametrize("path", ["missing.png", "deeper", "nul\0.png", "x" * 5000])
def test_image_file_that_cannot_be_read_is_refused(root, path):
    with pytest.raises(NormprobeError, match="row 3, column image: the image file"):
        read_image_file(path, root, WHERE)


def test_hash_is_of_the_pixels_not_of_the_file():
    image = Image.effect_noise((6, 4), 50).convert("RGB")
    as_png, as_bmp = (decode_image(encode(image, kind), WHERE) for kind in ("PNG", "BMP"))
    assert image_hash(as_png) == image_hash(as_bmp)


def test_hash_knows_the_shape():
    wide, tall = Image.new("RGB", (6, 4)), Image.new("RGB", (4, 6))
    assert wide.tobytes() == tall.tobytes()
    assert image_hash(wide) != image_hash(tall)


def test_a_machine_without_memory_is_no_bad_image(monkeypatch, red_png):
    def full(*_, **__):
        raise MemoryError

    monkeypatch.setattr(Image, "open", full)
    with pytest.raises(MemoryError):
        decode_image(red_png, WHERE)


def test_formats_that_run_programs_are_not_read():
    Image.init()
    assert "EPS" in Image.OPEN
    assert not {"EPS", "WMF", "FPX", "MIC"} & set(FORMATS)
