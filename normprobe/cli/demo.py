"""``normprobe demo``."""

from datetime import UTC, datetime
from pathlib import Path

from normprobe.cli import console
from normprobe.cli import options as opt

_BATCH = 8
_TOP = 5


def demo(
    output: opt.Output = None,
    overwrite: opt.Overwrite = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:
    """Every measurement on the bundled specimen and photographs. No download.

    Norms at the interface, through the decoder and in the embedding table; the attention of one
    question to its photograph; and the decoder again with visual tokens made as loud as text.
    """
    with console.reported(verbose):
        from normprobe.cli import align, attention, compare, embeddings, interface, layers
        from normprobe.cli.run import start_run
        from normprobe.cli.subject import load_subject
        from normprobe.data.datasets import SAMPLE, open_data
        from normprobe.model.checkpoint import SPECIMEN, open_checkpoint
        from normprobe.report.atomic import write_by_rename
        from normprobe.report.html import page

        folder = output or Path("runs") / SPECIMEN / f"demo-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        mode = console.mode_of(json=False, quiet=quiet)
        checkpoint = open_checkpoint(SPECIMEN)
        samples = open_data(SAMPLE)
        options = {"model": SPECIMEN, "system": None}
        aligned = options | {"align": True, "align_target": "table"}
        runs = {
            name: start_run(name.split("-")[0], checkpoint, data, folder / name, overwrite, chosen)
            for name, data, chosen in (
                ("interface", samples, options),
                ("layers", samples, options),
                ("embeddings", None, options),
                ("attention", None, options),
                ("layers-aligned", samples, aligned),
            )
        }
        subject = load_subject("layers", checkpoint, quiet=quiet)
        interface.measure(subject, samples, runs["interface"], None, mode)
        layers.measure(subject, samples, runs["layers"], _BATCH, None, mode)
        embeddings.measure(subject, runs["embeddings"], _TOP, mode)
        attention.measure(
            subject,
            next(sample for sample in samples if sample.image is not None),
            runs["attention"],
            words=[],
            layers=[],
            box=None,
            system=None,
            mode=mode,
        )
        align.align_subject(runs["layers-aligned"], subject, samples, aligned)
        layers.measure(subject, samples, runs["layers-aligned"], _BATCH, None, mode)
        compare.compare(
            [runs["layers"].path, runs["layers-aligned"].path],
            output=folder / "compare",
            overwrite=overwrite,
            quiet=quiet,
            verbose=verbose,
        )
        shown = [*(run.path for run in runs.values()), folder / "compare"]
        write_by_rename(folder / "report.html", page(shown).encode())
        console.talk(f"All of it on one page: {folder / 'report.html'}")
