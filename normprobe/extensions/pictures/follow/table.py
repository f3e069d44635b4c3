"""Everything that a run of ``follow`` contains, with intervals and bands over images."""

import numpy as np
import pandas as pd

from normprobe.extensions.pictures.follow.measure import (
    FOLLOWED_GROUPS,
    LOUDEST,
    NORM_RANKS,
    OF_REST,
    OF_TWINS,
    RECEIVED,
    RECEIVED_RANKS,
    STAGES_FOLLOWED,
    UNFOLLOWED,
    require_some,
)
from normprobe.schema import VISUAL
from normprobe.statistics.resampling import Draws, Resampled, Together, add_intervals
from normprobe.tidy import Numbers, declared, in_order, tidy

#: What is a ratio of two means: what the tokens of a class get over what others do.
_RATIOS = {
    f"{name}_to_{others}": (name, f"{of}{name}")
    for name in RECEIVED
    for others, of in (("rest", OF_REST), ("quiet", OF_TWINS))
}


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Norms and what is received by stage and class, rank correlations, and what was left out."""
    measured = require_some(rows)
    visual = measured[measured["group"] == VISUAL].drop(columns="group")
    found = {
        "follow": _table("follow", measured, ["stage", "layer", "group"], ("norm", *RECEIVED)),
        "follow_ranks": _table(
            "follow_ranks", visual, ["stage", "layer"], (*NORM_RANKS, *RECEIVED_RANKS)
        ),
    }
    out = rows[rows[UNFOLLOWED] != ""]
    if len(out):
        reasons = out[["sample_id", UNFOLLOWED]].rename(columns={UNFOLLOWED: "reason"})
        found[UNFOLLOWED] = reasons.reset_index(drop=True)
    return found


def _table(
    name: str, rows: pd.DataFrame, keys: list[str], quantities: tuple[str, ...]
) -> pd.DataFrame:
    """Means over samples, and ratios of means."""
    declaration = declared(__package__)[name]
    cells = rows[keys].drop_duplicates()
    orders = (
        {"stage": STAGES_FOLLOWED, "group": FOLLOWED_GROUPS}
        if "group" in keys
        else {"stage": STAGES_FOLLOWED}
    )
    cells = in_order(cells, **orders)
    resampled = Resampled(cells, rows, keys)
    draws = {each: resampled.means(each, by_tokens=False) for each in quantities}
    held = {each: resampled.holding(each) for each in quantities}
    known = {each: rows[each].notna() for each in quantities}
    for ratio, (above, below) in _RATIOS.items() if "group" in keys else ():
        with np.errstate(divide="ignore", invalid="ignore"):
            draws[ratio] = draws[above] / resampled.means(below, by_tokens=False)
        held[ratio] = resampled.holding(below)
        known[ratio] = rows[below].notna()
    counts = rows[keys].assign(**known).groupby(keys)[[*known]].sum()
    counts = counts.reindex(pd.MultiIndex.from_frame(cells))
    names = [each for each in declaration.numbers if each in draws]
    numbers: Numbers = {
        each: {"mean": draws[each][0], "samples": counts[each].to_numpy()} for each in names
    }
    drawn: Draws = {(each, "mean"): draws[each] for each in names}
    of_means = {(each, "mean"): held[each] for each in names}
    together = []
    if "group" in keys:  # one sentence may name any class and layer
        loud = (cells["group"].isin(LOUDEST) & (cells["layer"] > 0)).to_numpy()
        chosen = loud & (cells["stage"] == STAGES_FOLLOWED[-1]).to_numpy()
        together = [Together([each], chosen) for each in _RATIOS if len(cells[chosen])]
    add_intervals(numbers, drawn, resampled.units, of_means, together, table=declaration)
    return tidy(cells, numbers)
