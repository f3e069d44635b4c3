"""Messages of other libraries in one line."""

import importlib
from pathlib import Path

import pytest

from normprobe.errors import NormprobeError, did_you_mean, first_line


def test_a_message_is_one_line_without_a_final_full_stop() -> None:
    assert first_line(ValueError("\n  Two\n\tlines. ")) == "Two lines"


def test_a_long_message_is_cut_at_a_word() -> None:
    message = "several words " * 30
    cut = first_line(ValueError(message))
    assert len(cut) <= 200
    assert message.startswith(cut.removesuffix("..."))
    assert cut.endswith(("several ...", "words ..."))
    assert first_line(ValueError(message), most=20) == "several words ..."
    assert first_line(ValueError("as long as that."), most=15) == "as long as that"


def test_a_long_word_is_cut_anywhere() -> None:
    assert first_line(ValueError("x" * 300)) == "x" * 200
    assert first_line(ValueError("x" * 300), most=250) == "x" * 250


def test_a_key_alone_is_no_message() -> None:
    assert first_line(KeyError("gelu_2")) == "there is no 'gelu_2'"


def test_without_a_message_the_class_is_named() -> None:
    assert first_line(AssertionError()) == "AssertionError"


def test_a_line_fits_on_a_terminal():
    error = NormprobeError("9" * 10_000, "9" * 10_000)
    assert len(error.problem) == len(error.remedy) == 1500


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("laters", "did you mean layers? ask"),
        ("LAYERS", "did you mean layers? ask"),
        ("figure", "did you mean figure2 or figure1? ask"),
        ("something else", "ask"),
    ],
)
def test_the_nearest_names_are_named(name: str, remedy: str) -> None:
    assert did_you_mean(name, ["layers", "figure1", "figure2"], "ask") == remedy


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (
            "Validation error for field 'size':\n    TypeError: Field 'size' expected int, got str",
            "Field 'size' expected int, got str",
        ),
        (
            "Validation error for field 'a': TypeError: Field 'a' with value 'x' doesn't match any "
            "type in (<class 'int'>, <class 'some.module.Config'>). Errors: Field 'a' expected int",
            "Field 'a' with value 'x' doesn't match any type in (int, Config)",
        ),
        (
            "Class validation error for validator 'check': ValueError: 3 heads are few.",
            "3 heads are few",
        ),
    ],
)
def test_how_a_config_is_checked_is_nothing_to_tell(message: str, told: str) -> None:
    assert first_line(ValueError(message)) == told


def test_an_assertion_without_words_is_told_by_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mPLUG-DocOwl2's asks for CUDA so; words of its own go before."""
    code = "def check(number):\n    assert number < 3, {}\n"
    (tmp_path / "of_silent_checks.py").write_text(code.format("f''"))
    (tmp_path / "of_telling_checks.py").write_text(code.format("'too many'"))
    monkeypatch.syspath_prepend(tmp_path)
    for name, expected in (("silent", "assert number < 3"), ("telling", "too many")):
        with pytest.raises(AssertionError) as raised:
            importlib.import_module(f"of_{name}_checks").check(3)
        assert first_line(raised.value) == expected
    assert first_line(AssertionError()) == "AssertionError"
