"""The paper's shipped files, and a number of its own for every cell of its tables."""

import csv
from pathlib import Path

import normprobe.paper
from normprobe.paper.tables import layouts


def shipped(name: str) -> list[dict[str, str]]:
    """The published file, as it is."""
    file = Path(normprobe.paper.__file__).parent / f"{layouts()[name].file}.csv"
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def made_cells(name: str) -> dict[tuple[int, str], float | str]:
    """A number of its own for every cell, and tokens that are none of the paper's."""
    layout = layouts()[name]
    places = [
        (row, column)
        for row, line in enumerate(shipped(name))
        for column in line
        if column not in layout.keys
    ]
    return {
        place: f" token{count}\n" if place[1].endswith("_token") else 1000.00004 + count
        for count, place in enumerate(places)
    }
