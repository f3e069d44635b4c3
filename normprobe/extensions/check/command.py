"""``check``, the gate of a release or a port; ``states``; and ``verify``, of a finished run."""

import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from normprobe.cli import console
from normprobe.cli.grouping import Display, Model, Starting, Without, grouped, only
from normprobe.cli.measure import probe_of
from normprobe.cli.runs import require_folders
from normprobe.errors import NormprobeError
from normprobe.options import Excludes, Loading, Needs, Sampling

if TYPE_CHECKING:
    from normprobe.extensions.check.baseline import Baseline, Checked
    from normprobe.extensions.check.verify import Verified

#: Beside ``console.FAILED``, with which a check ends where states differ.
_NOT_ENOUGH_EVIDENCE = 3
_SAMPLES = 8  # of a baseline, unless --limit says how many

_DRAWN = ("data", "prompt", "limit", "seed", "workers")


@grouped
def check(
    model: Model = "specimen",
    write: Annotated[
        Path | None,
        typer.Option(
            help="Write the baseline, what MODEL is now: a file, no run folder.",
            metavar="FILE.json",
        ),
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
    display: Annotated[Display, Without("theory")],
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
        from normprobe.model.checkpoint_place import require_path

        require_path(model)
        if against is not None and against.endswith(".json") and not Path(against).is_file():
            raise NormprobeError(
                f"{against} cannot be read as a baseline: there is no such file",
                "normprobe check MODEL --write FILE makes one",
            )
        probe, other = probe_of(model, loading, sampling.data), None
        with console.lasting_imports():
            from normprobe.extensions.check.baseline import like_it, require_tolerance
            from normprobe.extensions.check.gate import against_baseline, take_baseline
            from normprobe.extensions.check.mistakes import against_files
            from normprobe.extensions.check.precision import against_precision
            from normprobe.probe import Probe
            from normprobe.runs.files import write_by_rename

        if tolerance is not None:
            require_tolerance(tolerance)
        asked = {name: getattr(sampling, name) for name in _DRAWN}
        like = None if against is None else _known(against, asked)
        asked |= {"data": sampling.data or "sample", "limit": sampling.limit or _SAMPLES}
        if write is not None:
            write_by_rename(write, take_baseline(probe, **asked).text.encode())
            console.data(str(write))
            return
        if against is not None:
            if like is None:
                other = probe.beside(against)
                like = take_baseline(other, **asked)
            probe = Probe(model, **like_it(like, loading))
            found = against_baseline(
                probe, like, loading, tolerance, other=other, workers=sampling.workers
            )
        elif states is not None:
            found = against_files(probe, states, tolerance, **asked)
        else:
            other = probe
            if against_dtype is not None:
                other = Probe(model, **{**vars(loading), "dtype": against_dtype})
            found = against_precision(probe, other, fake_quant or "", tolerance, **asked)
        _report(found, junit, display)


@grouped
def states(
    model: Model = "specimen",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A folder of prompts and states.", metavar="DIR"),
    ] = None,
    engine: Annotated[
        Literal["vllm", "transformers"] | None,
        typer.Option(help="Run it here and now, on these prompts.", metavar="vllm|transformers"),
    ] = None,
    tensor_parallel: Annotated[
        int,
        typer.Option(min=1, help="Processes of the engine that share the model.", metavar="N"),
        Needs("engine"),
    ] = 1,
    export_inputs: Annotated[
        bool,
        typer.Option("--export-inputs", help="Also ids, pixels, positions, masks: safetensors."),
    ] = False,
    script: Annotated[
        bool,
        typer.Option("--script", help="Print what saves an engine's states: one file of Python."),
        Excludes("output", "engine", "export_inputs"),
    ] = False,
    snippet: Annotated[
        Literal["vllm", "sglang", "llama.cpp", "mlx", "executorch"] | None,
        typer.Option(
            help="Print what saves states in an engine: vllm, sglang, llama.cpp, mlx, executorch.",
            metavar="NAME",
        ),
        Excludes("output", "engine", "export_inputs", "script"),
    ] = None,
    *,
    sampling: Annotated[Sampling, only(Sampling, *_DRAWN[:4]), Starting(data=None)],
    loading: Annotated[Loading, Without("device", "attn_implementation")],
    display: Annotated[Display, only(Display, "quiet", "verbose")],
) -> None:
    """Save the states of another engine, for ``check --states``.

    It writes prompts and pictures of some samples into DIR, and a file of Python that runs an
    engine on them where normprobe is not installed; with --engine it does so at once.
    """
    with console.reported(display):
        if script:
            from normprobe.extensions.check import engine_states

            console.data(Path(engine_states.__file__).read_text(encoding="utf-8"))
            return
        if snippet is not None:
            lines = tomllib.loads((files(__package__) / "dumpers.toml").read_text("utf-8"))
            console.data(lines[snippet].strip())
            return
        if output is None:
            raise typer.BadParameter("expected --output DIR, --script or --snippet NAME")
        probe = probe_of(model, loading, sampling.data)
        with console.lasting_imports():
            from normprobe.extensions.check.states import SCRIPT, run_engine, write_prompts

        asked = {name: getattr(sampling, name) for name in _DRAWN[:4]}
        asked |= {"data": sampling.data or "sample", "limit": sampling.limit or _SAMPLES}
        names = write_prompts(probe, output, export_inputs=export_inputs, **asked)
        if engine is None:
            console.data(f"python {output / SCRIPT} {output} --engine vllm")
            return
        dtype = loading.dtype if loading.dtype not in (None, "auto") else "float32"
        run_engine(output, engine, dtype=dtype, workers=tensor_parallel)
        told = f"--dtype {dtype} --data {asked['data']} -n {len(names)}"
        console.data(f"normprobe check {model} --states {output} {told}")


def _known(against: str, asked: dict[str, Any]) -> "Baseline | None":
    """The baseline of a file or run folder; None: it is a model, to be measured."""
    from normprobe.extensions.check.baseline import read_baseline
    from normprobe.extensions.check.gate import baseline_of
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

            from normprobe.extensions.check.baseline import UNKNOWN, Checked
            from normprobe.runs.files import write_by_rename

            write_by_rename(junit, Checked(DataFrame(), UNKNOWN, error.problem).junit.encode())
        raise


def _report(found: "Checked", junit: Path | None, display: Display) -> None:
    """Print and write how it ended, and end with its exit code."""
    from normprobe.extensions.check.baseline import DIFFERENT, MEASURED, SAME
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
            for table in [] if display.quiet else found.shown:
                print_readable(table, target)
            print_sentence(found.sentence, target)
    if found.verdict not in (SAME, MEASURED):
        raise typer.Exit(console.FAILED if found.verdict == DIFFERENT else _NOT_ENOUGH_EVIDENCE)


@grouped
def verify(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="Run folder of interface, layers or grounding.", show_default=False
        ),
    ],
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Draw this many samples.", metavar="N")
    ] = 3,
    seed: Annotated[int, typer.Option(help="Seed of that draw.", metavar="N")] = 42,
    *,
    loading: Annotated[Loading, only(Loading, "trust_remote_code", "inputs")],
    display: Annotated[Display, Without("theory")],
) -> None:
    """Measure a few samples of a finished run again: are its numbers the same to the last digit?

    Where they are not, it says what changed since: model, data, library versions or device. This is
    not --verify of `layers` and others, which checks a run while it is measured.
    """
    with console.reported(display):
        require_folders([run])
        with console.lasting_imports():
            from normprobe.extensions.check.verify import verify_run

        found = verify_run(
            run,
            samples=limit,
            seed=seed,
            trust_remote_code=loading.trust_remote_code,
            inputs=loading.inputs,
        )
        if display.format == "json":
            console.json_object(
                equal=found.equal,
                sentence=found.sentence,
                changed=found.changed,
                table=found.table,
            )
        elif not console.table(found.table, display):
            _print_again(found, display)
        if not found.equal:
            raise typer.Exit(console.FAILED)


def _print_again(found: "Verified", display: Display) -> None:
    """A row a sample or a quantity that differs, unless quiet; then what changed since."""
    from rich.text import Text

    from normprobe.report.readable import significant
    from normprobe.report.terminal import add_column, new_table, print_sentence, print_table

    columns = ("numbers", "different", "largest relative difference")
    with console.stdout_console() as target:
        table = new_table("Measured again")
        for header in ("sample", "quantity", *columns):
            add_column(table, header, left=header in ("sample", "quantity"))
        for sample_id, rows in found.table.groupby("sample_id"):
            differing = rows[rows["different"] > 0]
            if differing.empty:
                numbers = (str(rows["numbers"].sum()), "0", "0")
                table.add_row(Text(str(sample_id)), f"all {len(rows)}", *numbers)
            for _, row in differing.iterrows():
                far = significant(row["largest_relative_difference"], 2)
                numbers = (str(row["numbers"]), str(row["different"]), far)
                table.add_row(Text(str(sample_id)), Text(str(row["quantity"])), *numbers)
        if not display.quiet:
            print_table(table, target, keys=2)
        print_sentence(found.sentence, target)
        for line in found.changed:
            print_sentence(f"Changed since: {line}", target)
