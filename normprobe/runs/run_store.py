"""What a run holds: its record, its sample rows, its tables and images. Here in memory.

``RunFolder`` is the same on disk. Code that fills or reads a run takes either.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image

from normprobe.errors import NormprobeError

PARTIAL = "partial"
COMPLETE = "complete"


def image_name(number: int) -> str:
    """What an image of the sample is called in a run, by its number from 1."""
    return "image" if number == 1 else f"image_{number}"


class RunStore:
    """A run in memory.

    Attributes:
        record: the content of ``run.json``; change it through ``note``.
        path: the run folder; None: there is none.
        writer: 0 for the process that writes everything; others only append sample rows.
    """

    path: Path | None = None
    writer = 0

    def __init__(self, record: dict[str, Any]) -> None:
        self.record = {**record, "status": PARTIAL, "warnings": [], "files": []}
        self._rows: list[pd.DataFrame] = []
        self._tables: dict[str, pd.DataFrame] = {}
        self._images: dict[str, Image.Image] = {}
        self._later: list[Callable[[], None]] = []

    @property
    def name(self) -> str:
        """What to call the run where its model has no name."""
        return str(self.record.get("command", "run"))

    @property
    def command(self) -> str:
        """Which measurement it is a run of."""
        return str(self.record.get("command", ""))

    @property
    def table_names(self) -> list[str]:
        """The tables that it holds, in alphabetical order."""
        self._do_what_was_put_off()
        return sorted(self._tables)

    def has_table(self, name: str) -> bool:
        """Whether it holds a table, with or without rows."""
        return name in self.table_names

    def when_asked(self, write: Callable[[], None]) -> None:
        """Put off writing tables until somebody asks for one."""
        self._later.append(write)

    def _do_what_was_put_off(self) -> None:
        later, self._later = self._later, []
        try:
            for write in later:
                write()
        except BaseException:
            self._later = later  # whoever asks next is told the same
            raise

    def table(self, name: str) -> pd.DataFrame:
        """A table by name."""
        if not self.has_table(name):
            raise NormprobeError(
                f"the run of {self.command} holds no table {name}",
                f"it holds {', '.join(self.table_names) or 'none'}",
            )
        return self._tables[name]

    def rows_of(self, name: str) -> pd.DataFrame | None:
        """A table by name; None where there is none (yet), or it has no row."""
        table = self.table(name) if self.has_table(name) else None
        return None if table is None or table.empty else table

    def image(self, name: str) -> NDArray[np.uint8]:
        """An image by name, ``[height, width, 3]``."""
        if name not in self._images:
            raise NormprobeError(
                f"the run of {self.command} holds no image {name}", "run the command again"
            )
        return np.asarray(self._images[name].convert("RGB"))

    def sample_ids(self) -> set[str]:
        """The samples whose rows are there."""
        return {sample_id for rows in self._rows for sample_id in rows["sample_id"].unique()}

    def rows(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """All sample rows in the order they were appended; empty where there are none."""
        rows = pd.concat(self._rows, ignore_index=True) if self._rows else pd.DataFrame()
        return rows if columns is None else rows[[name for name in rows if name in columns]]

    def append(self, rows: pd.DataFrame) -> None:
        """Add sample rows; an empty frame adds nothing."""
        if not rows.empty:
            self._rows.append(rows)

    def reopen(self) -> None:
        """Make a complete run ready for more rows; in memory it is."""

    def write_table(self, name: str, table: pd.DataFrame) -> None:
        """Add a table."""
        self._tables[name] = table

    def write_image(self, name: str, image: Image.Image) -> None:
        """Add an image."""
        self._images[name] = image

    def note(self, **facts: object) -> None:
        """Add facts to the record."""
        self.record.update(facts)

    def add_warning(self, text: str) -> None:
        """Keep a warning in the record, once however often it is given."""
        if text not in self.record["warnings"]:
            self.note(warnings=[*self.record["warnings"], text])

    def finish(self, **facts: object) -> None:
        """Call the run complete."""
        self.note(status=COMPLETE, **facts)

    def discarded_on_failure(self) -> contextlib.AbstractContextManager[None]:
        """Leave nothing behind when the block fails; in memory nothing is left anyway."""
        return contextlib.nullcontext()

    def images(self) -> Iterator[tuple[str, Image.Image]]:
        """Names and images."""
        yield from self._images.items()
