"""Draw the figures of a run from its tables alone.

A figure is a module. It names the ``TABLES`` that it reads, and has ``figure(title, *tables)``,
which returns a ``Figure``. With ``IMAGES = True`` it gets the images of the run behind them.
Matplotlib is imported when something is drawn.
"""

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from normprobe.errors import NormprobeError
from normprobe.runs.run_folder import RunFolder
from normprobe.runs.run_store import RunStore, image_name
from normprobe.schema import IMAGE

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.figure import Figure
    from numpy.typing import NDArray


def build(modules: Sequence[ModuleType], run: RunStore) -> dict[str, "Figure"]:
    """The figures of a run by name, not saved.

    Args:
        modules: what draws them. The first is always drawn, the others where their tables are
            there and hold rows.
        run: its tables are enough; its record adds names to the title.

    Raises:
        NormprobeError: a table of the first figure is missing, or empty.
    """
    from normprobe.report.figures.style import look
    from normprobe.report.figures.title import title

    figures: dict[str, Figure] = {}
    with look():
        for module in modules:
            if figures and not all(run.has_table(name) for name in module.TABLES):
                continue
            tables = [run.table(name) for name in module.TABLES]
            if tables[0].empty:
                if figures:
                    continue
                where = run.path or f"the run of {run.command}"
                raise NormprobeError(
                    f"{module.TABLES[0]}.csv in {where} holds no rows", "run the command again"
                )
            images = [_images(run, tables[0])] if getattr(module, "IMAGES", False) else []
            name = module.__name__.rpartition(".")[2]
            figures[name] = module.figure(title(run, tables[0]), *tables, *images)
    return figures


def _images(run: RunStore, table: "pd.DataFrame") -> "list[NDArray[np.uint8]]":
    """The images that the rows of a table are about; without a column ``image``, the only one."""
    count = int(table[IMAGE].max()) if IMAGE in table else 1
    return [run.image(image_name(number)) for number in range(1, count + 1)]


def draw(modules: Sequence[ModuleType], run: RunFolder) -> list[Path]:
    """Save the figures of a run into ``plots/`` of its folder.

    Args:
        modules: as in ``build``.
        run: likewise.

    Returns:
        The files written, a PNG and a PDF a figure.

    Raises:
        NormprobeError: as ``build``, or a file cannot be written.
    """
    from normprobe.report.figures.style import look, save

    with look():
        return [
            file
            for name, figure in build(modules, run).items()
            for file in save(figure, run.path / "plots" / name)
        ]
