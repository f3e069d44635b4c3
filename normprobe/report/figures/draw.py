"""Draw the figures of a run from its tables alone, each below a line of what was measured.

A ``Drawing`` says which tables a figure shows and what draws it. Matplotlib is imported when
something is drawn.
"""

from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from normprobe.errors import NormprobeError, number_of
from normprobe.runs.run_folder import RunFolder, RunStore, image_name
from normprobe.schema import IMAGE

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from normprobe.report.figures.lines import Given

_LONGEST = 60  # characters of a prompt

#: Bundled data: what they are and what a sample of them is. Their ids are those of benchmarks.
_BUNDLED = {
    "sample": ("the bundled sample", "question"),
    "boxes": ("the bundled sample", "question"),
    "scenes": ("the bundled drawn scenes", "question"),
    "pairs": ("the bundled pairs of photographs", "question"),
    "text": ("the bundled text", "prompt"),
}

_BATCH = "fixed inputs"  # that a processor made: nobody knows of what


def title(run: RunStore, table: pd.DataFrame) -> str:
    """E.g. ``llava-hf/llava-1.5-7b-hf, 1000 samples of mmbench``."""
    from normprobe.report.figures.style import drawable, shortened

    record = run.record
    parts = [_short(str(record["model"]))] if record.get("model") else []
    if record.get("base") and "base_norm" in table:
        parts = [f"{parts[0] if parts else run.name} against {_short(str(record['base']))}"]
    if record.get("alignment"):
        parts.append("aligned")
    if prompt := (record.get("options") or {}).get("prompt"):
        parts.append(f'"{shortened(" ".join(str(prompt).split()), _LONGEST)}"')
        return drawable(", ".join(parts))
    data = str(record.get("data") or "")
    if record.get("compared") == "attention":
        return drawable(", ".join([*parts, "one prompt"]))
    if data == _BATCH:
        data = ""
    whole, sample = _BUNDLED.get(data, (_short(data), "sample"))
    told = [_counted(table, sample, "photograph" if data in _BUNDLED else "picture"), whole]
    if any(told):
        parts.append(" of ".join(part for part in told if part))
    return drawable(", ".join(parts if record.get("model") or data else [run.name, *parts]))


def _counted(table: pd.DataFrame, sample: str, picture: str) -> str:
    """How many samples or pictures a table holds; empty where it does not say."""
    if IMAGE in table:
        return number_of(table[IMAGE].nunique(), picture)
    if "samples" not in table or table["samples"].isna().all():
        return ""
    runs = table.groupby("run")["samples"] if "run" in table else table["samples"]
    least, most = (int(number) for number in (np.min(runs.max()), np.max(runs.max())))
    return ("" if least == most else f"{least} to ") + number_of(most, sample)


def _short(name: str) -> str:
    """A hub id as it is; of a longer path the last name."""
    name = name.rstrip("/")
    return name if name.count("/") == 1 and name[0] not in "./~" else name.split("/")[-1]


@dataclass(frozen=True)
class Drawing:
    """A figure that runs of a measurement may have."""

    name: str  # its own and that of its files
    tables: tuple[str, ...]  # what it shows; without rows in the first there is no figure
    # ``draw(title, *tables, ax=None)``; ``ax`` is where: one axes or as many as it has panels;
    # without it, in a figure of its own
    draw: "Callable[..., Figure]"
    images: bool = False  # the images of the run come behind the tables
    options: bool = False  # the options of the run come behind these


class Figures(dict[str, "Figure"]):
    """Figures by name. A notebook shows them below each other, each behind its name."""

    def _repr_html_(self) -> str:
        return "".join(
            Markup("<p><code>{}</code></p>{}").format(name, image_tag(figure))
            for name, figure in self.items()
        )


def build(drawings: Sequence[Drawing], run: RunStore) -> Figures:
    """The figures of a run by name, not saved; the first, and the others where there are rows."""
    chosen = [
        drawing for place, drawing in enumerate(drawings) if place == 0 or _holds(run, drawing)
    ]
    return Figures({drawing.name: figure_of(drawing, run) for drawing in chosen})


def figure_of(drawing: Drawing, run: RunStore, ax: "Given" = None) -> "Figure":
    """One figure of a run."""
    from normprobe.report.figures.style import look

    tables = [run.table(name) for name in drawing.tables]
    if tables[0].empty:
        where = run.path or f"the run of {run.command}"
        raise NormprobeError(
            f"{drawing.tables[0]}.csv in {where} holds no rows", "run the command again"
        )
    more: list[Any] = []
    if drawing.images:
        more.append(_images(run, tables[0]))
    if drawing.options:
        more.append(run.record.get("options") or {})
    with look():
        drawn = drawing.draw(title(run, tables[0]), *tables, *more, ax=ax)
    return drawn


def _holds(run: RunStore, drawing: Drawing) -> bool:
    """Whether a run holds what a figure shows."""
    tables = all(run.has_table(name) for name in drawing.tables)
    return tables and not run.table(drawing.tables[0]).empty


def _images(run: RunStore, table: "pd.DataFrame") -> "list[NDArray[np.uint8]]":
    """The images that the rows of a table are about; without a column ``image``, the only one."""
    count = int(table[IMAGE].max()) if IMAGE in table else 1
    return [run.image(image_name(number)) for number in range(1, count + 1)]


def image_tag(figure: "Figure") -> Markup:
    """A figure of ``build`` inside HTML: as wide as in print, and never wider than the page."""
    data, _ = figure._repr_png_()  # type: ignore[attr-defined]
    return Markup(
        '<img src="data:image/png;base64,{}" alt="{}" style="width:{}in;max-width:100%">'
    ).format(b64encode(data).decode(), figure.get_suptitle(), figure.get_figwidth())


def draw(drawings: Sequence[Drawing], run: RunFolder) -> list[Path]:
    """Save the figures of a run into ``plots/`` of its folder."""
    from normprobe.report.figures.style import look, save

    with look():
        return [
            file
            for name, figure in build(drawings, run).items()
            for file in save(figure, run.path / "plots" / name)
        ]
