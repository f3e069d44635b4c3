"""What normprobe measures: one folder a question, and what each folder offers to the rest.

A folder holds everything about its question:

All but the first two are there where they are needed.

``__init__``         ``MEASUREMENT``: the facts that are needed before anything is loaded
``measure``          how it is measured; over samples: ``observe(model, inputs)`` runs the model
                     once and returns what it saw, ``rows(seen, sample_ids)`` makes sample rows of
                     that; where it reads the samples themselves, ``observer(model, builder)`` makes
                     a function of inputs and samples, in place of ``observe``
``quantities.toml``  the numbers of its CSV files: names, words, equations, units, columns
``table``            over samples: ``tables(rows, model)``, the CSV files of a run; a short one may
                     stand in ``measure``
``words``            ``verdict(run)``: what its numbers say, in sentences
``shown``            ``show(run, console)``: what a terminal shows of a run; ``section(run)``: its
                     part of the page (without it: the tables as they are); for the first screen
                     ``lead(run)``, a figure, and ``headline(run)``, where the verdict says too
                     much; where tables have a form of their own in print,
                     ``readable(name, table)``, else None
``figures``          ``drawings(run)``: its figures, the main one first; the others are drawn where
                     their tables hold rows
``recomputed``       for ``--verify``: ``differences(model, inputs, traced)``, the numbers of one
                     batch on another way
``compared``         where runs can be compared: what ranks them, and how they stand side by side
``also``             where ``--also`` adds numbers: ``watchers(names, model)`` look at a forward,
                     ``remarks(names, model, inputs)`` say what they will miss, ``facts(names)``
                     what the user's own are
``norm_map``         where norms can be laid over a picture: ``norm_map(model, picture)``

Folders do not import each other. They are resolved by name when something is asked of them, so this
module and the ``__init__`` of each folder load no torch and no pandas.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from normprobe.errors import NormprobeError, did_you_mean
from normprobe.schema import TURN

if TYPE_CHECKING:
    import pandas as pd

    from normprobe.data.sample import Sample
    from normprobe.inputs.builder import InputBuilder
    from normprobe.model.load.required_tensors import Needs
    from normprobe.report.figures.draw import Drawing
    from normprobe.report.readable import ReadableTable
    from normprobe.runs.run_folder import RunStore

#: Every measurement, in the order of ``--help``. A new one is a folder and its name here.
NAMES = (
    "interface",
    "layers",
    "cause",
    "check",
    "grounding",
    "embeddings",
    "attention",
    "compare",
    "survey",
    "align",
    "training",
)


@dataclass(frozen=True)
class Measurement:
    """What a folder offers.

    Attributes:
        name: of the folder, the command, and the main table of a run.
        summary: the help text of the command, of a measurement over samples.
        table: the main table of a run; empty: that of its name.
        needs: the tensors of a model that it reads; None: no model is loaded.
        runs_model: False: it reads weights alone, and needs neither a processor nor parts that
            only a forward passes through.
        measures: roles of the parts without which it has nothing to measure.
        kinds: the kinds of checkpoint that it can measure; none: any.
        over_samples: it runs a model over a data set. Such a measurement has its command, its
            method of ``Probe``, resuming and several processes without a further word.
        data: of a measurement over samples, what it measures unless other data are named.
        batches: of a measurement over samples, a forward may take several samples.
        reads_samples: of a measurement over samples, it reads pictures and what is said of them,
            not the model's inputs alone.
        tables_from_rows: its tables come from the sample rows alone, not from weights: those of one
            batch in memory are made when somebody asks for them.
        text_of_language_models: of a bare language model it measures samples without images alone.
        maps: of a measurement over samples, it lays norms over pictures, where that is asked for.
        shown: tables that its section of the page shows; others are added as they are.
        repeated: figures of which its section of the page shows everything.
        published: quantity of the paper -> the row of the main table that measures it.
        watchers: what else ``--also`` can name, beside numbers of the user's own; none: nothing.
        watching: those of them that were asked for.
        intervals: False: its tables have none, nor those of ``layers`` the theory's numbers.
        intervenes: ``observer`` of its ``measure`` takes names of interventions, too, and ``--do``
            chooses them.
        doing: those that were asked for; none: the usual ones.
        theory: ``show_theory(run, console)`` of its ``shown`` prints more, where asked.
        turns: it can tell the turns of a conversation apart.
    """

    name: str
    summary: str = ""
    table: str = ""
    needs: "Needs | None" = None
    runs_model: bool = True
    measures: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    over_samples: bool = False
    data: str = "sample"
    batches: bool = False
    reads_samples: bool = False
    tables_from_rows: bool = False
    text_of_language_models: bool = False
    maps: bool = False
    shown: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    published: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    watchers: tuple[str, ...] = ()
    watching: tuple[str, ...] = ()
    intervals: bool = True
    intervenes: bool = False
    doing: tuple[str, ...] = ()
    theory: bool = False
    turns: bool = False

    @property
    def main_table(self) -> str:
        """The name of the main table."""
        return self.table or self.name

    def module(self, name: str) -> ModuleType:
        """A module of the folder."""
        return import_module(f"{__name__}.{self.name}.{name}")

    def has(self, name: str) -> bool:
        """Whether the folder holds a module."""
        return find_spec(f"{__name__}.{self.name}.{name}") is not None

    def show(self, run: "RunStore", console: Any) -> None:
        """Print what a terminal shows of a run: tables, and what they say."""
        if self.has("shown"):
            self.module("shown").show(run, console)
            return
        from normprobe.report.terminal import print_readable, print_sentence

        print_readable(self.readable(self.main_table, run.table(self.main_table)), console)
        print_sentence(self.verdict(run), console)

    def verdict(self, run: "RunStore") -> str:
        """What the numbers of a run say, in sentences; empty where they say nothing."""
        sentences: str = self.module("words").verdict(run) if self.has("words") else ""
        return sentences

    def section(self, run: "RunStore") -> list[Any]:
        """Its part of the page, of ``Markup``; nothing of a run that has no main table yet."""
        if run.rows_of(self.main_table) is None:
            return []
        return list(self._shown("section", run) or [])

    def readable(self, name: str, table: "pd.DataFrame") -> "ReadableTable":
        """A table of a run as it is to be read: rounded, or in a form of its own."""
        from normprobe.report.readable import readable_table

        own: ReadableTable | None = self._shown("readable", name, table)
        return readable_table(table) if own is None else own

    def headline(self, run: "RunStore") -> str:
        """What a run says, for the first screen of a page: its verdict, unless that is longer."""
        if run.rows_of(self.main_table) is None:
            return ""
        own = self._shown("headline", run)
        return self.verdict(run) if own is None else str(own)

    def lead(self, run: "RunStore") -> Any:
        """Its figure for the first screen, ``Markup``; None: it has none."""
        return self._shown("lead", run)

    def _shown(self, name: str, *arguments: Any) -> Any:
        """What its module ``shown`` answers; None where it does not say."""
        shown = self.module("shown") if self.has("shown") else None
        return getattr(shown, name)(*arguments) if hasattr(shown, name) else None

    def drawings(self, run: "RunStore") -> "list[Drawing]":
        """The figures that a run may have, the main one first."""
        found: list[Drawing] = self.module("figures").drawings(run) if self.has("figures") else []
        of_maps = import_module("normprobe.report.figures.norm_map").DRAWINGS if self.maps else []
        return [*found, *of_maps]

    def looking_at(self, names: Iterable[str]) -> "Measurement":
        """The same measurement, with some of its ``watchers``, or ``FILE.py:NAME``."""
        watching = tuple(names)
        own = [name for name in watching if self.watchers and ".py:" in name]
        if unknown := [name for name in watching if name not in (*self.watchers, *own)]:
            raise NormprobeError(
                f"{self.name} does not measure {unknown[0]}: expected one of "
                f"{', '.join(self.watchers) or 'none'}",
                did_you_mean(unknown[0], self.watchers, f"leave {unknown[0]} out"),
            )
        return replace(self, watching=watching)

    def intervening(self, names: Sequence[str]) -> "Measurement":
        """The same measurement with some interventions; none: the usual ones."""
        if not self.intervenes:
            if names:
                raise NormprobeError(
                    f"{self.name} does not intervene", "leave do out, or use cause"
                )
            return self
        from normprobe.model.interventions import USUAL, planned

        planned(names, 1)  # refuses unknown ones
        return replace(self, doing=tuple(names) or USUAL)

    def require_turns(self, by: str) -> None:
        """Refuse what it does not tell apart."""
        if by != TURN or not self.turns:
            raise NormprobeError(
                f"{self.name} tells no {by} apart", "leave by out, or use layers with by='turn'"
            )

    def observe(self, model: Any, inputs: Mapping[str, Any]) -> Any:
        """Of a measurement over samples: one forward; what it saw, for ``rows``."""
        observe = self.module("measure").observe
        if not self.watching:
            return observe(model, inputs)
        return observe(model, inputs, self.module("also").watchers(self.watching, model))

    def observer(
        self, model: Any, builder: "InputBuilder"
    ) -> "Callable[[Mapping[str, Any], Sequence[Sample]], Any]":
        """Of a measurement over samples: what is called with each batch and its samples."""
        if not self.reads_samples:
            return lambda inputs, _: self.observe(model, inputs)
        made: Callable[[Mapping[str, Any], Sequence[Sample]], Any]
        asked = [self.doing] if self.intervenes else []
        made = self.module("measure").observer(model, builder, *asked)
        return made

    def remarks(self, model: Any, inputs: Mapping[str, Any]) -> list[str]:
        """Before a run: what those who look further will not see of a model, by one batch."""
        if not self.watching:
            return []
        found: list[str] = self.module("also").remarks(self.watching, model, inputs)
        return found

    @property
    def own_numbers(self) -> dict[str, dict[str, str]]:
        """What a run records of the user's own numbers that were asked for, by name."""
        if not any(".py:" in name for name in self.watching):
            return {}
        found: dict[str, dict[str, str]] = self.module("also").facts(self.watching)
        return found

    def rows(self, seen: Any, sample_ids: Sequence[str] | None) -> "pd.DataFrame":
        """Of a measurement over samples: the sample rows of one forward, a DataFrame."""
        made: pd.DataFrame = self.module("measure").rows(seen, sample_ids)
        return made

    def sample_rows(
        self, model: Any, inputs: Mapping[str, Any], sample_ids: Sequence[str] | None = None
    ) -> "pd.DataFrame":
        """Both at once, for a single batch."""
        return self.rows(self.observe(model, inputs), sample_ids)

    @property
    def tables(self) -> Callable[..., Any]:
        """``tables(rows, model)`` of a measurement over samples."""
        function: Callable[..., Any] = self.module(
            "table" if self.has("table") else "measure"
        ).tables
        return (
            partial(function, intervals=False) if self.theory and not self.intervals else function
        )


def is_measurement(name: str) -> bool:
    """Whether there is a measurement of a name; a run folder may come from another version."""
    return name in NAMES


@cache
def measurement(name: str) -> Measurement:
    """The measurement of a name."""
    if not is_measurement(name):
        raise KeyError(name)
    found: Measurement = import_module(f"{__name__}.{name}").MEASUREMENT
    return found


def measurements() -> list[Measurement]:
    """All of them, in order."""
    return [measurement(name) for name in NAMES]
