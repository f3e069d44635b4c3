"""``normprobe models``."""

from normprobe.cli import console
from normprobe.cli import options as opt


def models(json: opt.Json = False, verbose: opt.Verbose = False) -> None:
    """The model types of transformers that were checked: family, norm placement, notes."""
    with console.reported(verbose):
        from importlib.resources import files

        import pandas as pd

        from normprobe.model.overrides import FUSIONS
        from normprobe.report import tables

        with (files("normprobe.model") / "supported_models.csv").open(encoding="utf-8") as file:
            table = pd.read_csv(file, keep_default_na=False)
        if json:
            console.data(tables.to_json(table))
        else:
            tables.models_table(table, FUSIONS, console.stdout_console())
