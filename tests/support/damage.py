"""Damaged files: whatever the bytes are, there is an answer or a known failure, soon."""

import json
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

from normprobe.errors import NormprobeError, visible

LIMIT = 30  # seconds a case; a case takes milliseconds
SPLICES = [
    *(b"\t", b"\n", b"\r\n", b'"', b'\t"', b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b",", b"{", b"}"),
    *(b"nan", b"null", b"None", b"NaN", b"1e999", b"-1", b"1000001", b"9" * 5000, b"../../", b"/"),
    *(
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"\\ud800",
        b"\\u0000",
        b"A" * 200_000,
        b"\xf0\x9f\x98\x80",
    ),
]
#: What a field of a JSON file may hold in place of what belongs there.
VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 3, 2**40, 10**30, 1e308, float("nan"), float("inf"), 0.5),
    *(
        "",
        "x",
        "../canary",
        "../canary.safetensors",
        "/",
        "org/kernel",
        "\x1b[31m",
        "9" * 5000,
        "float16",
        "(",
    ),
    *([], [1], [[]], ["x"], {}, {"a": 1}, {"": {"": {}}}),
]


def mutated(data: bytes, chance: random.Random) -> bytes:
    """One to three changes of a kind that transfers, editors and attackers make."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(changed) + 1)
        end = min(len(changed), place + chance.choice((1, 2, 8, 64, 1024)))
        kind = chance.randrange(6)
        if kind == 0:
            changed[place:end] = chance.randbytes(end - place)
        elif kind == 1:
            del changed[place:end]
        elif kind == 2:
            del changed[place:]
        elif kind == 3:
            changed[place:place] = chance.choice(SPLICES)
        elif kind == 4:
            changed[place:place] = changed[place:end]
        elif place < len(changed):
            changed[place] ^= 1 << chance.randrange(8)
    return bytes(changed)


def mutated_json(data: bytes, chance: random.Random) -> bytes:
    """One or two fields of a JSON file hold something else or are gone; or its bytes changed."""
    if chance.random() < 0.2:
        return mutated(data, chance)
    content = json.loads(data)
    for _ in range(chance.randint(1, 2)):
        places = list(_places(content))
        if not places:
            break
        inside, key = chance.choice(places)
        kind = chance.randrange(4)
        if kind == 0:
            del inside[key]
        elif kind == 1:
            inside[key] = inside[chance.choice([k for i, k in places if i is inside])]
        else:
            inside[key] = deepcopy(chance.choice(VALUES))  # it may be damaged, too
    return json.dumps(content).encode()


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a JSON value, with every key."""
    keys = content if isinstance(content, dict) else range(len(content))
    for key in keys:
        yield content, key
        if isinstance(content[key], dict | list):
            yield from _places(content[key])


def outcomes(
    file: Path,
    read: Callable[[], object],
    cases: int,
    damage: Callable[[bytes, random.Random], bytes],
) -> Counter[str]:
    """Read so many damaged versions of a file; how many were read, how many refused.

    Raises:
        AssertionError: a failure that is not two lines.
        BaseException: whatever else reading raises; the damaged file is left as it is.
    """
    sound, chance, found = file.read_bytes(), random.Random(f"{file.name}{cases}"), Counter[str]()
    for _ in range(cases):
        file.write_bytes(damage(sound, chance))
        try:
            with within():
                read()
        except NormprobeError as error:
            assert_two_lines(error)
            found["refused"] += 1
        else:
            found["read"] += 1
    file.write_bytes(sound)
    return found


def assert_two_lines(error: NormprobeError) -> None:
    """What is wrong, what to do."""
    for line in (error.problem, error.remedy):
        assert visible(line) == line
        assert len(line) < 2000, line
        line.encode()  # a terminal has to show it


class Hang(BaseException):
    """No Exception: a reader that forgives all of those must not forgive this."""


@contextmanager
def within(seconds: int = LIMIT) -> Iterator[None]:
    """Fail, with the line that hangs, rather than wait for ever."""

    def give_up(*_: object) -> None:
        raise Hang(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Canary:
    """A file that nothing may open, beside the folder that is read.

    Args:
        folder: what ``../canary`` leads to from a folder in it.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "canary"
        self.path.write_text("a secret")
        self._opened: list[str] = []
        sys.addaudithook(self._note)

    def assert_untouched(self) -> None:
        """It was not opened, and is what it was."""
        assert not self._opened, self._opened
        assert self.path.read_text() == "a secret"

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and Path(str(arguments[0])).name.startswith("canary"):
            self._opened.append(str(arguments[0]))


def files_below(folder: Path) -> dict[str, int]:
    return {str(path): path.lstat().st_size for path in sorted(folder.rglob("*"))}
