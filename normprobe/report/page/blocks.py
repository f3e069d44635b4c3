"""What a page is made of: words, tables, curves, dots, shades over pictures; files as they travel.

HTML comes from templates that escape.
"""

import base64
import gzip
import io
import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from normprobe.errors import NormprobeError, first_line, html_text
from normprobe.report.charts import Chart
from normprobe.report.readable import (
    MISSING,
    ReadableTable,
    count,
    parts_of,
    pivot,
    readable_token,
    significant,
)
from normprobe.report.verdict import Verdict
from normprobe.runs.files import csv_bytes, jsonable, own_bytes, own_picture
from normprobe.runs.run_folder import RunStore
from normprobe.tidy import is_tidy

#: What a sentence says in numbers: a factor, and the interval behind it.
_FACTOR = re.compile(r"(?<![\w.])-?\d[\d.]*(?: to \d[\d.]*)? (?:x|%)(?! intervals?\b)(?![\w])")
_CODE = re.compile(r"`([^`]+)`")
_INTERVAL = re.compile(r"\[-?\d[\d.e-]*, -?\d[\d.e-]*\]")


def render(name: str, **values: object) -> Markup:
    """A template of ``templates/``."""
    return Markup(_environment().get_template(name).render(**values))


def block(name: str, *values: object) -> Markup:
    """A macro of ``templates/blocks.html``: its name and values, escaped as by ``render``."""
    made: Markup = getattr(_environment().get_template("blocks.html").module, name)(*values)
    return made


def source(name: str) -> Markup:
    """A style or script of ``templates/``, as it is."""
    loader = _environment().loader
    assert loader is not None
    return Markup(loader.get_source(_environment(), name)[0])


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("normprobe.report.page"),
        autoescape=True,
        finalize=html_text,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"code": _code, "data": _data, "numbers": _numbers}
    return environment


def _data(value: object) -> Markup:
    """JSON for a script to read, in an element that runs nothing and that no text can leave."""
    text = json.dumps(jsonable(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


def _code(text: str) -> Markup:
    """Text with what stands in backticks as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(html_text(text))))


def _numbers(text: str) -> Markup:
    """A sentence whose factors and shares stand out, and whose intervals stand back."""
    told = _CODE.sub(r"<code>\1</code>", str(html_text(text)))
    told = _FACTOR.sub(r"<b>\g<0></b>", told)
    return Markup(_INTERVAL.sub(r'<span class="interval">\g<0></span>', told))


_PACKED = 6  # of 9: the last tenth takes most of the time
_COLORS = 256
_LARGEST = 448  # pixels of a photograph's longer side


def compressed_tables(run: RunStore) -> list[tuple[str, str]]:
    """Name and data URL of ``<table>.csv.gz`` for every table: the page is enough to go on from."""
    files = []
    for name in run.table_names:
        file = f"{name}.csv"
        data = own_bytes(run.path / file, run.path) if run.path else csv_bytes(run.table(name))
        packed = gzip.compress(data, _PACKED, mtime=0)  # the same run gives the same page
        files.append((f"{file}.gz", data_url("application/gzip", packed)))
    return files


def figure_url(file: Path) -> str:
    """The data URL of a figure in 256 colours: few see more, and it is a third of the bytes."""
    small = io.BytesIO()
    try:
        with own_picture(file, file.parent) as image:
            image.convert("RGB").quantize(_COLORS).save(small, format="PNG", optimize=True)
    except OSError as error:
        raise NormprobeError(
            f"cannot read {file}: {first_line(error)}", "delete the file, or run the command again"
        ) from error
    return data_url("image/png", small.getvalue())


def photograph_url(pixels: NDArray[Any], *, grey: bool = False) -> str:
    """The data URL of a picture, ``[height, width, 3]``, as large as a page shows it."""
    image = Image.fromarray(pixels).convert("L" if grey else "RGB")
    image.thumbnail((_LARGEST, _LARGEST))
    small = io.BytesIO()
    image.save(small, format="JPEG", quality=80)
    return data_url("image/jpeg", small.getvalue())


def data_url(kind: str, data: bytes) -> str:
    """Bytes as an address that needs no network."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


# --- tables, words and drawings ------------------------------------------------------------------

#: May hold empty fields.
_COUNTS = frozenset(
    ["tokens", "samples", "count", "nonfinite", "hidden_size", "decoder_layers", "parameters"]
)
_NAMES = ("stage", "group", "rows", "table")  # hold names of the schema
_LONGEST = 200  # rows
_LONG = 40  # characters that one line may have


def shown_table(rows: pd.DataFrame, most: int = _LONGEST) -> Markup:
    """Rows as they are, those of a tidy table side by side; tokens with every character visible."""
    if is_tidy(rows):
        rows = pivot(rows)
        rows.columns = pd.Index([" ".join(parts_of(header)) for header in rows])
    columns = [(str(name).replace("_", " "), _kind(rows[name])) for name in rows]
    shown = [
        [_text(name, value) for name, value in row.items()]
        for row in rows.head(most).to_dict("records")
    ]
    return block("table", columns, shown, len(rows) - len(shown))


def _kind(column: "pd.Series[Any]") -> str:
    """The classes of a column: numbers line up on the right, long texts are broken."""
    if pd.api.types.is_numeric_dtype(column):
        return ""
    return "words long" if column.astype(str).str.len().max() > _LONG else "words"


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


def printed(readable: ReadableTable) -> list[Markup]:
    """A table with its title and notes. The parts of a header stand behind each other."""
    headers = [" ".join(parts) for parts in readable.headers]
    rows = pd.DataFrame([*map(list, readable.rows)], columns=headers)
    return [heading(readable.title), shown_table(rows), *map(note, readable.notes)]


Grid = dict[str, Any]


def grid_of(
    label: str,
    values: NDArray[np.float64],
    *,
    middle: float,
    end: float,
    log: bool = False,
) -> Grid:
    """One grid of cells.

    Args:
        label: what is drawn.
        values: ``[down, across]``; NaN leaves a cell bare.
        middle: the number without colour; larger ones are warm, smaller ones cool.
        end: the number of full colour.
        log: colours follow the logarithm.
    """
    return {
        "label": label,
        "values": [[_short(value) for value in row] for row in values],
        "middle": middle,
        "end": end,
        "log": log,
    }


def named(grid: Grid, words: tuple[str, str], rows: Sequence[Any], columns: Sequence[Any]) -> Grid:
    """A grid whose rows and columns have names."""
    return grid | {"words": list(words), "rows": list(rows), "columns": list(columns)}


def grid_over_picture(
    grid: Grid, picture: int, x: NDArray[np.float64], y: NDArray[np.float64]
) -> Grid:
    """A grid that lies over a picture."""
    edges = {name: [round(float(edge), 4) for edge in ends] for name, ends in (("x", x), ("y", y))}
    return grid | {"picture": picture} | edges


def _short(value: float) -> float | None:
    return float(f"{value:.4g}") if np.isfinite(value) else None


def heading(text: str) -> Markup:
    """The title of a part of a section."""
    return block("heading", text)


def sentence(text: str) -> Markup:
    """A sentence in large; nothing of an empty one."""
    return block("sentence", text)


def verdict_block(verdict: Verdict) -> Markup:
    """What a run says; nothing where it says nothing."""
    return block("verdict", verdict.headline, verdict.findings)


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


def side_by_side(charts: list[Chart]) -> Markup:
    """Charts over decoder layers side by side, read at the same layer."""
    return block("figure", "panels", charts)


def dots(rows: dict[str, Any]) -> Markup:
    """Means as dots, of ``dots.dots_of``."""
    return block("figure", "dots", rows)


def scatter(points: Sequence[dict[str, Any]], x: str, y: str) -> Markup:
    """Points with intervals in two directions, of ratios ``x`` and numbers ``y``."""
    return block("figure", "scatter", {"points": points, "x": x, "y": y})


def grid(maps: dict[str, Any]) -> Markup:
    """Cells in shades: ``maps`` of ``grids.grid_of``, and the ``pictures`` below them."""
    return block("figure", "grid", maps)
