"""``Run``: what a measurement found, to read, plot, save and compare.

run = Probe("org/model").layers(data="mmbench")
run.table, run.verdict, run.figures()
run.save("runs/mine")                     # the same files that the command line writes
load_run("runs/mine")
compare([run, "runs/other"])
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from normprobe.errors import NormprobeError, did_you_mean, first_line, visible
from normprobe.measurements import measurements, over_samples
from normprobe.measurements.measurement import Measurement
from normprobe.options import AUTO, Output, takes
from normprobe.paper.numbers import print_published, published_table
from normprobe.report.figures.draw import build, draw, figure_of, image_tag
from normprobe.report.page.blocks import note, verdict_block
from normprobe.report.page.document import Section, models, page, table_title
from normprobe.report.ranking import listed
from normprobe.report.readable import ReadableTable, parts_of, pivot, readable_table
from normprobe.report.sentences import broken_states
from normprobe.report.table_text import latex, markdown
from normprobe.report.terminal import print_verdict
from normprobe.report.verdict import NOTHING, Verdict
from normprobe.runs.begin import default_compare_path, doubt, open_store, provenance
from normprobe.runs.files import csv_bytes
from normprobe.runs.run_folder import COMPLETE, RECORD, RunFolder, RunStore
from normprobe.schema import PUBLISHED
from normprobe.tidy import ESTIMATES, QUANTITY, is_tidy, keys_of

#: What reading a table raises where it lacks a column, or holds something else in it.
_UNFIT = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

    from normprobe.report.figures.lines import Given


class Run:
    """A run, in memory or in a folder.

    Attributes:
        store: what it holds.
    """

    def __init__(self, store: RunStore) -> None:
        self.store = store

    def __repr__(self) -> str:
        where = self.path or "in memory"
        return f"<Run of {self.command}: {self.record.get('model')}, {where}>"

    @property
    def path(self) -> Path | None:
        """The run folder; None where there is none."""
        return self.store.path

    @property
    def record(self) -> dict[str, Any]:
        """What ``run.json`` holds: model, data, options, versions, warnings."""
        return self.store.record

    @property
    def command(self) -> str:
        """The measurement."""
        return self.store.command

    @property
    def table(self) -> pd.DataFrame:
        """The main table, that of ``<command>.csv``: a row a number.

        Raises:
            NormprobeError: the run does not hold it.
        """
        return self.store.table(self.main_table)

    def wide(self, quantity: str, estimate: str = "mean", table: str | None = None) -> pd.DataFrame:
        """One quantity side by side, to look at and to plot: layers down, token groups across.

        Args:
            quantity: of the table's column ``quantity``.
            estimate: which column: ``mean``, ``low``, ``geometric_mean``, ``q50`` ...
            table: of ``tables``; None: the main table.

        Returns:
            The last key of the table across, the others as its index.

        Raises:
            NormprobeError: the run does not hold the table, or that lacks the quantity or the
                estimate.
        """
        name = table or self.main_table
        rows = self.store.table(name)
        if not is_tidy(rows):
            raise NormprobeError(f"{name} is no table of quantities", "read it from tables")
        for what, column, held in (
            ("quantity", quantity, [*dict.fromkeys(rows[QUANTITY])]),
            ("estimate", estimate, [name for name in ESTIMATES if name in rows]),
        ):
            if column not in held:
                raise NormprobeError(
                    f"{name} has no {what} {column}",
                    did_you_mean(column, held, f"it has {', '.join(held)}"),
                )
        *down, across = keys_of(rows)
        chosen = rows[rows[QUANTITY] == quantity]
        if not down:
            return chosen.set_index(across)[[estimate]].rename(columns={estimate: quantity})
        order = {key: chosen[key].drop_duplicates() for key in (across, *down)}
        with explained(self.store):
            made = chosen.pivot(index=down, columns=across, values=estimate)
        made = made.reindex(columns=order[across])
        return made if len(down) > 1 else made.reindex(order[down[0]])

    @property
    def main_table(self) -> str:
        """The name of ``table``."""
        return _offered(self.store).main_table

    @property
    def tables(self) -> Mapping[str, pd.DataFrame]:
        """All tables by name, read when they are asked for."""
        return _Tables(self.store)

    @property
    def samples(self) -> pd.DataFrame:
        """The sample rows that the tables are made of; empty where it measured no samples."""
        return self.store.rows()

    @property
    def verdict(self) -> Verdict:
        """What the numbers say: a headline and findings; ``str`` of it is text.

        Raises:
            NormprobeError: a table is missing.
        """
        with explained(self.store):
            return _offered(self.store).verdict_of_run(self.store)

    def show(self, console: "Console", *, theory: bool = False) -> None:
        """Print what the command line prints: tables, what they say, the paper's numbers.

        Args:
            console: of rich.
            theory: of ``layers``, also which assumptions of the paper's theory hold.

        Raises:
            NormprobeError: a table is missing.
        """
        if theory and not self.has_theory:
            raise NormprobeError(
                f"a run of {self.command} says nothing of the theory", "leave theory out"
            )
        with explained(self.store):
            offered = _offered(self.store)
            offered.show(self.store, console)
            print_verdict(offered.verdict_of_run(self.store), console)
            if theory:
                offered.show_theory(self.store, console)
            self.show_published(console)

    @property
    def has_theory(self) -> bool:
        """Whether ``show`` has more to print with ``theory``."""
        asked = "theory" in getattr(_offered(self.store), "options", ())
        return asked and self.store.rows_of("theory") is not None

    def show_published(self, console: "Console") -> None:
        """Print what the paper says of the model, where it says something."""
        if self.store.has_table(PUBLISHED):
            print_published(self.store.table(PUBLISHED), console)

    def published(self, model: str, base: str | None = None) -> pd.DataFrame | None:
        """What the paper says of a model beside what the run measured of it.

        Args:
            model: which of the paper's models it is: a hub id.
            base: likewise, of the base model of ``embeddings --base``; None: what the run says.

        Returns:
            As ``published.csv``; None where the paper has no number that the run measures.

        Raises:
            NormprobeError: a table is missing.
        """
        with explained(self.store):
            return published_table(self.store, _offered(self.store).published, model, base)

    def to_csv(self, table: str | None = None, columns: Sequence[str] | None = None) -> str:
        """A table as CSV in full precision, its main quantities side by side.

        Arguments are of ``readable``. The files of a run folder are tidy: a row a number.
        """
        name = table or self.main_table
        rows = self._chosen(name, columns)
        if is_tidy(rows):
            with explained(self.store):
                rows = pivot(rows, columns or _offered(self.store).main_quantities(name, rows))
            rows.columns = pd.Index([" ".join(parts_of(header)) for header in rows])
        return csv_bytes(rows).decode("utf-8")

    def to_markdown(self, table: str | None = None, columns: Sequence[str] | None = None) -> str:
        """A table as Markdown. Arguments are of ``readable``."""
        return markdown(self.readable(table, columns))

    def to_latex(self, table: str | None = None, columns: Sequence[str] | None = None) -> str:
        """A table as LaTeX for the package booktabs, with caption, label and notes.

        Arguments are of ``readable``.
        """
        return latex(self.titled(table, columns))

    def titled(
        self, table: str | None = None, columns: Sequence[str] | None = None
    ) -> ReadableTable:
        """As ``readable``, with a title and a label where the table has none of its own."""
        found, name = self.readable(table, columns), table or self.main_table
        title = visible(table_title(self.store, name))
        label = self.store.name if name == self.command else f"{self.store.name}-{name}"
        return replace(found, title=found.title or title, label=found.label or label)

    def readable(
        self, table: str | None = None, columns: Sequence[str] | None = None
    ) -> ReadableTable:
        """A table as text: numbers with 4 significant digits, or a paper's table in its own form.

        Of a tidy table its main quantities stand side by side.

        Args:
            table: of ``tables``; None: the main table.
            columns: which of its quantities, or of its columns where it is not tidy, in this order;
                None: those that it has for this.

        Raises:
            NormprobeError: the run does not hold the table, or it lacks one of them.
        """
        name = table or self.main_table
        rows = self._chosen(name, columns)
        with explained(self.store):
            if columns is None:
                return _offered(self.store).readable(name, self.store)
            return readable_table(rows, columns)

    def _chosen(self, name: str, columns: Sequence[str] | None) -> pd.DataFrame:
        """A table; one that is not tidy with these columns alone."""
        rows = self.store.table(name)
        tidy = is_tidy(rows)
        held = [*dict.fromkeys(rows[QUANTITY] if tidy else map(str, rows))]
        for column in columns or ():
            if column not in held:
                raise NormprobeError(
                    f"{name} has no {QUANTITY if tidy else 'column'} {column}",
                    did_you_mean(column, held, f"it has {', '.join(held)}"),
                )
        return rows if tidy or columns is None else rows[list(columns)]

    def figures(self) -> dict[str, "Figure"]:
        """The figures by name, drawn from the tables alone; a notebook shows them all.

        Raises:
            NormprobeError: a table is missing or empty.
        """
        with explained(self.store):
            return build(_offered(self.store).drawings(self.store), self.store)

    def figure(self, name: str, ax: "Given" = None) -> "Figure":
        """One of the figures, in a figure of your own where you give its axes.

        Args:
            name: of ``figures``.
            ax: as many axes as it has panels, row by row: ``run.figure("layers", ax=axes)`` after
                ``_, axes = plt.subplots(1, 2)``; None: a new figure.

        Returns:
            The new figure, or that of ``ax``, which keeps its own title and gets the legend in its
            first panel.

        Raises:
            NormprobeError: there is no such figure, one of its tables is missing or empty, or
                ``ax`` are not as many as its panels.
        """
        drawings = {drawing.name: drawing for drawing in _offered(self.store).drawings(self.store)}
        if name not in drawings:
            raise NormprobeError(
                f"a run of {self.command} has no figure {name}",
                did_you_mean(name, drawings, f"it has {', '.join(drawings) or 'none'}"),
            )
        with explained(self.store):
            return figure_of(drawings[name], self.store, ax)

    def save(self, folder: str | Path, *, overwrite: bool = False, figures: bool = True) -> "Run":
        """Write a run folder: the files that the command line writes.

        Args:
            folder: new or empty.
            overwrite: replace a run folder that exists.
            figures: draw them, too.

        Returns:
            The run in the folder.

        Raises:
            NormprobeError: the folder holds something else or this run, or cannot be written.
        """
        if self.path is not None and self.path.resolve() == Path(folder).resolve():
            raise NormprobeError(f"{folder} is the run itself", "choose another folder")
        facts = dict(self.record)
        tables = dict(self.tables)
        saved = RunFolder.create(Path(folder), overwrite=overwrite, record=facts)
        with saved.discarded_on_failure():
            saved.note(warnings=facts["warnings"])
            for name, table in tables.items():
                saved.write_table(name, table)
            for name, image in self.store.images():
                saved.write_image(name, image)
            if figures:
                draw(_offered(saved).drawings(saved), saved)
            saved.append(self.samples)  # last: a folder with samples is kept when something fails
            if facts["status"] == COMPLETE:
                saved.finish()
        return Run(saved)

    def page(self) -> str:
        """The run as one self-contained page, HTML."""
        return page_of([self])

    def _repr_html_(self) -> str:
        """In a notebook: what it says, the main figure, the main table."""
        said = verdict_block(self.verdict)
        for drawing in _offered(self.store).drawings(self.store)[:1]:
            said += image_tag(self.figure(drawing.name))
        shown = self.readable()
        table = pd.DataFrame(shown.rows, columns=[" ".join(parts) for parts in shown.headers])
        return f"{said}\n{table.to_html(max_rows=20, index=False)}"


class _Tables(Mapping[str, pd.DataFrame]):
    """The tables of a run, read when they are asked for."""

    def __init__(self, store: RunStore) -> None:
        self._store = store

    def __getitem__(self, name: str) -> pd.DataFrame:
        if name not in self._store.table_names:
            raise KeyError(name)
        return self._store.table(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.table_names)

    def __repr__(self) -> str:
        return f"<tables: {', '.join(self) or 'none'}>"

    def __len__(self) -> int:
        return len(self._store.table_names)


def load_run(folder: str | Path) -> Run:
    """Open a run folder.

    Raises:
        NormprobeError: it is none.
    """
    return Run(RunFolder.open(Path(folder)))


def require_repeatable(run: Run) -> None:
    """Refuse what holds too little to be measured again.

    Raises:
        NormprobeError: saying what is missing.
    """
    record, options = run.record, run.record.get("options") or {}
    if run.command not in over_samples():
        raise NormprobeError(
            f"{run.path} is a run of {run.command}, which measures no samples that could be drawn",
            "give a run of interface, layers or grounding",
        )
    if record["status"] != COMPLETE:
        raise NormprobeError(
            f"{run.path} is not complete: it was interrupted", "finish it with --resume"
        )
    for name, what in (("model", "a model in memory"), ("data", "inputs that were given")):
        if not isinstance(options.get(name), str) or (
            name == "data" and not record.get("sample_ids")
        ):
            raise NormprobeError(
                f"{run.path} measured {what}, which no folder holds",
                "give a run of a checkpoint over samples",
            )


@takes(Output, without=("resume",))
def compare(
    runs: Sequence[Run | str | Path], labels: Sequence[str] | None = None, **to: Any
) -> Run:
    """Put runs of one measurement side by side: models, checkpoints, before and after.

    Args:
        runs: two or more, or their folders.
        labels: a name for each; a number is its training step. None: what tells them apart.
        **to: ``output``, the run folder (``auto``: below ``runs/``; None: it stays in memory), and
            ``overwrite``: replace a run folder that exists.

    Raises:
        NormprobeError: fewer than two, one twice, an incomplete run, or runs of different
            measurements or of different schema versions.
    """
    from normprobe.measurements.compare.measure import compared_runs, open_runs

    started = time.perf_counter()
    stores = open_runs([run.store if isinstance(run, Run) else Path(run) for run in runs])
    with explained(*stores):
        found = compared_runs(stores, labels)
    record = provenance(sys.argv, {"label": labels}, command="compare", **found.facts)
    output = Output(**to)
    if str(output.output) == AUTO:
        output = replace(output, output=default_compare_path(str(found.facts["compared"])))
    made = open_store(record, output)
    with made.discarded_on_failure():
        for warning in found.warnings:
            made.add_warning(warning)
        for name, image in found.images.items():
            made.write_image(name, image)
        return finished(made, found.tables, started)


def page_of(runs: Sequence[Run]) -> str:
    """One self-contained page of any runs, HTML.

    Raises:
        NormprobeError: a table of a run cannot be read.
    """
    with explained(*(run.store for run in runs)):
        return page([_section(run.store) for run in runs], _over_all(runs))


def _over_all(runs: Sequence[Run]) -> Section | None:
    """What begins a page of several runs: the first comparison or survey, or one made here."""
    given = next((run for run in runs if run.command in ("compare", "survey")), None)
    if given is not None:
        return _section(given.store)
    done = [run for run in runs if run.record["status"] == COMPLETE]
    of_each = [[run for run in done if run.command == name] for name in ("layers", "interface")]
    most = max(of_each, key=len)
    try:
        made = _section(compare(most).store)
    except NormprobeError:  # fewer than two, or written by another version
        return None
    among = models([run.store for run in most])
    if left := [name for name in models([run.store for run in runs]) if name not in among]:
        words = note(f"Without a complete run of {most[0].command}: {listed(left)}.")
        made = replace(made, lead=(made.lead or words[:0]) + words)
    return made


def finished(run: RunStore, tables: Mapping[str, pd.DataFrame], started: float) -> Run:
    """Write the tables, draw the figures from them, call the run complete.

    Args:
        run: its samples, if it has any, are measured.
        tables: by name.
        started: when the measurement began, of ``time.perf_counter``.
    """
    _write_tables(run, tables)
    if run.command in over_samples():
        _doubt_broken_states(run, tables[_offered(run).main_table])
    if isinstance(run, RunFolder):
        draw(_offered(run).drawings(run), run)
    run.finish(seconds=round(time.perf_counter() - started, 3))
    return Run(run)


def finished_later(
    run: RunStore, tables: Callable[[], Mapping[str, pd.DataFrame]], started: float
) -> Run:
    """``finished`` for a run in memory whose tables are made when somebody asks for one.

    Args:
        run: in memory, its samples measured.
        tables: makes them.
        started: when the measurement began, of ``time.perf_counter``.
    """
    _doubt_broken_states(run, run.rows())
    run.defer(lambda: _write_tables(run, tables()))
    run.finish(seconds=round(time.perf_counter() - started, 3))
    return Run(run)


def _write_tables(run: RunStore, tables: Mapping[str, pd.DataFrame]) -> None:
    """Write the tables and the paper's numbers."""
    for name, table in tables.items():
        run.write_table(name, table)
    write_published(run, str(run.record["model"]))


def _doubt_broken_states(run: RunStore, table: pd.DataFrame) -> None:
    """Say which states are no vectors to measure."""
    for line in broken_states(table):
        doubt(run, line)


def write_published(run: RunStore, model: str, base: str | None = None) -> None:
    """Add ``published.csv`` where the paper has numbers of this model as it was released.

    Args:
        run: of any measurement, its tables written.
        model: a hub id, or the name of a folder with a local copy.
        base: likewise, of the base model of ``embeddings --base``; None: what the run says.

    Raises:
        NormprobeError: the file cannot be written.
    """
    table = published_table(run, _offered(run).published, model, base)
    if table is not None:
        run.write_table(PUBLISHED, table)


def _section(store: RunStore) -> Section:
    """A run of any name has a section: its tables as they are."""
    if store.command not in measurements():
        return Section(store, [])
    offered = _offered(store)
    begun = store.rows_of(offered.main_table) is not None
    return Section(
        store,
        offered.section(store),
        offered.section_tables,
        offered.section_figures,
        offered.verdict_of_run(store) if begun else NOTHING,
        offered.lead(store),
    )


@contextmanager
def explained(*stores: RunStore) -> Iterator[None]:
    """Turn what a record or table of a run folder breaks into a ``NormprobeError``.

    The files may come from elsewhere: a column that is absent, rows that are there twice, text in
    place of a number. Of runs in memory nothing is explained: their tables were made here.

    Raises:
        NormprobeError: naming the folders.
    """
    try:
        yield
    except _UNFIT as error:
        folders = [str(store.path) for store in stores if store.path is not None]
        if not folders:
            raise
        raise NormprobeError(
            f"the tables or {RECORD} of {', '.join(folders)} are not as normprobe writes them: "
            f"{type(error).__name__}: {first_line(error)}",
            "measure again; NORMPROBE_DEBUG=1 shows where they are read",
        ) from error


def _offered(store: RunStore) -> Measurement:
    """The measurement of a run; of one that is not known here, nothing but its name."""
    return measurements().get(store.command) or Measurement(store.command)
