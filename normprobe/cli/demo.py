"""``normprobe demo``."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from normprobe.cli import console
from normprobe.cli.lasting import lasting_imports
from normprobe.cli.options import Display, RunFolderOptions, Without, grouped

_BATCH = 8
_TOP = 5


@grouped
def demo(
    folder: Annotated[RunFolderOptions, Without("resume")],
    display: Annotated[Display, Without("format", "json")],
) -> None:
    """Every measurement on the bundled specimen and photographs. No download.

    Norms at the interface, through the decoder and in the embedding table; the attention of one
    question to its photograph; and the decoder again with visual tokens made as loud as text.
    """
    with console.reported(display):
        with lasting_imports():
            from normprobe.data.data_set import SAMPLE, open_data
            from normprobe.model.checkpoint import SPECIMEN
            from normprobe.probe import Probe
            from normprobe.run import Run, compare, page_of
            from normprobe.runs.atomic import write_by_rename

        now = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        place = folder.output or Path("runs") / SPECIMEN / f"demo-{now}"
        overwrite = folder.overwrite
        runs: list[Run] = []

        def show(run: Run) -> None:
            console.show(run, display)
            runs.append(run)

        probe = Probe(SPECIMEN).load("layers")  # all that the others read, too
        show(probe.interface(output=place / "interface", overwrite=overwrite))
        show(probe.layers(batch_size=_BATCH, output=place / "layers", overwrite=overwrite))
        show(probe.embeddings(top=_TOP, output=place / "embeddings", overwrite=overwrite))
        pictured = next(sample for sample in open_data(SAMPLE) if sample.image is not None)
        show(probe.attention(pictured, output=place / "attention", overwrite=overwrite))
        aligned = place / "layers-aligned"
        show(probe.layers(batch_size=_BATCH, align="table", output=aligned, overwrite=overwrite))
        pair = [run for run in runs if run.command == "layers"]
        show(compare(pair, output=place / "compare", overwrite=overwrite))
        write_by_rename(place / "report.html", page_of(runs).encode())
        console.message(f"all of it on one page: {place / 'report.html'}")
