"""Windows are made ahead while they fit into a bound."""

import os

from normprobe.inputs.prefetch import InFlight


def roomy(windows: InFlight, count: int) -> list[int]:
    return [index for index in range(count) if windows.has_room(index)]


def test_only_the_first_window_is_made_while_nobody_knows_how_large_they_are() -> None:
    windows = InFlight(4, most=100)
    assert roomy(windows, 4) == [0]
    windows.begin(0)
    assert roomy(windows, 4) == [0]
    windows.made(0, 40)
    assert roomy(windows, 4) == [0, 1, 2, 3]


def test_a_window_that_is_being_made_counts_as_the_largest() -> None:
    windows = InFlight(6, most=100)
    windows.begin(0)
    windows.made(0, 40)
    windows.begin(1)
    assert roomy(windows, 6) == [0]  # 40, 40 and another 40 are too many
    windows.made(1, 10)
    assert 2 in roomy(windows, 6)  # 40, 10 and 40
    windows.begin(2)
    assert 3 not in roomy(windows, 6)
    windows.taken(0)
    assert 3 in roomy(windows, 6)  # 10, 40 and 40


def test_the_window_that_is_taken_next_is_made_however_large() -> None:
    windows = InFlight(3, most=100)
    windows.begin(0)
    windows.made(0, 1000)
    windows.taken(0)
    assert roomy(windows, 3) == [0, 1]


def test_nobody_waits_for_a_reader_that_is_gone() -> None:
    windows = InFlight(3, most=1)
    windows.ended()
    windows.begin(2)


def test_forked_processes_see_each_others_numbers() -> None:
    windows = InFlight(2, most=100)
    child = os.fork()
    if child == 0:
        windows.begin(0)
        windows.made(0, 10)
        os._exit(0)
    os.waitpid(child, 0)
    assert windows.has_room(1)
