"""``check``: the gate of a release or a port."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from normprobe.cli import console
from normprobe.cli.grouping import Display, Model, Starting, grouped, only
from normprobe.errors import NormprobeError
from normprobe.options import Excludes, Loading, Needs, Sampling

if TYPE_CHECKING:
    from normprobe.measurements.check.baseline import Baseline, Checked

#: Beside ``console.FAILED``, with which a check ends where states differ.
_NOT_ENOUGH_EVIDENCE = 3
_SAMPLES = 8  # of a baseline, unless --limit says how many

_DRAWN = ("data", "prompt", "limit", "seed", "workers")


@grouped
def check(
    model: Model = "specimen",
    write: Annotated[
        Path | None,
        typer.Option(help="Write the baseline: what MODEL is now.", metavar="FILE.json"),
        Excludes("against", "against_dtype", "fake_quant"),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(help="A baseline, a run folder or another model.", metavar="FILE|RUN|MODEL"),
    ] = None,
    against_dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        typer.Option(help="MODEL itself in this type, and what that costs.", metavar="NAME"),
        Excludes("against"),
    ] = None,
    fake_quant: Annotated[
        Literal["int8-tensor", "int8-token", "fp8-tensor", "fp8-token"] | None,
        typer.Option(
            help="MODEL itself, what the decoder's linear layers read rounded to int8-tensor, "
            "int8-token, fp8-tensor or fp8-token, a scale a tensor or token; and what that costs.",
            metavar="NAME",
        ),
        Excludes("against", "against_dtype"),
    ] = None,
    states: Annotated[
        Path | None,
        typer.Option(help="Are these files of another engine MODEL's states?", metavar="DIR"),
        Excludes("write", "against", "against_dtype", "fake_quant"),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(min=0, help="In parts of a state's length. Default: by dtype.", metavar="X"),
        Needs("against", "against_dtype", "fake_quant", "states"),
    ] = None,
    junit: Annotated[
        Path | None,
        typer.Option(help="Write a test report for CI.", metavar="FILE.xml"),
        Needs("against", "against_dtype", "fake_quant", "states"),
    ] = None,
    *,
    sampling: Annotated[Sampling, only(Sampling, *_DRAWN), Starting(data=None)],
    loading: Loading,
    display: Annotated[Display, only(Display, "format", "verbose")],
) -> None:
    """Are the states still those? Stage by stage and layer by layer against a baseline.

    --write makes a baseline of MODEL; --against compares with one. It says where the first
    difference is, and what such a difference usually means. float32 sees most: --dtype float32.
    --against-dtype and --fake-quant compare MODEL with itself: what another precision costs.
    Exit code 0: the same; 1: not; 3: not enough evidence.
    """
    with console.reported(display), _errors_in(junit):
        if not (write or against or against_dtype or fake_quant or states):
            raise typer.BadParameter(
                "expected --write FILE, --against, --against-dtype, --fake-quant or --states"
            )
        if junit is not None and against is not None and junit.resolve() == Path(against).resolve():
            raise typer.BadParameter("--junit would replace what --against reads")
        with console.lasting_imports():
            from normprobe import check as check_
            from normprobe.measurements.check.baseline import checked, require_tolerance
            from normprobe.precision import against_precision
            from normprobe.probe import Probe
            from normprobe.runs.files import write_by_rename

        if tolerance is not None:
            require_tolerance(tolerance)
        probe = Probe(model, **vars(loading))
        asked = {name: getattr(sampling, name) for name in _DRAWN}
        like = None if against is None else _known(against, asked)
        asked |= {"data": sampling.data or "sample", "limit": sampling.limit or _SAMPLES}
        if write is not None:
            write_by_rename(write, check_.take_baseline(probe, **asked).text.encode())
            console.data(str(write))
            return
        if like is not None:
            now = check_.take_baseline(probe, like, workers=sampling.workers)
            found = checked(now, like, tolerance)
        elif against is not None:
            found = check_.against_model(probe, probe._beside(against), tolerance, **asked)
        elif states is not None:
            found = check_.against_files(probe, states, tolerance, **asked)
        else:
            other = probe
            if against_dtype is not None:
                other = Probe(model, **{**vars(loading), "dtype": against_dtype})
            found = against_precision(probe, other, fake_quant or "", tolerance, **asked)
        _report(found, junit, display)


def _known(against: str, asked: dict[str, Any]) -> "Baseline | None":
    """The baseline of a file or run folder; None: it is a model, to be measured."""
    from normprobe.check import baseline_of
    from normprobe.measurements.check.baseline import read_baseline
    from normprobe.run import load_run
    from normprobe.runs.run_folder import RECORD

    place = Path(against)
    if not place.is_file() and not (place / RECORD).is_file() and place.suffix != ".json":
        return None
    if given := [name for name in _DRAWN[:3] if asked[name] is not None]:
        raise NormprobeError(
            f"{against} says which samples are measured; received --{given[0]}",
            f"leave --{given[0]} out, or write another baseline with it",
        )
    return baseline_of(load_run(place)) if place.is_dir() else read_baseline(place)


@contextmanager
def _errors_in(junit: Path | None) -> Iterator[None]:
    """Write what cannot be measured into the test report as an error: it is no failure."""
    try:
        yield
    except NormprobeError as error:
        if junit is not None:
            from pandas import DataFrame

            from normprobe.measurements.check.baseline import UNKNOWN, Checked
            from normprobe.runs.files import write_by_rename

            write_by_rename(junit, Checked(DataFrame(), UNKNOWN, error.problem).junit.encode())
        raise


def _report(found: "Checked", junit: Path | None, display: Display) -> None:
    """Print and write how it ended, and end with its exit code."""
    from normprobe.measurements.check.baseline import DIFFERENT, MEASURED, SAME
    from normprobe.report.terminal import print_readable, print_sentence
    from normprobe.runs.files import write_by_rename, write_failures

    if junit is not None:
        write_by_rename(junit, found.junit.encode())
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with (
            write_failures(Path(summary).parent),
            Path(summary).open("a", encoding="utf-8") as file,
        ):
            file.write(found.summary)
    if display.format == "json":
        costs = {} if found.costs is None else {"costs": found.costs}
        told = {"verdict": found.verdict, "sentence": found.sentence}
        console.json_object(**told, table=found.table, **costs)
    elif not console.table(found.table, display):
        with console.stdout_console() as target:
            for table in found.shown:
                print_readable(table, target)
            print_sentence(found.sentence, target)
    if found.verdict not in (SAME, MEASURED):
        raise typer.Exit(console.FAILED if found.verdict == DIFFERENT else _NOT_ENOUGH_EVIDENCE)
