"""``normprobe survey``."""

from typing import Annotated

import typer

from normprobe.cli import console
from normprobe.cli.options import (
    BatchSize,
    Display,
    Loading,
    NeededByAll,
    Needs,
    RunFolderOptions,
    Sampling,
    Without,
    grouped,
)
from normprobe.survey.hub_cache import Keep


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
    layers: Annotated[
        bool, typer.Option("--layers", help="Measure the decoder layers too: whole models.")
    ] = False,
    *,
    batch_size: Annotated[BatchSize, Needs("layers")] = 1,
    sampling: Annotated[Sampling, Without("batch_size")],
    loading: Annotated[Loading, Without("revision", "range_reads", "inputs", "kind")],
    keep: Annotated[
        Keep,
        typer.Option(help="What stays of what each model fetched: nothing, all but weights, all."),
    ] = "none",
    timeout: Annotated[
        float | None,
        typer.Option(help="Minutes that a model may take. Default: no limit.", metavar="MINUTES"),
    ] = None,
    folder: RunFolderOptions,
    retry: Annotated[
        bool,
        typer.Option("--retry", help="Measure models again that failed or are partial."),
        Needs("resume"),
    ] = False,
    display: Display,
) -> None:
    """Many models in one table: disparity, tables, and with --layers inertia (RQ3).

    Each model is measured in a process of its own. What is wrong with one stands in its row.
    """
    with console.reported(display, resumes=True):
        from normprobe.survey.model_list import listed_models, shipped_list

        if not models:
            console.data(shipped_list().rstrip())
            return
        listed = listed_models(models)
        from normprobe.runs.begin import AUTO
        from normprobe.survey.measuring import survey as survey_of

        run = survey_of(
            listed,
            layers=layers,
            data=sampling.data,
            limit=sampling.limit,
            seed=sampling.seed,
            skip_bad=sampling.skip_bad,
            prompt=sampling.prompt,
            batching={"batch_size": batch_size, "workers": sampling.workers},
            loading={**vars(loading), **sampling.prompting},
            keep=keep,
            timeout=timeout,
            output=folder.output or AUTO,
            overwrite=folder.overwrite,
            resume=folder.resume,
            retry=retry,
        )
        console.show(run, display)
