"""The commands of measurements over samples: ``normprobe interface``, ``normprobe layers``."""

from collections.abc import Callable
from typing import Annotated

import typer

from normprobe.cli import console
from normprobe.cli.lasting import lasting_imports
from normprobe.cli.options import (
    Display,
    Loading,
    Model,
    NamedParts,
    NormAlignment,
    NormMaps,
    RunFolderOptions,
    Sampling,
    Starting,
    Strict,
    Watching,
    Without,
    grouped,
    only,
)
from normprobe.measurements import Measurement


def command_of(offered: Measurement) -> Callable[..., None]:
    """The command that runs a measurement over samples."""
    sampling_without = [] if offered.batches else ["batch_size"]
    if offered.reads_samples:  # they say more than a prompt that all have in common
        sampling_without.append("prompt")
    loading_without = () if offered.range_reads else ("range_reads",)
    maps_without = () if offered.maps else ("map", "map_pictures")

    def command(
        model: Model = "specimen",
        *,
        sampling: Annotated[Sampling, Without(*sampling_without), Starting(data=offered.data)],
        loading: Annotated[Loading, Without(*loading_without)],
        parts: NamedParts,
        alignment: NormAlignment,
        maps: Annotated[NormMaps, Without(*maps_without)],
        watching: Annotated[Watching, only(Watching, *offered.watchers)],
        folder: RunFolderOptions,
        strict: Strict = False,
        display: Display,
    ) -> None:
        with console.reported(display, resumes=True):
            with lasting_imports():
                from normprobe.probe import Probe
                from normprobe.runs.begin import AUTO

            probe = Probe(model, **vars(loading), named=parts.named(), **sampling.prompting)
            run = probe.measure(
                offered.name,
                sampling.data,
                prompt=sampling.prompt,
                batch_size=sampling.batch_size,
                workers=sampling.workers,
                limit=sampling.limit,
                seed=sampling.seed,
                skip_bad=sampling.skip_bad,
                align=alignment.target,
                map_pictures=maps.pictures,
                verify=parts.verify,
                **vars(watching),
                output=folder.output or AUTO,
                overwrite=folder.overwrite,
                resume=folder.resume,
            )
            console.show(run, display)
            if strict and run.record.get("doubts"):
                raise typer.Exit(console.FAILED)

    command.__doc__ = offered.summary
    return grouped(command)
