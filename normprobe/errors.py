"""The one exception a user is meant to see, and what text from elsewhere becomes in each sink.

``visible`` for a terminal and for XML, ``markdown_text`` for Markdown, which may hold HTML,
``html_text`` for a page. Who writes there calls them, not who has the text.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from traceback import extract_tb
from typing import Any

from markupsafe import Markup
from markupsafe import escape as html_escape

_LONGEST = 1500  # characters


class NormprobeError(Exception):
    """A known failure.

    Args:
        problem: one line: what is wrong, with what was expected, what was received and where.
        remedy: one line: what to do about it, a command where there is one.

    Both quote names from elsewhere: control characters in them are shown, not kept, and what is too
    long for a terminal is cut. Neither begins with a capital, but for a name, nor ends with a
    full stop.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem = _cut(visible(problem), _LONGEST)
        self.remedy = _cut(visible(remedy), _LONGEST)
        super().__init__(self.problem, self.remedy)

    def __str__(self) -> str:
        return f"{self.problem}\n{self.remedy}"


class FixedStates(NormprobeError):
    """States that are shown were taken before: nothing can change them on the way."""


# What those who check a config's fields say of themselves, and what Python does of a class.
_CHECKER = re.compile(
    r"(?:Class v|V)alidation error for (?:field|validator) '\w+': \w+: |(?<=\))\. Errors: .*"
)
_CLASS = re.compile(r"<class '(?:\w+\.)*(\w+)'>")


def first_line(error: BaseException, most: int = 200) -> str:
    """The message of another library's exception in one line, for a ``NormprobeError`` to quote."""
    text = _CHECKER.sub("", " ".join(str(error).split()))
    if isinstance(error, KeyError):  # its message is the key alone
        text = f"there is no {text}"
    if not text and isinstance(error, AssertionError) and error.__traceback__ is not None:
        line = extract_tb(error.__traceback__)[-1].line or ""
        text = line.partition(", f")[0] if line.startswith("assert ") else ""
    return _cut(_CLASS.sub(r"\1", text).rstrip("."), most) or type(error).__name__


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """A remedy for a name that is not known: the nearest that are, and what to do otherwise."""
    spelled = {word.casefold(): word for word in known}
    near = [spelled[word] for word in get_close_matches(name.casefold(), spelled)]
    return f"did you mean {' or '.join(near)}? {otherwise}" if near else otherwise


def number_of(things: int, thing: str) -> str:
    """E.g. ``1 sample``, ``2 samples``."""
    return f"{things} {thing}{'s' * (things != 1)}"


def _cut(text: str, most: int) -> str:
    """The words that fit, and dots where there were more; a single word may be cut anywhere."""
    if len(text) <= most:
        return text
    words, _, _ = text[: most - 3].rpartition(" ")
    return f"{words} ..." if words else text[:most]


# Control characters (ESC and CSI among them), what reorders a line, line separators, surrogates,
# and what is no character to XML.
_COMMANDS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
# What begins an element of Markdown or HTML; a backslash before it makes it text again. So do an
# address, a name of a user and a drawn face of GitHub.
_MARKDOWN_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&$!@]|:(?=[/\w])|(?<=\bwww)\.)", re.IGNORECASE)


def visible(text: str, keep: str = "") -> str:
    r"""Show every character that commands a terminal, or that XML cannot hold, by its escape."""
    return _COMMANDS.sub(lambda found: found[0] if found[0] in keep else escape(found[0]), text)


def markdown_text(text: str) -> str:
    """Text that stays text, and on its line, in Markdown and HTML."""
    return _MARKDOWN_SPECIAL.sub(r"\\\1", visible(text))


def html_text(value: Any) -> Any:
    """A text as a page shows it; what is ``Markup`` already, and what is no text, stays."""
    plain = isinstance(value, str) and not isinstance(value, Markup)
    return html_escape(visible(value, keep="\n\t")) if plain else value


def escape(character: str) -> str:
    r"""The Python escape of one character: ``\x07``, ``\u0301`` or ``\U0001f600``."""
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
