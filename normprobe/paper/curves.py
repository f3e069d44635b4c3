"""The lines of the paper's figures of decoder layers, as one table."""

import pandas as pd

from normprobe.errors import NormprobeError
from normprobe.paper.figure_layouts import FigureLayout
from normprobe.paper.quantities import AFTER
from normprobe.runs.run_store import RunStore
from normprobe.schema import TEXT, VISUAL

#: The columns of ``layers.csv`` that a line takes of a metric, and what they are called here.
_ENDINGS = ("mean", "mean_ci_low", "mean_ci_high")


def curves_of_run(
    layout: FigureLayout, name: str, run: RunStore, label: str, published: pd.DataFrame | None
) -> pd.DataFrame:
    """The lines that a run has in a figure."""
    layers = run.table(run.command)
    panels = [panel for panel in layout.panels if not panel.runs or name in panel.runs]
    curves = []
    for panel in panels:
        columns = [f"{panel.metric}_{ending}" for ending in _ENDINGS]
        drawn = layers.reindex(columns=["layer", "group", *columns]).dropna(
            subset=["layer", columns[0]]
        )
        drawn = drawn[drawn["group"].isin([VISUAL, TEXT])]
        if set(drawn["group"]) != {VISUAL, TEXT}:
            raise NormprobeError(
                f"{label}: layers.csv has no {panel.metric} of both visual and text tokens, which "
                f"{layout.source} shows",
                "measure the model with `normprobe layers`, on samples with images",
            )
        drawn = drawn.rename(columns=dict(zip(columns, _ENDINGS, strict=True)))
        at_input = (drawn["layer"] == 0) & (drawn["group"] == VISUAL)
        norm = _published_norm(published) if panel.metric == "norm" else None
        drawn["published"] = pd.Series(norm, drawn.index[at_input], dtype=float)
        drawn.insert(0, "panel", panel.title)
        drawn.insert(1, "metric", panel.metric)
        drawn.insert(2, "run", str(run.path or run.name))
        drawn.insert(3, "label", label)
        curves.append(drawn.sort_values(["group", "layer"], ascending=[False, True]))
    return pd.concat(curves, ignore_index=True)


def _published_norm(published: pd.DataFrame | None) -> float | None:
    """The paper's mean norm of visual tokens behind the projector."""
    if published is None:
        return None
    rows = published[(published["quantity"] == AFTER) & (published["statistic"] == "mean")]
    return float(rows["published"].iloc[0]) if len(rows) else None
