"""HTML that is escaped by construction: names of models and tokens come from strangers."""

import html
import json

from normprobe.runs.json_text import jsonable


class Markup(str):
    """Text that is HTML already. Every other string is escaped where it enters an element."""


def element(tag: str, *content: object, **attributes: object) -> Markup:
    """One element.

    Args:
        tag: its name.
        *content: ``Markup`` as it is, everything else as escaped text.
        **attributes: values are escaped; ``class_`` gives ``class``,
            ``aria_label`` gives ``aria-label``, True gives the bare name, None
            leaves it out.
    """
    names = "".join(
        f" {name.rstrip('_').replace('_', '-')}"
        + ("" if value is True else f'="{html.escape(str(value))}"')
        for name, value in attributes.items()
        if value is not None
    )
    closing = "" if tag in ("img", "br") else f"</{tag}>"
    return Markup(f"<{tag}{names}>{joined(*content)}{closing}")


def joined(*content: object) -> Markup:
    """Pieces one behind the other, escaped unless they are ``Markup``."""
    return Markup("".join(p if isinstance(p, Markup) else html.escape(str(p)) for p in content))


def data(value: object) -> Markup:
    """A value for a script to read: JSON in an element that runs nothing and cannot be left."""
    text = json.dumps(jsonable(value), ensure_ascii=True, allow_nan=False).replace("<", "\\u003c")
    return Markup(f'<script type="application/json">{text}</script>')
