"""Draw the figures of a run from its tables alone.

A figure is a module. It names the ``TABLES`` that it reads, and has a function
``figure(title, *tables, ax=None)`` that returns a ``Figure``. With ``IMAGES = True`` it gets the
images of the run behind the tables, with ``OPTIONS = True`` then the options. ``ax`` is where it is
drawn: one axes or as many as it has panels; without it, in a figure of its own.
Matplotlib is imported when something is drawn.
"""

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from normprobe.errors import NormprobeError
from normprobe.runs.run_folder import RunFolder, RunStore, image_name
from normprobe.schema import IMAGE

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from normprobe.report.figures.panels import Given


def build(modules: Sequence[ModuleType], run: RunStore) -> dict[str, "Figure"]:
    """The figures of a run by name, not saved."""
    chosen = [module for place, module in enumerate(modules) if place == 0 or _holds(run, module)]
    return {name_of(module): figure_of(module, run) for module in chosen}


def name_of(module: ModuleType) -> str:
    """What a figure is called, its file too."""
    return module.__name__.rpartition(".")[2]


def figure_of(module: ModuleType, run: RunStore, ax: "Given" = None) -> "Figure":
    """One figure of a run."""
    from normprobe.report.figures.style import look
    from normprobe.report.figures.title import title

    tables = [run.table(name) for name in module.TABLES]
    if tables[0].empty:
        where = run.path or f"the run of {run.command}"
        raise NormprobeError(
            f"{module.TABLES[0]}.csv in {where} holds no rows", "run the command again"
        )
    more: list[Any] = []
    if getattr(module, "IMAGES", False):
        more.append(_images(run, tables[0]))
    if getattr(module, "OPTIONS", False):
        more.append(run.record.get("options") or {})
    with look():
        drawn: Figure = module.figure(title(run, tables[0]), *tables, *more, ax=ax)
    return drawn


def _holds(run: RunStore, module: ModuleType) -> bool:
    """Whether a run holds what a figure shows."""
    tables = all(run.has_table(name) for name in module.TABLES)
    return tables and not run.table(module.TABLES[0]).empty


def _images(run: RunStore, table: "pd.DataFrame") -> "list[NDArray[np.uint8]]":
    """The images that the rows of a table are about; without a column ``image``, the only one."""
    count = int(table[IMAGE].max()) if IMAGE in table else 1
    return [run.image(image_name(number)) for number in range(1, count + 1)]


def png(figure: "Figure", *, dpi: int) -> bytes:
    """A figure of ``build`` as a PNG file."""
    from normprobe.report.figures.style import image_bytes, look

    with look():
        return image_bytes(figure, "png", dpi=dpi)


def draw(modules: Sequence[ModuleType], run: RunFolder) -> list[Path]:
    """Save the figures of a run into ``plots/`` of its folder."""
    from normprobe.report.figures.style import look, save

    with look():
        return [
            file
            for name, figure in build(modules, run).items()
            for file in save(figure, run.path / "plots" / name)
        ]
