"""How many bytes of inputs are made ahead of the model, by all processes together."""

import mmap
import time

import numpy as np

_LOOK_AGAIN = 0.005  # seconds


class InFlight:
    """Lets processes make windows of inputs ahead only while those in flight fit into a bound.

    Windows are taken in order. The one that is taken next is always made, however large, so that
    nobody waits for ever. Another is begun when it fits beside those in flight, if it is as large
    as the largest so far; before the first is made, nobody knows how large that is. So the bound is
    passed where windows grow, or two processes look at the same moment: by a window a process.

    The numbers lie in memory that forked processes share. Each is written by one process at a time,
    so there is no lock that a killed process could leave locked.
    """

    def __init__(self, windows: int, most: int) -> None:
        shared = np.frombuffer(mmap.mmap(-1, 8 * (windows + 2)), np.int64)
        self._next, self._largest = shared[:1], shared[1:2]
        self._bytes = shared[2:]  # of a window that is being made: as many as the largest has
        self._most = most

    def has_room(self, index: int) -> bool:
        """Whether a window may be made now."""
        largest = int(self._largest[0])
        if index <= self._next[0]:
            return True
        return largest > 0 and int(self._bytes.sum()) + largest <= self._most

    def begin(self, index: int) -> None:
        """Wait until a window may be made."""
        while not self.has_room(index):
            time.sleep(_LOOK_AGAIN)
        self._bytes[index] = self._largest[0]

    def made(self, index: int, size: int) -> None:
        """A window is made, of so many bytes."""
        self._bytes[index] = size
        self._largest[0] = max(size, int(self._largest[0]))

    def taken(self, index: int) -> None:
        """A window has been taken: it is in flight no more, and the one after it is next."""
        self._bytes[index] = 0
        self._next[0] = index + 1

    def ended(self) -> None:
        """No window is taken any more: whoever waits may go on."""
        self._next[0] = len(self._bytes)
