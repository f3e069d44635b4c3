"""How a run of ``check`` is shown: norms; fingerprints are to be compared, not read."""

from rich.console import Console

from normprobe.report.readable import readable_table
from normprobe.report.terminal import print_readable
from normprobe.runs.run_folder import RunStore


def show(run: RunStore, console: Console) -> None:
    """Print the stages and their norms."""
    print_readable(readable_table(run.table("check").drop(columns="fingerprint")), console)
