"""Text from elsewhere, such as a sample id or a model's name, as a terminal may show it."""

import re

# Control characters (ESC and CSI among them), what reorders a line, line separators, surrogates.
_COMMANDS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: str, keep: str = "") -> str:
    r"""Show every character that commands a terminal by its escape."""
    return _COMMANDS.sub(lambda found: found[0] if found[0] in keep else escape(found[0]), text)


def escape(character: str) -> str:
    r"""The Python escape of one character: ``\x07``, ``\u0301`` or ``\U0001f600``."""
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
