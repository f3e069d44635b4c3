"""What sections of the page are made of."""

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


def curves(charts: list[Chart]) -> Markup:
    """Charts to play with, drawn by the page's script."""
    return block("curves", charts)
