"""``normprobe models``."""

from typing import Annotated

from normprobe.cli import console
from normprobe.cli.options import Display, Without, grouped


@grouped
def models(display: Annotated[Display, Without("quiet")]) -> None:
    """The model types of transformers that were checked: family, norm placement, notes."""
    with console.reported(display):
        from importlib.resources import files

        import pandas as pd

        from normprobe.measurements.inspect.measure import print_models
        from normprobe.model.find.overrides import FUSIONS

        table_file = files("normprobe.model.find") / "supported_models.csv"
        with table_file.open(encoding="utf-8") as file:
            table = pd.read_csv(file, keep_default_na=False)
        if not console.table(table, display):
            with console.stdout_console() as target:
                print_models(table, FUSIONS, target)
