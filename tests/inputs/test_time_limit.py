import signal
import threading

import pytest

from normprobe.errors import NormprobeError
from normprobe.inputs.time_limit import stopped_after

FAILURE = NormprobeError("it never ends", "mend it")


def test_a_block_without_an_end_is_stopped() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(NormprobeError, match="never ends"), stopped_after(0.05, FAILURE):
        while True:
            pass
    assert signal.getsignal(signal.SIGALRM) is before


def test_a_block_that_ends_is_not() -> None:
    with stopped_after(60, FAILURE):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_other_threads_have_no_alarm() -> None:
    done = []

    def work() -> None:
        with stopped_after(60, FAILURE):
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]
