"""The command ``survey``."""

from dataclasses import replace
from typing import Annotated, Literal

import typer

from normprobe.cli import console
from normprobe.cli.grouping import Display, Strict, Without, grouped
from normprobe.extensions.survey.models import Keep
from normprobe.options import BatchSize, Loading, NeededByAll, Needs, Output, Sampling


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
        from normprobe.extensions.survey.models import listed_models, shipped_list

        if not models:
            console.data(shipped_list().rstrip())
            return
        listed = listed_models(models)
        from normprobe.extensions.survey.measuring import survey as survey_of
        from normprobe.extensions.survey.shown import reasons

        to = Output(**output.on_disk)
        layers = measure == "layers"
        sampled = replace(sampling, batch_size=batch_size)
        run = survey_of(listed, sampled, loading, to, layers=layers, keep=keep, timeout=timeout)
        doubts = [*run.record.get("doubts", []), *reasons(run.tables["models"])]
        console.show_run(run, display, doubts if strict else [])
