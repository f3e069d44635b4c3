"""What sections of the page are made of."""

from typing import Any

from normprobe.report.page.charts import Chart
from normprobe.report.page.markup import Markup, block


def heading(text: str) -> Markup:
    """The title of a part of a section."""
    return block("heading", text)


def sentence(text: str) -> Markup:
    """What the numbers say; nothing where they say nothing."""
    return block("sentence", text)


def note(text: str) -> Markup:
    """What the words of a table or a figure mean."""
    return block("note", text)


def asked(text: str, pictures: list[str]) -> Markup:
    """What a model was asked: the text, and data URLs of its pictures."""
    return block("asked", text, pictures)


def picture(name: str, url: str) -> Markup:
    """An image with its name."""
    return block("picture", name, url)


def curves(charts: list[Chart]) -> Markup:
    """Charts over decoder layers, one of them shown at a time."""
    return block("figure", "curves", charts)


def panels(charts: list[Chart]) -> Markup:
    """Charts over decoder layers side by side, read at the same layer."""
    return block("figure", "panels", charts)


def dots(rows: dict[str, Any]) -> Markup:
    """Means as dots, of ``dots.dots_of``."""
    return block("figure", "dots", rows)


def grid(maps: dict[str, Any]) -> Markup:
    """Cells in shades: ``maps`` of ``grids.grid_of``, and the ``pictures`` below them."""
    return block("figure", "grid", maps)
