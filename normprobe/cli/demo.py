"""``normprobe demo``."""

from datetime import UTC, datetime
from pathlib import Path

from normprobe.cli import console
from normprobe.cli import options as opt


def demo(
    output: opt.Output = None,
    overwrite: opt.Overwrite = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:
    """The three main commands on the bundled specimen and photographs. No download."""
    with console.reported(verbose):
        from normprobe.cli import embeddings, interface, layers
        from normprobe.cli.subject import load_subject, start_run
        from normprobe.data.datasets import SAMPLE, open_data
        from normprobe.model.checkpoint import SPECIMEN, open_checkpoint
        from normprobe.report.atomic import write_by_rename
        from normprobe.report.html import page

        folder = output or Path("runs") / SPECIMEN / f"demo-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        mode = console.mode_of(json=False, quiet=quiet)
        checkpoint = open_checkpoint(SPECIMEN)
        samples = open_data(SAMPLE)
        runs = {
            command: start_run(
                command, checkpoint, data, folder / command, overwrite, {"model": SPECIMEN}
            )
            for command, data in (("interface", samples), ("layers", samples), ("embeddings", None))
        }
        subject = load_subject("layers", checkpoint, quiet=quiet)
        interface.measure(subject, samples, runs["interface"], None, mode)
        layers.measure(subject, samples, runs["layers"], 8, None, mode)
        embeddings.measure(subject, runs["embeddings"], 5, mode)
        write_by_rename(folder / "report.html", page([run.path for run in runs.values()]).encode())
        console.talk(f"All of it on one page: {folder / 'report.html'}")
