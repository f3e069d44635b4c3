"""Visual against text tokens, layer by layer: the ratios of layers.csv."""

from math import nan

import pandas as pd

from normprobe.report.ratio_words import Ratio, ratios_by_layer
from normprobe.schema import GEOMETRIC_RATIOS, VISUAL


def ratios_to_text(layers: pd.DataFrame, metric: str, group: str = VISUAL) -> dict[int, Ratio]:
    """The visual tokens' geometric mean over that of text tokens, with its band over the layers."""
    rows = layers[(layers["group"] == group) & (layers["layer"] > 0)]
    return ratios_by_layer(rows, GEOMETRIC_RATIOS[metric])


def ratio_after(
    layers: pd.DataFrame,
    layer: int,
    column: str = GEOMETRIC_RATIOS["norm"],
    group: str = VISUAL,
) -> Ratio:
    """How loud visual tokens are after one layer, with its interval; NaN where it is not known."""
    rows = layers[(layers["group"] == group) & (layers["layer"] == layer)]
    columns = [column, f"{column}_ci_low", f"{column}_ci_high"]
    return Ratio(*rows.reindex(columns=columns).iloc[0].astype(float)) if len(rows) else Ratio(nan)


def visual_states_are_attended(layers: pd.DataFrame) -> bool:
    """Whether the visual states stand beside the sequence: no decoder layer changes them."""
    of_visual = layers.loc[layers["group"] == VISUAL, "layer"]
    return len(of_visual) > 0 and of_visual.max() == 0 < layers["layer"].max()
