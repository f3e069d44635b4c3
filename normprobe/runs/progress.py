"""A progress bar on a terminal, and nothing elsewhere."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from normprobe.colour import has_colour

T = TypeVar("T")


def progress(steps: Iterable[T], *, total: int, what: str, shown: bool = True) -> Iterator[T]:
    """Pass steps on and show how many are done."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True, color_system="auto" if has_colour() else None)
    yield from track(
        steps,
        description=what,
        total=total,
        console=console,
        disable=not (shown and console.is_terminal),
    )
