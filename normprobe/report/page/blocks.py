"""What sections of the page are made of."""

from normprobe.report.page.charts import Chart
from normprobe.report.page.markup import Markup, data, element


def heading(text: str) -> Markup:
    """The title of a part of a section."""
    return element("h3", text)


def sentence(text: str) -> Markup:
    """What the numbers say; nothing where they say nothing."""
    return element("p", text, class_="verdict") if text else Markup()


def note(text: str) -> Markup:
    """What the words of a table or a figure mean."""
    return element("p", text, class_="note")


def curves(charts: list[Chart]) -> Markup:
    """Charts to play with, drawn by the page's script."""
    return element("div", data(charts), class_="curves")
