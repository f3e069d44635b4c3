"""Everything that a run of ``follow`` contains, with intervals and bands over images."""

import pandas as pd

from normprobe.extensions.pictures.follow.measure import (
    DECODER,
    FOLLOWED_GROUPS,
    NORM_RANKS,
    OF_REST,
    OF_TWINS,
    RECEIVED,
    RECEIVED_RANKS,
    STAGES_FOLLOWED,
)
from normprobe.extensions.pictures.sample_tables import (
    left_out_table,
    means_table,
    measured_rows,
)
from normprobe.schema import VISUAL
from normprobe.statistics.loud_tokens import LOUDEST
from normprobe.statistics.resampling import Together
from normprobe.tidy import declared, in_order

#: What is a ratio of two means: what the tokens of a class get over what others do.
_RATIOS = {
    f"{name}_to_{others}": (name, f"{of}{name}")
    for name in RECEIVED
    for others, of in (("rest", OF_REST), ("quiet", OF_TWINS))
}
_ORDERS = {"stage": STAGES_FOLLOWED, "group": FOLLOWED_GROUPS}


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Norms and what is received by stage and class, rank correlations, and what was left out."""
    measured = measured_rows(
        rows, "followed", "normprobe interface and layers measure each stage by itself"
    )
    visual = measured[measured["group"] == VISUAL].drop(columns="group")
    cells = in_order(measured[["stage", "layer", "group"]].drop_duplicates(), **_ORDERS)
    behind = (cells["stage"] == DECODER) & (cells["layer"] > 0)
    loud = (behind & cells["group"].isin(LOUDEST)).to_numpy()
    # One sentence may name any class and layer.
    together = [Together([each], loud) for each in _RATIOS if loud.any()]
    stages = in_order(visual[["stage", "layer"]].drop_duplicates(), stage=STAGES_FOLLOWED)
    ranks = (*NORM_RANKS, *RECEIVED_RANKS)
    in_decoder = (stages["stage"] == DECODER).to_numpy()
    of_layers = in_decoder & (stages["layer"] > 0).to_numpy()
    named = [Together(["tower_norm"], in_decoder), Together(["attention_tower_norm"], of_layers)]
    known = declared(__package__)
    return {
        "follow": means_table(
            known["follow"], cells, measured, ("norm", *RECEIVED), _RATIOS, together
        ),
        "follow_ranks": means_table(known["follow_ranks"], stages, visual, ranks, {}, named),
        **left_out_table(rows),
    }
