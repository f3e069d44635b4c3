"""What a number is, said once: its name, its words, its equation and unit, and its columns.

Each room declares the tables that it writes in its ``quantities.toml``, a line a quantity. The
columns of the CSV files and their intervals, and the reference of columns follow.
"""

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.50, "q75": 0.75, "q95": 0.95}
#: What ends the columns of a number's 95 % interval in each row, and of its band over all rows.
INTERVAL = ("_ci_low", "_ci_high")
BAND = ("_band_low", "_band_high")

_ENDS = {"interval": INTERVAL, "band": BAND}
#: The columns that a form of a quantity stands for; those of them with an interval; with a band.
_FORMS = {
    "value": ([""], [""], [""]),
    "mean": (["_mean"], ["_mean"], ["_mean"]),
    "std": (["_std"], [], []),
    "samples": (["_sample_mean", "_sample_std"], ["_sample_mean"], []),
    "geometric": (["_geometric_mean"], ["_geometric_mean"], []),
    "quantiles": ([f"_{name}" for name in QUANTILES], [], []),
    "modalities": (["_visual", "_text"], ["_visual", "_text"], ["_visual", "_text"]),
}


@dataclass(frozen=True)
class Quantity:
    """A number of a table."""

    name: str  # what its columns begin with
    words: str  # what it is
    equation: str = ""  # in the symbols of the paper, or where it stands there; Markdown with LaTeX
    unit: str = ""  # empty: it is no number
    # its columns: ``value`` (one of its name), ``mean``, ``std``, ``samples`` (mean and deviation
    # of per-sample means), ``geometric`` (mean), ``quantiles``, ``modalities`` (one of visual, one
    # of text tokens); with ``interval`` and ``band``, those that have one
    forms: str = "value"

    @property
    def columns(self) -> Iterator[str]:
        """Its columns in order, those with an interval or a band before their ends."""
        forms = self.forms.split()
        for form in forms:
            if form in _ENDS:
                continue
            suffixes, *with_ends = _FORMS[form]
            for suffix in suffixes:
                yield self.name + suffix
                for (kind, ends), those in zip(_ENDS.items(), with_ends, strict=True):
                    if kind in forms and suffix in those:
                        yield from (self.name + suffix + end for end in ends)


@dataclass(frozen=True)
class Table:
    """A CSV file."""

    name: str  # of the file
    rows: str  # what a row is, and which command writes it
    quantities: Sequence[Quantity]  # its columns, in the order of the file
    commands: Sequence[str] = ()  # of which it is, where several write another one of its name
    open: bool = False  # it has columns of other tables, too

    @property
    def columns(self) -> list[str]:
        """All columns that it may have."""
        return [column for quantity in self.quantities for column in quantity.columns]


@cache
def declared(room: str) -> dict[str, Table]:
    """The tables of a room by name.

    Args:
        room: a package of normprobe, such as ``measurements.layers``.
    """
    text = files(f"normprobe.{room}").joinpath("quantities.toml").read_text(encoding="utf-8")
    return {
        table["name"]: Table(
            **table | {"quantities": [_quantity(*line) for line in table["quantities"]]}
        )
        for table in tomllib.loads(text)["table"]
    }


def _quantity(name: str, forms: str, words: str, equation: str, unit: str) -> Quantity:
    return Quantity(name, words, equation, unit, forms)
