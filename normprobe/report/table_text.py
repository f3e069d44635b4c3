"""A table as text: CSV, JSON, Markdown or LaTeX."""

from typing import Literal

import pandas as pd

from normprobe.report.latex import latex
from normprobe.report.markdown import markdown
from normprobe.report.readable_table import readable_table
from normprobe.runs.files import csv_bytes, table_json

Format = Literal["csv", "json", "md", "tex"]


def table_text(table: pd.DataFrame, form: Format) -> str:
    """A table in one of the formats; ends with a newline."""
    if form == "csv":
        return csv_bytes(table).decode("utf-8")
    if form == "json":
        return table_json(table)
    return markdown(readable_table(table)) if form == "md" else latex(readable_table(table))
