import pickle

import pytest

from normprobe.errors import NormprobeError, visible

HARMFUL = {
    "\x1b": r"\x1b",
    "\x9b": r"\x9b",
    "\x00": r"\x00",
    "\r": r"\x0d",
    "\n": r"\x0a",
    "\x7f": r"\x7f",
    "\u202e": r"\u202e",
    "\u2066": r"\u2066",
    "\u2028": r"\u2028",
    "\ud800": r"\ud800",
}


@pytest.mark.parametrize("character", HARMFUL)
def test_what_commands_a_terminal_is_shown(character: str) -> None:
    assert visible(f"a{character}b") == f"a{HARMFUL[character]}b"


def test_words_of_every_script_stay_as_they_are() -> None:
    text = "café 模型 \u0645\u06cc\u200c\u062e 👩\u200d💻 C:\\x1b"
    assert visible(text) == text


def test_a_message_keeps_its_line_breaks() -> None:
    assert visible("a\n\x1b", keep="\n") == "a\n\\x1b"


def test_an_error_shows_what_it_quotes_and_passes_between_processes() -> None:
    error = NormprobeError("no \x1b]0;owned\x07", "try\nagain")
    assert str(error) == "no \\x1b]0;owned\\x07\ntry\\x0aagain"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
