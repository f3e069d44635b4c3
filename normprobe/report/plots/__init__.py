"""Figures of a run, redrawn from its CSV files alone.

A figure is one module here. It names the ``TABLES`` it reads and has
``figure(title, *tables) -> Figure``. A new one is a file and a line in ``FIGURES``; matplotlib is
imported when something is drawn. A module may also name ``IMAGES``, which follow the tables.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from normprobe.errors import NormprobeError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Command -> the modules that draw its figures; a module's name is also the file name. The first
#: is always drawn, the others where their tables are there and hold rows.
FIGURES = {
    "interface": ("interface", "visual_table"),
    "layers": ("layers", "turning", "theory"),
    "embeddings": ("embeddings", "shift"),
    "attention": ("attention", "heatmaps"),
    "compare_layers": ("small_multiples", "overlay"),
    "compare_training": ("training", "small_multiples"),
    "compare_interface": ("compare_interface",),
    "compare_embeddings": ("compare_embeddings",),
}


def draw(command: str, run_path: Path) -> list[Path]:
    """Draw the figures of a command into ``plots/`` of its run folder.

    Args:
        command: a key of ``FIGURES``.
        run_path: the run folder. Its CSV files are enough; ``run.json`` adds names to the title.

    Returns:
        The files written, a PNG and a PDF a figure.

    Raises:
        NormprobeError: the command has no figures, a CSV file is missing or empty, or a file
            cannot be written.
    """
    from normprobe.report.plots.style import look, save

    with look():
        return [
            file
            for name, figure in build(command, run_path).items()
            for file in save(figure, run_path / "plots" / name)
        ]


def build(command: str, run_path: Path) -> dict[str, "Figure"]:
    """The figures of a command by name, not saved. Arguments and errors are those of ``draw``."""
    if command not in FIGURES:
        raise NormprobeError(
            f"the command {command!r} has no figures", f"expected one of {', '.join(FIGURES)}"
        )
    from normprobe.report.plots.style import look
    from normprobe.report.plots.title import title
    from normprobe.report.run_dir import read_image, read_table

    figures: dict[str, Figure] = {}
    with look():
        for name in FIGURES[command]:
            module = import_module(f"{__name__}.{name}")
            if figures and not all((run_path / f"{name}.csv").is_file() for name in module.TABLES):
                continue
            tables = [read_table(run_path, table) for table in module.TABLES]
            images = [read_image(run_path, image) for image in getattr(module, "IMAGES", ())]
            if tables[0].empty:
                if figures:
                    continue
                raise NormprobeError(
                    f"{module.TABLES[0]}.csv in {run_path} holds no rows", "run the command again"
                )
            figures[name] = module.figure(title(run_path, tables[0]), *tables, *images)
    return figures
