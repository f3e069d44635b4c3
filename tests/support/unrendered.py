"""Figures without their pixels: rendering takes most of the time of a small run.

As a program it is ``normprobe``: ``python -m support.unrendered layers specimen``.
"""

from io import BytesIO

import pytest
from matplotlib.figure import Figure
from PIL import Image

_PDF = b"%PDF-1.4\n%%EOF\n"


def save_placeholders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``Figure.savefig`` write one white pixel, or a PDF without pages."""

    def savefig(_: Figure, file: BytesIO, *, format: str, **__: object) -> None:
        if format == "png":
            Image.new("RGB", (1, 1), "white").save(file, format="png")
        else:
            file.write(_PDF)

    monkeypatch.setattr(Figure, "savefig", savefig)


if __name__ == "__main__":
    from normprobe.cli.app import main

    save_placeholders(pytest.MonkeyPatch())
    main()
