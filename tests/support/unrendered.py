"""Figures of saved runs without their content: drawing takes most of the time of a small run.

As a program it is ``normprobe``: ``python -m support.unrendered layers specimen``.
"""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image

from normprobe.report.figures import draw
from normprobe.runs.run_folder import RunFolder

_PDF = b"%PDF-1.4\n%%EOF\n"


def save_placeholders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run save empty figures under their names, and ``Figure.savefig`` write one white pixel.

    Figures that a test asks for, such as those of ``Run.figures``, are built as ever.
    """
    as_ever = draw.draw

    def draw_empty(drawings: Sequence[draw.Drawing], run: RunFolder) -> list[Path]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(draw, "figure_of", lambda drawing, run: Figure())
            return as_ever(drawings, run)

    def savefig(_: Figure, file: BytesIO, *, format: str, **__: object) -> None:
        if format == "png":
            Image.new("RGB", (1, 1), "white").save(file, format="png")
        else:
            file.write(_PDF)

    monkeypatch.setattr("normprobe.run.draw", draw_empty)
    monkeypatch.setattr(Figure, "savefig", savefig)


if __name__ == "__main__":
    from normprobe.cli.app import main

    save_placeholders(pytest.MonkeyPatch())
    main()
