"""Tables of the page, as they are."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from normprobe.report.page.markup import Markup, element, joined
from normprobe.report.readable_token import readable_token
from normprobe.report.significant import MISSING, count, significant

_COUNTS = ("tokens", "samples", "count", "nonfinite", "hidden_size")  # may hold empty fields


_NAMES = ("stage", "group", "rows", "table")  # hold names of the schema


_LONGEST = 200  # rows


def table(rows: pd.DataFrame) -> Markup:
    """Rows as they are, numbers short, tokens with every character visible.

    Args:
        rows: any table; of a long one the first rows.
    """
    words = {name: not pd.api.types.is_numeric_dtype(rows[name]) for name in rows}

    def line(tag: str, cells: Iterable[tuple[Any, str]]) -> Markup:
        return element(
            "tr",
            *(element(tag, text, class_="words" if words[name] else None) for name, text in cells),
        )

    head = line("th", ((name, str(name).replace("_", " ")) for name in rows))
    body = [
        line("td", ((name, _text(name, value)) for name, value in row.items()))
        for row in rows.head(_LONGEST).to_dict("records")
    ]
    made = element("table", element("thead", head), element("tbody", *body))
    frame = element("div", made, class_="frame tall", tabindex=0)
    if len(rows) <= _LONGEST:
        return frame
    left_out = f"{_LONGEST} of {len(rows)} rows; the file has all."
    return joined(frame, element("p", left_out, class_="note"))


def _text(name: object, value: object) -> str:
    if isinstance(value, str):
        if name in _NAMES:
            return value.replace("_", " ")
        return readable_token(value) if name == "token" and value else value
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if not isinstance(value, int | float | np.integer | np.floating):
        return MISSING if value is None else str(value)
    if isinstance(value, int | np.integer) or name in _COUNTS:
        return count(float(value))
    return significant(float(value))
