"""Tables of numbers are tidy: one row a number, with the same estimates everywhere.

    layer  group   quantity  mean   low    high   ...  tokens  samples
    0      visual  norm      16.5   16.2   16.8        3584    56
    0      text    norm      0.291  0.285  0.297       1120    56

The columns before ``quantity`` are the keys of the table. A column ``mean`` holds the mean over
tokens, or the number itself where it is no mean; estimates that a table never has are left out.

What a number is, is said once: its name, its words, its equation and unit, and its estimates. Each
room declares the tables that it writes in its ``quantities.toml``, a line a quantity. The scale of
its intervals, and the reference of all tables follow.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

QUANTITY = "quantity"
QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.50, "q75": 0.75, "q95": 0.95}
#: The columns of a number's 95 % interval, and of its band over all rows that share one.
INTERVAL = ("low", "high")
BAND = ("band_low", "band_high")
#: Over how many tokens and samples a number is.
COUNTS = ("tokens", "samples")
#: All estimates, in the order of their columns.
ESTIMATES = (
    "mean",
    *INTERVAL,
    *BAND,
    "geometric_mean",
    "geometric_low",
    "geometric_high",
    "std",
    "sample_mean",
    "sample_low",
    "sample_high",
    "sample_std",
    *QUANTILES,
    *COUNTS,
)

#: What is known of each quantity: its estimates by name, an entry a cell of the table.
Numbers = dict[str, dict[str, NDArray[Any]]]


def ends_of(estimate: str) -> tuple[str, str]:
    """The columns of the interval of an estimate: ``low`` and ``high`` of ``mean``."""
    of = estimate.removesuffix("mean")
    return f"{of}low", f"{of}high"


def tidy(cells: pd.DataFrame, numbers: Mapping[str, Mapping[str, ArrayLike]]) -> pd.DataFrame:
    """A tidy table.

    Args:
        cells: the keys, a row a cell, and of all quantities ``tokens`` and ``samples``, as far as
            these are known.
        numbers: by quantity and estimate, an entry a cell; NaN: there is none.

    Returns:
        A row a cell and quantity, cells in their order; none where no estimate is known.
    """
    # An array of cells by quantities for each estimate: pandas takes a table together slowly.
    columns: dict[str, NDArray[np.float64]] = {}
    counted = {name: cells[name].astype(float) for name in COUNTS if name in cells}
    for place, estimates in enumerate(numbers.values()):
        for name, values in (counted | dict(estimates)).items():
            if name not in columns:
                columns[name] = np.full((len(cells), len(numbers)), np.nan)
            columns[name][:, place] = np.asarray(values, dtype=float)
    known = [name for name in ESTIMATES if name in columns and name not in COUNTS]
    known = [name for name in known if not np.isnan(columns[name]).all()]
    there = np.zeros((len(cells), len(numbers)), dtype=bool)
    for name in known:
        there |= ~np.isnan(columns[name])
    cell, quantity = np.nonzero(there)
    keys = {name: cells[name].take(cell).array for name in cells if name not in COUNTS}
    named = pd.Series(list(numbers), dtype=str).take(quantity).array
    table = pd.DataFrame(keys | {QUANTITY: named} | {name: columns[name][there] for name in known})
    for name in COUNTS:
        if name in columns or name in counted:
            values = pd.Series(columns[name][there] if name in columns else (), dtype=float)
            table[name] = values.astype("Int64" if values.isna().any() else int)
    return table


def in_order(table: pd.DataFrame, **orders: Sequence[str]) -> pd.DataFrame:
    """The rows by their keys; quantities stay in their order.

    Args:
        table: tidy, or with the same keys alone.
        orders: of keys that are names: in which order.
    """
    keys = keys_of(table) if QUANTITY in table else list(table.columns)
    places = {name: {value: n for n, value in enumerate(order)} for name, order in orders.items()}
    sorted_keys = table[keys].apply(
        lambda key: key.map(places[key.name]) if key.name in places else key
    )
    ordered: pd.DataFrame = table.loc[sorted_keys.sort_values(keys, kind="stable").index]
    return ordered.reset_index(drop=True)


def select(table: pd.DataFrame, quantity: str, /, **keys: object) -> pd.DataFrame:
    """The rows of a quantity; of these those that hold certain keys.

    All estimates are there, NaN where the table has none of them.
    """
    wanted = table[QUANTITY] == quantity
    for name, value in keys.items():
        wanted &= table[name] == value
    rows = table[wanted]
    lacking = [name for name in ESTIMATES if name not in rows]
    return rows.reindex(columns=[*rows, *lacking]) if lacking else rows


def along(rows: pd.DataFrame, places: Iterable[object], key: str = "layer") -> pd.DataFrame:
    """Rows in the order of a key, with an empty one for each place that they lack.

    A table has no row where a number is not known: here its layers are all there.
    """
    lacking = pd.DataFrame({key: pd.Series(places).dropna().unique()})
    lacking = lacking[~lacking[key].isin(rows[key])]
    if rows.empty:
        return rows.reindex(lacking.index).assign(**{key: lacking[key]}).sort_values(key)
    return pd.concat([rows, lacking]).sort_values(key, kind="stable")


def wide(table: pd.DataFrame, estimate: str = "mean") -> pd.DataFrame:
    """One estimate of every quantity side by side: a row a cell, a column a quantity.

    Returns:
        The keys, ``tokens`` and ``samples`` as the first quantity of a cell has them, and a column
        a quantity.
    """
    keys = keys_of(table)
    counts = [name for name in COUNTS if name in table]
    if table.empty:
        return table.reindex(columns=[*keys, *counts])
    cells = table.groupby(keys, sort=False, dropna=False)
    frame = table[[*keys, *counts]].drop_duplicates(keys).set_axis(range(cells.ngroups))
    places = cells.ngroup()
    for quantity in dict.fromkeys(table[QUANTITY]):
        rows = table[QUANTITY] == quantity
        if estimate in table:
            values = table.loc[rows, estimate].astype(float)
            frame[quantity] = values.set_axis(places[rows]).reindex(frame.index)
    return frame


def is_tidy(table: pd.DataFrame) -> bool:
    """Whether it has a row a number; other tables may have a column ``quantity``, too."""
    columns = list(table.columns)
    place = columns.index(QUANTITY) if QUANTITY in columns else 0
    return place > 0 and {*columns[place + 1 : place + 2]} <= {*ESTIMATES}


def keys_of(table: pd.DataFrame) -> list[str]:
    """The columns before ``quantity``."""
    return list(table.columns[: table.columns.get_loc(QUANTITY)])


# --- what a number is, of quantities.toml --------------------------------------------------------

#: The forms of a column that names rows, and of one that holds something of its own.
KEY, VALUE = "key", "value"
#: The estimates that a form of a quantity stands for.
_FORMS = {
    "mean": ("mean",),
    "std": ("std",),
    "samples": ("sample_mean", "sample_std"),
    "geometric": ("geometric_mean",),
    "quantiles": tuple(QUANTILES),
}
#: Those that have an interval.
_SURE = ("mean", "sample_mean", "geometric_mean")
#: On which scale intervals of its mean are symmetric; without one of them, on the number's own.
SCALE_FORMS = ("log", "fisher", "logit")


@dataclass(frozen=True)
class Quantity:
    """A number of a table."""

    name: str  # what the column ``quantity`` holds; of another table the name of its column
    words: str  # what it is
    equation: str = ""  # in the symbols of the paper, or where it stands there; Markdown with LaTeX
    unit: str = ""  # empty: it is no number
    # ``key``: a column that names rows; ``value``: one of a table that is not tidy, or behind the
    # estimates; else its estimates: ``mean`` (or the number itself), ``std``, ``samples`` (mean and
    # deviation of per-sample means), ``geometric`` (mean), ``quantiles``; ``interval`` and
    # ``band``, where it has them; and their scale, one of ``SCALE_FORMS``
    forms: str = VALUE

    @property
    def estimates(self) -> Iterator[str]:
        """The columns that a tidy table has of it, those with an interval before their ends."""
        forms = self.forms.split()
        for estimate in (name for form in forms for name in _FORMS.get(form, ())):
            yield estimate
            if "interval" in forms and estimate in _SURE:
                yield from ends_of(estimate)
            if "band" in forms and estimate == "mean":
                yield from BAND

    @property
    def scale(self) -> str:
        """On which scale intervals of its mean are symmetric; empty: on its own."""
        return next((form for form in self.forms.split() if form in SCALE_FORMS), "")


@dataclass(frozen=True)
class Table:
    """A CSV file.

    It is tidy where it has keys: a row a number. Its columns are its keys, ``quantity``, the
    estimates, and what stands behind these.
    """

    name: str  # of the file
    rows: str  # what a row is, and which command writes it
    quantities: Sequence[Quantity]  # its numbers and other columns, in the order of the file
    commands: Sequence[str] = ()  # of which it is, where several write another one of its name
    open: bool = False  # it has columns or quantities of other tables, too
    shown: Sequence[str] = ()  # the quantities that are read side by side; none: all

    @property
    def keys(self) -> list[str]:
        """The columns that name a row, beside ``quantity``."""
        return [each.name for each in self.quantities if each.forms == KEY]

    @cached_property
    def numbers(self) -> dict[str, Quantity]:
        """Its quantities by name, in order; none where it is not tidy."""
        return {each.name: each for each in self.quantities if each.forms not in (KEY, VALUE)}

    @property
    def columns(self) -> list[str]:
        """The columns beside keys and estimates; all where it is not tidy."""
        return [each.name for each in self.quantities if each.forms == VALUE]


@cache
def declared(package: str) -> dict[str, Table]:
    """The tables that the ``quantities.toml`` of a package declares, by name; none without it."""
    file = files(package).joinpath("quantities.toml")
    if not file.is_file():
        return {}
    return {
        table["name"]: Table(
            **table | {"quantities": [_quantity(*line) for line in table["quantities"]]}
        )
        for table in tomllib.loads(file.read_text(encoding="utf-8"))["table"]
    }


def _quantity(name: str, forms: str, words: str, equation: str, unit: str) -> Quantity:
    return Quantity(name, words, equation, unit, forms)
