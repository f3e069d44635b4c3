"""``layers.csv`` as a heat map with the numbers in it."""

import math

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normprobe.measurements.layers.figures.by_layer import GROUPS
from normprobe.report.figures.style import asks_for_log
from normprobe.report.page.markup import Markup, block
from normprobe.report.readable import MISSING, significant

#: Metric of ``layers.csv`` and the word above its columns.
_HEAT = (("norm", "norm"), ("cosine", "cosine"), ("angle", "angle"), ("relative_update", "update"))


def heat_map(layers: pd.DataFrame) -> Markup:
    """Layers down, metrics and groups across, each cell shaded by its place in the metric."""
    groups = [group for group in reversed(GROUPS) if (layers["group"] == group).any()]
    metrics = [(metric, word) for metric, word in _HEAT if f"{metric}_mean" in layers]
    tables = {
        metric: layers.pivot(index="layer", columns="group", values=f"{metric}_mean")[groups]
        for metric, _ in metrics
    }
    shades = {metric: _shades(table.to_numpy(float)) for metric, table in tables.items()}
    rows = [
        (
            int(layer),
            [
                _cell(float(value), float(shade), metric)
                for metric, _ in metrics
                for value, shade in zip(
                    tables[metric].loc[layer], shades[metric][place], strict=True
                )
            ],
        )
        for place, layer in enumerate(sorted(layers["layer"].unique()))
    ]
    return block("shaded", "layer", [word for _, word in metrics], groups, rows)


def _shades(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """0 to 1 over the finite values of a metric, by their logarithm where they span much."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return values
    if finite.min() > 0 and asks_for_log(finite):
        values, finite = np.log(values), np.log(finite)
    shades: NDArray[np.float64] = (values - finite.min()) / (np.ptp(finite) or 1.0)
    return shades


def _cell(value: float, shade: float, metric: str) -> tuple[str, float | None]:
    """A number and its shade, none where there is no number."""
    if not math.isfinite(value):
        return MISSING, None
    return f"{value:.4f}" if metric == "cosine" else significant(value), shade
