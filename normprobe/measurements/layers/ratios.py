"""Visual against text tokens, layer by layer: the ratios of layers.csv."""

import pandas as pd

from normprobe.report.ratio_words import Ratio
from normprobe.schema import RATIOS_TO_TEXT, VISUAL


def ratios_to_text(layers: pd.DataFrame, metric: str) -> dict[int, Ratio]:
    """The visual tokens' mean over the text tokens' mean, with its interval.

    Args:
        layers: ``layers.csv``.
        metric: of ``RATIOS_TO_TEXT``.

    Returns:
        One ratio a layer that visual tokens have the metric in, by ascending layer; NaN where text
        tokens have none.
    """
    column = RATIOS_TO_TEXT[metric]
    columns = [column, f"{column}_ci_low", f"{column}_ci_high"]
    visual = layers[layers["group"] == VISUAL].set_index("layer").sort_index()
    if metric != "norm":
        visual = visual.drop(index=0, errors="ignore")  # layer 0 has norms alone
    numbers = visual.reindex(columns=columns).astype(float)
    return {int(layer): Ratio(*row) for layer, *row in numbers.itertuples()}


def visual_states_are_attended(layers: pd.DataFrame) -> bool:
    """Whether the visual states stand beside the sequence: no decoder layer changes them."""
    of_visual = layers.loc[layers["group"] == VISUAL, "layer"]
    return len(of_visual) > 0 and of_visual.max() == 0 < layers["layer"].max()
