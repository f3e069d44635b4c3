"""``normprobe align``."""

from typing import Annotated

import typer

from normprobe.cli import console
from normprobe.cli.lasting import lasting_imports
from normprobe.cli.options import (
    AlignTarget,
    Display,
    GoesWith,
    Loading,
    Model,
    NamedParts,
    RunFolderOptions,
    Sampling,
    Without,
    grouped,
)


@grouped
def align(
    model: Model = "specimen",
    target: AlignTarget = "table",
    stats: Annotated[
        bool,
        typer.Option(
            "--stats",
            help="Of an adapter or a trained checkpoint: size of gain and bias (Table 5).",
        ),
        GoesWith("model", "revision", "trust_remote_code", "format", "json", "verbose"),
    ] = False,
    *,
    sampling: Annotated[Sampling, Without("prompt", "batch_size", "workers", "skip_bad")],
    loading: Annotated[Loading, Without("attn_implementation", "range_reads")],
    parts: Annotated[NamedParts, Without("verify")],
    folder: Annotated[RunFolderOptions, Without("resume")],
    display: Display,
) -> None:
    """Save a norm that makes visual tokens as loud as text, to train with (Section 5).

    The folder is an adapter: pass it as MODEL to the other commands, or to
    `normprobe.load_aligned` in Python. The model itself is left as it is.
    """
    with console.reported(display):
        if stats:
            _show_statistics(model, loading, display)
            return
        with lasting_imports():
            from normprobe.probe import Probe
            from normprobe.runs.begin import AUTO

        probe = Probe(model, **vars(loading), named=parts.named(), **sampling.prompting)
        run = probe.align(
            target,
            sampling.data,
            limit=sampling.limit,
            seed=sampling.seed,
            output=folder.output or AUTO,
            overwrite=folder.overwrite,
        )
        console.show(run, display)


def _show_statistics(source: str, loading: Loading, display: Display) -> None:
    """Print Table 5 of a saved norm. Nothing is loaded but its weights."""
    from normprobe.measurements.align.shown import print_norm_statistics
    from normprobe.model.load.alignment import saved_norm
    from normprobe.statistics.weights import norm_statistics

    weights = saved_norm(
        source, revision=loading.revision, trust_remote_code=loading.trust_remote_code
    )
    table = norm_statistics(weights["weight"], weights["bias"])
    if not console.table(table, display):
        with console.stdout_console() as target:
            print_norm_statistics(table, target)
