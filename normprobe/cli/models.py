"""The commands that look at models: ``inspect``, ``inputs``, ``survey``, ``watch``."""

import tomllib
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

import typer

from normprobe.cli import console
from normprobe.cli.grouping import Display, Strict, Without, grouped, only
from normprobe.options import BatchSize, Loading, NeededByAll, Needs, Output, Sampling
from normprobe.survey.hub_cache import Keep


@grouped
def inspect(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="Hub id, local folder, or `specimen`. None: the model types that were checked.",
            show_default=False,
        ),
        NeededByAll("a MODEL", "format", "verbose"),
    ] = None,
    *,
    loading: Annotated[Loading, only(Loading, "revision", "trust_remote_code", "inputs", "named")],
    weights: Annotated[
        bool,
        typer.Option(
            "--weights",
            help="Bytes, types and files of each part, from the files' headers; gain and bias of "
            "an alignment norm (Table 5).",
        ),
    ] = False,
    display: Annotated[Display, only(Display, "format", "verbose")],
) -> None:
    """What normprobe sees: parts, sizes and token ids, from the config alone, no weights.

    With --weights also what the weight files hold of each part, and what each command would read.
    Without MODEL the model types of transformers that were checked: family, norm placement, notes.
    """
    with console.reported(display):
        if model is None:
            _show_types(display)
            return
        with console.lasting_imports():
            from normprobe.inputs.inputs_file import NO_INPUTS_FILE, read_inputs_file
            from normprobe.measurements.align.shown import print_norm_statistics
            from normprobe.measurements.inspect.measure import inspected, print_parts, print_weights
            from normprobe.model.checkpoint import open_checkpoint
            from normprobe.model.load.alignment import saved_norm
            from normprobe.statistics.weights import norm_statistics

        inputs_file = NO_INPUTS_FILE if loading.inputs is None else read_inputs_file(loading.inputs)
        checkpoint = open_checkpoint(
            model,
            revision=loading.revision,
            trust_remote_code=loading.trust_remote_code,
            inputs_file=inputs_file,
            kind=loading.kind,
        )
        seen = inspected(checkpoint, {**inputs_file.parts, **loading.parts}, weights=weights)
        norm = None
        if weights and checkpoint.alignment is not None:
            trusted = loading.trust_remote_code
            held = saved_norm(model, revision=loading.revision, trust_remote_code=trusted)
            norm = norm_statistics(held["weight"], held["bias"])
        if display.format == "json":
            tables = {"parts": seen.parts, "weights": seen.weights, "norm": norm}
            facts = {name.replace(" ", "_"): fact for name, fact in seen.facts.items()}
            console.json_object(**facts, **{n: t for n, t in tables.items() if t is not None})
            return
        if console.table(seen.parts if seen.weights is None else seen.weights, display):
            return
        with console.stdout_console() as target:
            print_parts(seen.parts, seen.facts, target)
            if seen.weights is not None:
                print_weights(seen.weights, target)
            if norm is not None:
                print_norm_statistics(norm, target)


@grouped
def inputs(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Hub id, folder or GGUF file.")],
    write: Annotated[Path, typer.Option("--write", help="The file to begin.", metavar="FILE.py")],
    *,
    loading: Annotated[Loading, only(Loading, "revision", "trust_remote_code", "device", "dtype")],
    display: Annotated[Display, only(Display, "verbose")],
) -> None:
    """Begin an inputs file for a model with code of its own, and try it on one sample.

    It holds what forward takes, what the processor makes, modules that may be parts, and a `build`.
    """
    with console.reported(display):
        from normprobe.begun_inputs import begin_inputs_file

        told = begin_inputs_file(model, write, loading)
        console.data(f"{write} is written; {told}")


def _show_types(display: Display) -> None:
    """The model types that were checked."""
    from importlib.resources import files

    import pandas as pd

    from normprobe.measurements.inspect.measure import print_models
    from normprobe.model.find.overrides import FUSIONS

    table_file = files("normprobe.model.find") / "supported_models.csv"
    with table_file.open(encoding="utf-8") as file:
        table = pd.read_csv(file, keep_default_na=False)
    if not console.table(table, display):
        with console.stdout_console() as target:
            print_models(table, FUSIONS, target)


@grouped
def survey(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL|FILE]...",
            help="Models, or files that list them. None: print a list of hub models to start from.",
            show_default=False,
        ),
        NeededByAll("a model: name models, or files that list them"),
    ] = None,
    measure: Annotated[
        Literal["layers"] | None,
        typer.Option(help="Measure the decoder layers too: whole models.", metavar="layers"),
    ] = None,
    *,
    batch_size: Annotated[BatchSize, Needs("measure")] = 1,
    sampling: Annotated[Sampling, Without("batch_size")],
    loading: Annotated[Loading, Without("revision")],
    keep: Annotated[
        Keep,
        typer.Option(help="What stays of what each model fetched: nothing, all but weights, all."),
    ] = "none",
    timeout: Annotated[
        float | None,
        typer.Option(help="Minutes that a model may take. Default: no limit.", metavar="MINUTES"),
    ] = None,
    output: Output,
    strict: Strict = False,
    display: Annotated[Display, Without("theory")],
) -> None:
    """Many models in one table: disparity, tables, and with --measure layers inertia (RQ3).

    Each model is measured in a process of its own. What is wrong with one stands in its row;
    --resume measures it again.
    """
    with console.reported(display, resumes=True):
        from normprobe.survey.model_list import listed_models, shipped_list

        if not models:
            console.data(shipped_list().rstrip())
            return
        listed = listed_models(models)
        from normprobe.measurements.survey.words import reasons
        from normprobe.survey.measuring import survey as survey_of

        to = Output(**output.on_disk)
        layers = measure == "layers"
        sampled = replace(sampling, batch_size=batch_size)
        run = survey_of(listed, sampled, loading, to, layers=layers, keep=keep, timeout=timeout)
        doubts = [*run.record.get("doubts", []), *reasons(run.table)]
        console.show_run(run, display, doubts if strict else [])


@grouped
def watch(
    snippet: Annotated[
        Literal["trl", "swift", "axolotl", "llamafactory", "lightning", "loop"],
        typer.Option(
            help="What runs the training: trl, swift, axolotl, llamafactory, lightning; loop: your "
            "own, or accelerate.",
            metavar="NAME",
        ),
    ] = "loop",
) -> None:
    """The lines that watch a training from inside: norms, gradients, alarms."""
    lines = tomllib.loads((files("normprobe") / "snippets.toml").read_text("utf-8"))
    console.data(lines[snippet].strip())
