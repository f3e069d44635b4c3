"""Work in a process of its own: what it sends, what is kept of its words, and how it ends."""

import os
import sys
from functools import partial
from pathlib import Path

import pytest

from normprobe import NormprobeError
from normprobe.runs.processes import Ended, Send, done_apart, failure_of


def talk(number: int, send: Send) -> None:
    sys.stdout.write("as data\n")
    sys.stdout.flush()
    os.write(2, b"a library's warning\n")
    for sent in range(number):
        send({"number": sent})


def leave(send: Send) -> None:
    send("before")
    os._exit(3)


def test_what_it_sends_arrives_and_what_it_prints_is_in_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ended = done_apart(partial(talk, 2), tmp_path / "log.txt")
    assert ended == Ended([{"number": 0}, {"number": 1}], "")
    assert (tmp_path / "log.txt").read_text() == "as data\na library's warning\n"
    assert capfd.readouterr() == ("", "")


def test_what_was_sent_before_its_process_ended_is_kept(tmp_path: Path) -> None:
    ended = done_apart(leave, tmp_path / "log.txt")
    assert ended == Ended(["before"], "its process ended with exit code 3")


def raises(error: Exception) -> None:
    raise error


def test_any_failure_is_told_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert failure_of(lambda: 1) is None
    known = NormprobeError("it is gated", "ask for access")
    assert failure_of(partial(raises, known)) is known
    unknown = failure_of(partial(raises, LookupError("no such\nthing")))
    assert unknown is not None
    assert unknown.problem == "LookupError: no such thing"
    assert "Traceback" in capsys.readouterr().err
