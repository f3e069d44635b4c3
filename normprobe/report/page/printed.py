"""Tables of the page as the paper prints them."""

import pandas as pd

from normprobe.report.page.blocks import heading, note
from normprobe.report.page.markup import Markup
from normprobe.report.page.tables import table
from normprobe.report.readable_table import ReadableTable


def printed(readable: ReadableTable) -> list[Markup]:
    """A table with its title and notes. The parts of a header stand behind each other."""
    headers = [" ".join(parts) for parts in readable.headers]
    rows = pd.DataFrame([*map(list, readable.rows)], columns=headers)
    return [heading(readable.title), table(rows), *map(note, readable.notes)]
