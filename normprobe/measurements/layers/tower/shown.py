"""How a run of a tower is shown: on a terminal, and on the page."""

import pandas as pd
from markupsafe import Markup
from rich.console import Console

from normprobe.measurements.layers.figures import METRICS
from normprobe.measurements.layers.headroom import headroom_section
from normprobe.measurements.layers.tower.figures import TOWER_PANELS
from normprobe.report.charts import charts
from normprobe.report.page.blocks import curves, heading, note, side_by_side
from normprobe.report.terminal import NumberColumn, print_by_layer
from normprobe.runs.run_folder import RunStore
from normprobe.schema import AUDIO, SPECIAL, VISUAL

#: Quantities of the printed table: header, quantity.
_COLUMNS = (
    ("norm", "norm"),
    ("angle", "angle"),
    ("high norm a picture", "high_norm_a_picture"),
    ("peak", "peak"),
    ("inside", "inner_peak"),
)
_NOTES = (
    "Means over rows of the L2 norm after the block (layer 0: patch embedding) and of the angle",
    "by which it turns them (radians); rows of 3 x the median norm or more a picture or tile;",
    "the largest magnitude of the block's output, and of the modules inside.",
)


def show(run: RunStore, console: Console) -> None:
    """Print the blocks, and what they say."""
    tower = run.table("tower")
    columns = [
        NumberColumn((header, group), quantity, {"group": group})
        for header, quantity in _COLUMNS
        for group in _groups(tower)
    ]
    print_by_layer(_title(run), tower, columns, console, [*_NOTES, _mark(run)], "tower.csv")


def _groups(tower: pd.DataFrame) -> list[str]:
    return [group for group in (VISUAL, AUDIO, SPECIAL) if (tower["group"] == group).any()]


def _title(run: RunStore) -> str:
    facts = run.record.get("tower") or {}
    return f"Blocks of the {facts.get('modality', 'vision')} tower"


def _mark(run: RunStore) -> str:
    """What the projector reads."""
    read = (run.record.get("tower") or {}).get("read") or []
    if not read:
        return ""
    several = "s" * (len(read) > 1)
    return f"Read by the projector: block{several} {', '.join(map(str, read))}."


def lead(run: RunStore) -> Markup:
    """Loudness and turning by block."""
    tower = run.rows_of("tower")
    drawn = [] if tower is None else charts([METRICS[0], METRICS[2]], tower)
    return side_by_side(drawn) + note(_lines(run)) if drawn else Markup()


def _lines(run: RunStore) -> str:
    return f"Lines: means over rows. Layer 0: patch embedding. {_mark(run)}".strip()


def section(run: RunStore) -> list[Markup]:
    """Curves block by block, and how far float16 is."""
    tower = run.rows_of("tower")
    if tower is None:
        return []
    return [
        lead(run),
        heading("Through the tower"),
        curves(charts([*METRICS, *TOWER_PANELS], tower)),
        note(_lines(run)),
        *headroom_section(run),
    ]
