"""HTML from templates that escape, and files of a run as they travel in a page."""

import base64
import gzip
import io
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from normprobe.errors import NormprobeError, first_line, html_text
from normprobe.runs.files import csv_bytes, jsonable, own_bytes, own_picture
from normprobe.runs.run_folder import RunStore

__all__ = ["Markup", "block", "render", "source"]

#: What a sentence says in numbers: a factor, and the interval behind it.
_FACTOR = re.compile(r"(?<![\w.])-?\d[\d.]*(?: to \d[\d.]*)? (?:x|%)(?! intervals?\b)(?![\w])")
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
    environment.filters |= {"data": _data, "numbers": _numbers}
    return environment


def _data(value: object) -> Markup:
    """JSON for a script to read, in an element that runs nothing and that no text can leave."""
    text = json.dumps(jsonable(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


def _numbers(text: str) -> Markup:
    """A sentence whose factors and shares stand out, and whose intervals stand back."""
    told = _FACTOR.sub(r"<b>\g<0></b>", str(html_text(text)))
    return Markup(_INTERVAL.sub(r'<span class="interval">\g<0></span>', told))


_PACKED = 6  # of 9: the last tenth takes most of the time
_COLORS = 256
_LONGEST = 448  # pixels of a photograph's longer side


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
    image.thumbnail((_LONGEST, _LONGEST))
    small = io.BytesIO()
    image.save(small, format="JPEG", quality=80)
    return data_url("image/jpeg", small.getvalue())


def data_url(kind: str, data: bytes) -> str:
    """Bytes as an address that needs no network."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
