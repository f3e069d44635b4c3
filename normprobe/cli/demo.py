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
            from normprobe.measurements.layers.words import loudness, turning
            from normprobe.model.checkpoint import SPECIMEN
            from normprobe.probe import Probe
            from normprobe.run import Run, compare, page_of
            from normprobe.runs.files import write_by_rename

        now = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        place = folder.output or Path("runs") / SPECIMEN / f"demo-{now}"
        overwrite = folder.overwrite
        runs: list[Run] = []

        def done(run: Run) -> Run:
            console.message(f"{run.command}: {run.path}")
            runs.append(run)
            return run

        probe = Probe(SPECIMEN).load("layers")  # all that the others read, too
        done(probe.interface(output=place / "interface", overwrite=overwrite))
        layers = done(probe.layers(batch_size=_BATCH, output=place / "layers", overwrite=overwrite))
        done(probe.embeddings(top=_TOP, output=place / "embeddings", overwrite=overwrite))
        pictured = next(sample for sample in open_data(SAMPLE) if sample.image is not None)
        done(probe.attention(pictured, output=place / "attention", overwrite=overwrite))
        folder_of_aligned = place / "layers-aligned"
        aligned = done(
            probe.layers(
                batch_size=_BATCH, align="table", output=folder_of_aligned, overwrite=overwrite
            )
        )
        done(compare([layers, aligned], output=place / "compare", overwrite=overwrite))
        page = place / "report.html"
        write_by_rename(page, page_of(runs).encode())
        if display.quiet:
            console.data(str(place))
            return
        console.data(f"Visual tokens enter the decoder {loudness(layers.table)}.")
        console.data(f"They turn {turning(layers.table)}.")
        console.data(f"Made as loud as text, they turn {turning(aligned.table)}.")
        console.data(f"All tables and figures on one page: {page}")
        console.data("Your own model: normprobe layers org/model")
