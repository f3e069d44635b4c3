"""What Ctrl-C does: changed only where it is this package's own."""

import signal
from collections.abc import Iterator

import pytest

from normprobe.console_state import interrupting, just_ending


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_command_that_just_ends_is_interrupted_inside_the_block_alone() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with interrupting():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with just_ending():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL


@pytest.mark.parametrize("block", [interrupting, just_ending])
def test_what_others_chose_stays(block) -> None:
    heard = []
    signal.signal(signal.SIGINT, lambda *_: heard.append("theirs"))
    with block():
        signal.raise_signal(signal.SIGINT)
    assert heard == ["theirs"]
