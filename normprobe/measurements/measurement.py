"""``Measurement``: what a question is, and where its parts stand.

A folder holds everything about its question, in modules that are there where they are needed:

``measure``          how it is measured; over samples: ``observe(model, inputs)`` runs the model
                     once and returns what it saw, ``rows(seen, sample_ids)`` makes sample rows of
                     that
``quantities.toml``  the numbers of its CSV files: names, words, equations, units, columns
``table``            ``tables(rows, model)``: the CSV files of a run over samples
``shown``            ``show(run, console)``: what a terminal shows of a run; ``section(run)``: its
                     part of the page (without it: the tables as they are), below what it says;
                     ``lead(run)``: a figure for the first screen; where tables have a form of
                     their own in print, ``readable(name, run)``, else None;
                     ``show_theory(run, console)``: what ``--theory`` adds
``words``            ``verdict(run)``: what its numbers say, a headline and findings; text alone
                     is a headline
``figures``          ``drawings(run)``: its figures, the main one first; the others are drawn where
                     their tables hold rows
``recomputed``       for ``--verify``: ``differences(model, inputs, traced)``, the numbers of one
                     batch on another way
``compared``         where runs can be compared: what ranks them, and how they stand side by side

In a short folder ``measure`` holds the tables too, and ``shown`` words and figures.
Its ``__init__`` holds the class, which imports them where they are asked for: naming the
measurements loads neither torch nor pandas. Folders do not import each other.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from normprobe.errors import NormprobeError, did_you_mean
from normprobe.schema import TURN

if TYPE_CHECKING:
    import pandas as pd

    from normprobe.data.sample import Sample
    from normprobe.inputs.builder import InputBuilder
    from normprobe.model.captured_states import Differences
    from normprobe.model.load.required_tensors import Needs
    from normprobe.report.figures.draw import Drawing
    from normprobe.report.ratio_words import Estimate
    from normprobe.report.readable import ReadableTable
    from normprobe.report.verdict import Verdict
    from normprobe.runs.run_folder import RunStore
    from normprobe.tidy import Table


class WordsModule(Protocol):
    """The module ``words``."""

    def verdict(self, run: "RunStore") -> "Verdict | str":
        """What the numbers of a run say."""


class ShownModule(Protocol):
    """The module ``shown``; what else it may hold, ``Measurement`` asks for by name."""

    def show(self, run: "RunStore", console: Any) -> None:
        """Print what a terminal shows of a run."""


class FiguresModule(Protocol):
    """The module ``figures``."""

    def drawings(self, run: "RunStore") -> "list[Drawing]":
        """The figures that a run may have, the main one first."""


class RecomputedModule(Protocol):
    """The module ``recomputed``."""

    def differences(self, model: Any, inputs: Mapping[str, Any], traced: Any) -> "Differences":
        """How far the numbers of one batch are from the same on another way."""


class ComparedModule(Protocol):
    """The module ``compared``."""

    @property
    def COLUMNS(self) -> Mapping[str, str]:
        """What the ranking shows: a header -> a number of ``measures``."""

    @property
    def NOTES(self) -> Sequence[str]:
        """What stands below it."""

    @property
    def RANKED(self) -> str:
        """What the first of its numbers is, the one that ranks."""

    @property
    def ROW_COLUMNS(self) -> Sequence[str]:
        """Columns of the sample rows that ``measures`` reads; none: it reads no rows."""

    def measures(self, table: "pd.DataFrame", rows: "pd.DataFrame", /) -> "dict[str, Estimate]":
        """The numbers that rank a run, of its main table."""

    def drawings(self, compare: "pd.DataFrame", /) -> "list[Drawing]":
        """The figures of a comparison."""


class Measurement:
    """A question. A subclass says what it is, and which modules its folder has.

    Attributes:
        name: of the folder, the command, and the main table of a run.
        table: the main table of a run; empty: that of its name.
        runs_model: False: it reads weights alone, and needs neither a processor nor parts that
            only a forward passes through.
        measures: roles of the parts without which it has nothing to measure.
        kinds: the kinds of checkpoint that it can measure; none: any.
        section_tables: tables that its section of the page shows; others are added as they are.
        section_figures: figures of which its section of the page shows everything.
        published: quantity of the paper -> the row of the main table that measures it.
    """

    name = ""
    table = ""
    runs_model = True
    measures: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    section_tables: tuple[str, ...] = ()
    section_figures: tuple[str, ...] = ()
    published: ClassVar[Mapping[str, Mapping[str, object]]] = {}

    def __init__(self, name: str = "") -> None:
        self.name = name or self.name

    @property
    def needs(self) -> "Needs | None":
        """The tensors of a model that it reads; None: no model is loaded."""
        return None

    @property
    def words(self) -> WordsModule | None:
        """What its numbers say; None: ``shown`` knows, or nobody."""
        return None

    @property
    def shown(self) -> ShownModule | None:
        """How a run is shown; None: as its main table."""
        return None

    @property
    def figures(self) -> FiguresModule | None:
        """Its figures; None: ``shown`` knows them, or it has none."""
        return None

    @property
    def recomputed(self) -> RecomputedModule | None:
        """Its numbers on another way; None: there is none."""
        return None

    @property
    def compared(self) -> ComparedModule | None:
        """How runs are ranked and compared; None: they are not."""
        return None

    @property
    def main_table(self) -> str:
        """The name of the main table."""
        return self.table or self.name

    def quantities(self) -> "Mapping[str, Table]":
        """The tables that its ``quantities.toml`` declares, by name; none where it has no such."""
        from normprobe.tidy import declared

        package = type(self).__module__
        return declared(package) if hasattr(sys.modules[package], "__path__") else {}

    def require_whole(self) -> None:
        """Raise ``TypeError`` where something is missing that every measurement has."""
        if not self.name.isidentifier():
            raise TypeError(f"{type(self).__name__}.name is {self.name!r}: expected a name")

    def show(self, run: "RunStore", console: Any) -> None:
        """Print what a terminal shows of a run: its tables."""
        if self.shown is not None:
            self.shown.show(run, console)
            return
        from normprobe.report.terminal import print_readable

        print_readable(self.readable(self.main_table, run), console)

    def show_theory(self, run: "RunStore", console: Any) -> None:
        """Print what is shown where ``--theory`` asks for it."""
        self._shown("show_theory", run, console)

    def verdict(self, run: "RunStore") -> "Verdict | str":
        """What the numbers of a run say; text alone is a headline, an empty one says nothing."""
        return (
            (self._shown("verdict", run) or "") if self.words is None else self.words.verdict(run)
        )

    def verdict_of_run(self, run: "RunStore") -> "Verdict":
        """``verdict`` as every place renders it."""
        from normprobe.report.verdict import Verdict

        verdict = self.verdict(run)
        return verdict if isinstance(verdict, Verdict) else Verdict(verdict)

    def section(self, run: "RunStore") -> list[Any]:
        """Its part of the page, of ``Markup``; nothing of a run that has no main table yet.

        What it says, then what its module ``shown`` adds; its tables follow as they are.
        """
        if run.rows_of(self.main_table) is None:
            return []
        from normprobe.report.page.blocks import verdict_block

        return [verdict_block(self.verdict_of_run(run)), *(self._shown("section", run) or [])]

    def readable(self, name: str, run: "RunStore") -> "ReadableTable":
        """A table of a run as it is to be read: rounded, or in a form of its own."""
        from normprobe.report.readable import readable_table

        own: ReadableTable | None = self._shown("readable", name, run)
        table = run.table(name)
        return readable_table(table, self.main_quantities(name, table)) if own is None else own

    def main_quantities(self, name: str, table: "pd.DataFrame") -> list[str] | None:
        """Which quantities of a tidy table are read side by side; None: all."""
        known = self.quantities().get(name)
        held = set(table["quantity"]) if known and "quantity" in table else set()
        return [each for each in known.shown if each in held] or None if known else None

    def lead(self, run: "RunStore") -> Any:
        """Its figure for the first screen, ``Markup``; None: it has none."""
        return self._shown("lead", run)

    def _shown(self, name: str, *arguments: Any) -> Any:
        """What its module ``shown`` answers; None where it does not say."""
        shown = self.shown
        return getattr(shown, name)(*arguments) if hasattr(shown, name) else None

    def drawings(self, run: "RunStore") -> "list[Drawing]":
        """The figures that a run may have, the main one first."""
        if self.figures is not None:
            return [*self.figures.drawings(run)]
        return [*(self._shown("drawings", run) or ())]


class SampleMeasurement(Measurement):
    """A question that a model is asked over the samples of a data set.

    It has its command, its method of ``Probe``, resuming and several processes without a further
    word.

    Attributes:
        summary: the help text of the command.
        data: what it measures unless other data are named.
        batches: a forward may take several samples.
        reads_samples: it reads pictures and what is said of them, not the model's inputs alone.
        needs_images: it makes no sense of a sample without one.
        text_alone: of a bare language model it measures samples without images alone.
        tables_can_wait: those of one batch in memory are made when somebody asks for them: they
            come from the sample rows, not from weights.
        intervals: its tables have some.
        options: what it takes of ``map`` (norms laid over pictures), ``also`` (more numbers),
            ``by`` (turns of a conversation), ``do`` (interventions), ``answer`` (greedy answers),
            ``theory`` (more to print), ``tower`` (blocks of a tower in place of decoder layers).
        asked_of: whose option asks for it; empty: it has a command of its own.
    """

    summary = ""
    data = "sample"
    batches = False
    reads_samples = False
    needs_images = False
    text_alone = False
    tables_can_wait = False
    intervals = True
    options: frozenset[str] = frozenset()
    asked_of = ""

    def require_whole(self) -> None:
        """Likewise, what every measurement over samples has."""
        super().require_whole()
        for what in ("summary", "needs"):
            if not getattr(self, what):
                raise TypeError(f"{type(self).__name__}.{what} is missing")

    def rows(self, seen: Any, sample_ids: Sequence[str] | None) -> "pd.DataFrame":
        """The sample rows of what one forward saw, with columns ``sample_id`` and ``group``."""
        raise NotImplementedError

    def tables(self, rows: "pd.DataFrame", model: Any) -> "Mapping[str, pd.DataFrame]":
        """The CSV files of a run, of the rows of all samples."""
        raise NotImplementedError

    def observe(self, model: Any, inputs: Mapping[str, Any]) -> Any:
        """One forward; what it saw, for ``rows``."""
        raise NotImplementedError

    def observer(
        self, model: Any, builder: "InputBuilder"
    ) -> "Callable[[Mapping[str, Any], Sequence[Sample]], Any]":
        """What is called with each batch and its samples."""
        return lambda inputs, _: self.observe(model, inputs)

    def sample_rows(
        self, model: Any, inputs: Mapping[str, Any], sample_ids: Sequence[str] | None = None
    ) -> "pd.DataFrame":
        """The rows of a single batch."""
        return self.rows(self.observe(model, inputs), sample_ids)

    def norm_map(self, model: Any, picture: Any) -> Any:
        """Norms that lie over a picture, where its options have ``map``."""
        raise NotImplementedError

    def drawings(self, run: "RunStore") -> "list[Drawing]":
        """Its figures, and maps where it draws some."""
        found = super().drawings(run)
        if "map" in self.options:
            from normprobe.report.figures.norm_map import DRAWINGS

            found += DRAWINGS
        return found

    def asking(
        self,
        *,
        also: Sequence[str] = (),
        by: str | None = None,
        do: Sequence[str] = (),
        answer: bool = False,
        intervals: bool = True,
    ) -> Self:
        """The same measurement with what else it is asked for.

        Raises:
            NormprobeError: it does not do that.
        """
        if also and "also" not in self.options:
            raise unknown_word(self.name, also[0], ())
        for name, given in (("do", do), ("answer", answer)):
            if given and name not in self.options:
                raise NormprobeError(
                    f"{self.name} does not intervene", f"leave {name} out, or use cause"
                )
        if by is not None and (by != TURN or "by" not in self.options):
            raise NormprobeError(
                f"{self.name} tells no {by} apart", "leave by out, or use layers with by='turn'"
            )
        return self

    def of_tower(self, modality: str) -> "SampleMeasurement":
        """The measurement of a tower that an option asks for.

        Raises:
            NormprobeError: it does not do that.
        """
        raise NormprobeError(f"{self.name} measures no tower", "leave tower out, or use layers")

    def facts(self, model: Any, first: "Callable[[], Mapping[str, Any]]") -> dict[str, Any]:
        """What a run records of what is measured, before it is, by one batch."""
        return {}

    @property
    def requested(self) -> Mapping[str, tuple[str, ...]]:
        """What it is asked for beside its usual numbers, for the record."""
        return {"also": ()}

    def remarks(self, model: Any, first: "Callable[[], Mapping[str, Any]]") -> list[str]:
        """Before a run: what those who look further will not see of a model, by one batch."""
        return []

    @property
    def own_numbers(self) -> dict[str, dict[str, str]]:
        """What a run records of the user's own numbers that were asked for, by name."""
        return {}


def unknown_word(name: str, word: str, known: Sequence[str]) -> NormprobeError:
    """What is said of a word that an option of a measurement does not take."""
    return NormprobeError(
        f"{name} does not measure {word}: expected one of {', '.join(known) or 'none'}",
        did_you_mean(word, known, f"leave {word} out"),
    )
