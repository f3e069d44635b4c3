"""Sample rows of decoder layers to the tables of a run."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from normprobe.measurements.layers.accounted.table import accounted_table
from normprobe.measurements.layers.branches.table import branches_table
from normprobe.measurements.layers.intervals import layer_intervals
from normprobe.measurements.layers.massive.table import massive_tables
from normprobe.measurements.layers.theory.assumptions import assumptions_table
from normprobe.measurements.layers.theory.table import theory_table
from normprobe.model.measured_model import MeasuredModel
from normprobe.report.carried import quoted
from normprobe.schema import (
    GEOMETRIC_RATIOS,
    IMAGE,
    NON_VISUAL,
    OTHER_TOKEN_METRICS,
    PAIR,
    RATIOS_TO_TEXT,
    SAMPLE_METRICS,
    TEXT,
    TOKEN_GROUPS,
    TOKEN_METRICS,
)
from normprobe.statistics.loud_tokens import loudest_columns
from normprobe.statistics.sample_statistics import merge

#: Below this angle the rounding of the stored states, not the layer, sets the value (radians).
ANGLE_RESOLUTION = {"bfloat16": 3e-3, "float16": 4e-4, "float32": 0.0}


def tables(rows: pd.DataFrame, model: MeasuredModel) -> dict[str, pd.DataFrame]:
    """Everything that a run of ``layers`` contains."""
    layers = layer_intervals(layers_table(rows, quoted(model.token_text)), rows)
    theory = theory_table(rows)
    judged = theory if model.norm_placement.endswith("applies") else theory.iloc[:0]
    asked = {"images": images_table(rows), "branches": branches_table(rows)}
    return {
        "layers": layers,
        "theory": theory,
        "assumptions": assumptions_table(judged),
        "accounted": accounted_table(rows, layers),
        **{name: table for name, table in asked.items() if not table.empty},
        **massive_tables(rows),
    }


def images_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Sample rows to images.csv: the visual tokens of each image, where a sample has several."""
    of_images = rows[rows["group"] == IMAGE]
    means = ["norm_mean", "cosine_mean", "angle_mean"]
    table = of_images.reindex(columns=["sample_id", IMAGE, "layer", "tokens", *means])
    table.insert(5, "norm_std", np.sqrt(of_images["norm_m2"] / of_images["tokens"]))
    return table.astype({IMAGE: int, "tokens": int}).reset_index(drop=True)


def layers_table(
    rows: pd.DataFrame, token_text: Callable[[int], str] | None = None
) -> pd.DataFrame:
    """Sample rows of any number of batches to layers.csv."""
    rows = rows[~rows["group"].isin([PAIR, IMAGE])]
    by = ["layer", "group", "hidden_size", "dtype"]
    table = merge(rows, by, (*TOKEN_METRICS, *OTHER_TOKEN_METRICS))
    table["rms_mean"] = table["norm_mean"] / np.sqrt(table["hidden_size"])
    text = table[table["group"] == TEXT].drop_duplicates("layer").set_index("layer")
    for kind, ratios in (("mean", RATIOS_TO_TEXT), ("geometric_mean", GEOMETRIC_RATIOS)):
        for metric, column in ratios.items():
            mean = f"{metric}_{kind}"
            table[column] = table[mean] / table["layer"].map(text[mean])
    table = table.merge(loudest_columns(rows, by, token_text), on=by)
    of_samples = rows.groupby(by, sort=False)[list(SAMPLE_METRICS)]
    spread = of_samples.mean().add_suffix("_mean").join(of_samples.std(ddof=0).add_suffix("_std"))
    table = table.merge(spread.reset_index(), on=by)
    table["angle_below_resolution"] = table["angle_mean"] < table["dtype"].map(ANGLE_RESOLUTION)
    order = {group: place for place, group in enumerate((*TOKEN_GROUPS, NON_VISUAL))}
    table = table.sort_values(
        ["layer", "group"], key=lambda c: c.map(order) if c.name == "group" else c
    )
    return table.drop(columns="dtype").reset_index(drop=True)
