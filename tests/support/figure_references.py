"""How every figure looked when somebody last looked at it. `make figure-references` draws anew."""

import io
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from normprobe.report.figures.draw import build
from normprobe.report.figures.style import image_bytes, look
from normprobe.runs.run_folder import RunFolder
from support.figure_cases import FIGURES, TABLES, drawings, write

REFERENCES = Path(__file__).parent.parent / "measurements" / "figure_references"
_DPI = 72
_BLOCK = 8  # pixels, about the height of a letter
#: How much the mean grey of a block may differ: letters of other edges do, absent ones do more.
TOLERANCE = 0.08


def drawn(case: str, folder: Path) -> dict[str, Figure]:
    """The figures of a case by name."""
    run = write(folder, TABLES[case])
    named = RunFolder(folder, {"model": "org/model", "data": "sample"})
    return build(drawings(case, run), named)


def grey(figure: Figure) -> NDArray[np.float64]:
    """A figure in pixels, 0 black to 1 white."""
    with look():
        return _grey(io.BytesIO(image_bytes(figure, "png", dpi=_DPI)))


def difference(figure: NDArray[np.float64], reference: NDArray[np.float64]) -> float:
    """The largest difference of the mean grey of any block; infinite where the sizes differ."""
    if figure.shape != reference.shape:
        return float("inf")
    summed = np.pad(figure - reference, ((1, _BLOCK), (1, _BLOCK))).cumsum(0).cumsum(1)
    low, high = summed[:-_BLOCK], summed[_BLOCK:]
    blocks = high[:, _BLOCK:] - high[:, :-_BLOCK] - low[:, _BLOCK:] + low[:, :-_BLOCK]
    return float(np.abs(blocks).max()) / _BLOCK**2


def reference(case: str, name: str) -> NDArray[np.float64]:
    """What a figure is compared with."""
    return _grey(REFERENCES / f"{case}-{name}.png")


def _grey(file: Path | io.BytesIO) -> NDArray[np.float64]:
    return np.asarray(Image.open(file).convert("L")) / 255


def write_references() -> None:
    """Make what is drawn now the reference."""
    REFERENCES.mkdir(exist_ok=True)
    for file in REFERENCES.iterdir():
        file.unlink()
    for case in FIGURES:
        with TemporaryDirectory() as folder:
            for name, figure in drawn(case, Path(folder)).items():
                pixels = (255 * grey(figure)).round().astype(np.uint8)
                image = Image.fromarray(pixels).quantize(32)  # shades: half of the bytes
                image.save(REFERENCES / f"{case}-{name}.png", optimize=True)


if __name__ == "__main__":
    write_references()
