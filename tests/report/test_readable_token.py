import unicodedata

import pytest
from rich.cells import cell_len
from support.made_tables import NASTY_TOKENS

from normprobe.report.readable import readable_token


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        (" the", '"␣the"'),
        ("\n\t\r", r'"\n\t\r"'),
        ("\\n", r'"\\n"'),
        ('"', r'"\""'),
        ("\x00\x1b", r'"\x00\x1b"'),
        ("e\u0301", r'"e\u0301"'),
        ("\u202eabc", r'"\u202eabc"'),
        ("\u200b\u200d", r'"\u200b\u200d"'),
        ("\u00a0\u3000", r'"\xa0\u3000"'),
        ("\ufffd", r'"\ufffd"'),
        ("\ud800", r'"\ud800"'),
        ("\ue000", r'"\ue000"'),
        ("\u1160", r'"\u1160"'),
        ("<0x0A>", '"<0x0A>"'),
        ("Ġthe▁", '"Ġthe▁"'),
        ("漢字", '"漢字"'),
        ("", '""'),
    ],
)
def test_everything_is_visible(token, shown):
    assert readable_token(token) == shown


@pytest.mark.parametrize("token", NASTY_TOKENS)
def test_only_printable_characters_with_a_width(token):
    for character in readable_token(token):
        assert cell_len(character) > 0
        assert not unicodedata.category(character).startswith(("C", "M", "Z"))


def test_different_tokens_read_differently():
    assert len({readable_token(token) for token in NASTY_TOKENS}) == len(NASTY_TOKENS)
