"""HTML from templates that escape: names of models and tokens come from strangers."""

import json
import re
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from normprobe.runs.files import jsonable

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
    told = _FACTOR.sub(r"<b>\g<0></b>", str(escape(text)))
    return Markup(_INTERVAL.sub(r'<span class="interval">\g<0></span>', told))
