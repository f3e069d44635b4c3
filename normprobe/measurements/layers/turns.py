"""Turns: what ``layers --by turn`` adds to a run, and what it says.

Of samples with several turns, each turn by itself, beside the first turn of the same sample: do
later pictures enter with such norms, and turn as fast, as the first ones do?
"""

from math import nan

import numpy as np
import pandas as pd

from normprobe.report.charts import Curve, Panel
from normprobe.report.figures.style import series_look
from normprobe.report.ratio_words import Ratio, ratio_in_words, ratios_by_layer
from normprobe.report.sentences import LayerPhrases, in_some_samples, layer_findings
from normprobe.report.terminal import NumberColumn
from normprobe.report.verdict import Finding
from normprobe.schema import OF_GROUP, TABLE_GROUPS, TURN, VISUAL
from normprobe.statistics.resampling import Resampled, Together, add_intervals
from normprobe.statistics.sample_statistics import merge
from normprobe.tidy import along, declared, in_order, select, tidy

_BY = ["layer", TURN, "group"]
_METRICS = ("norm", "angle")
_TO_FIRST = {metric: f"{metric}_geometric_ratio_to_first_turn" for metric in _METRICS}


def turns_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Sample rows to turns.csv; no rows where no sample is known to have several turns."""
    held = rows[rows["group"] == TURN]
    if held.empty:
        return pd.DataFrame()
    held = held.drop(columns="group").rename(columns={OF_GROUP: "group"}).astype({TURN: int})
    held = _beside_first(held)
    cells, numbers = merge(held, _BY, _METRICS)
    resampled = Resampled(cells, held, _BY)
    drawn = resampled.of_tokens(_METRICS)
    table = declared(__package__)["turns"]
    add_intervals(numbers, drawn, resampled.units, resampled.held, table=table)
    pairs = held.dropna(subset=[_TO_FIRST["norm"]])  # fewer pictures: intervals of their own
    paired = Resampled(cells, held if pairs.empty else pairs, _BY)
    counted = held.groupby(_BY, sort=False)[_TO_FIRST["norm"]].count().to_numpy()
    ratios = {
        (ratio, "mean"): np.exp(paired.means(ratio, by_tokens=False))
        for ratio in _TO_FIRST.values()
    }
    # Samples without such tokens in their first turn have no say in a ratio to it.
    for (ratio, _), of_cells in ratios.items():
        numbers[ratio] = {"mean": of_cells[0], "samples": counted}
    behind = (cells["group"] == VISUAL) & (cells["layer"] > 0)
    later = sorted(pairs.loc[(pairs["group"] == VISUAL) & (pairs[TURN] > 1), TURN].unique())
    together = [
        Together([_TO_FIRST["angle"]], behind & (cells[TURN] == number)) for number in later
    ]
    add_intervals(numbers, ratios, paired.units, paired.held, together, table=table)
    return in_order(tidy(cells, numbers), group=TABLE_GROUPS)


def _beside_first(rows: pd.DataFrame) -> pd.DataFrame:
    """With the logarithm of each ratio to the first turn: of a sample, so that pictures pair."""
    by, logs = ["sample_id", "layer", "group"], [f"{metric}_log_mean" for metric in _METRICS]
    first = rows.loc[rows[TURN] == 1, [*by, *logs]]
    beside = rows[by].merge(first, how="left", on=by)[logs].set_axis(rows.index)
    return rows.assign(
        **dict(zip(_TO_FIRST.values(), (rows[logs] - beside).T.to_numpy(), strict=True))
    )


def _later(turns: pd.DataFrame) -> list[int]:
    """The turns behind the first with visual tokens, of samples that have some in the first."""
    told = select(turns, _TO_FIRST["norm"], group=VISUAL)
    return sorted(told.loc[(told[TURN] > 1) & told["mean"].notna(), TURN].unique())


def turns_findings(turns: pd.DataFrame) -> list[Finding]:
    """The norms with which visual tokens of later turns enter, and how fast they turn."""
    findings = []
    for number in _later(turns):
        rows = turns[(turns["group"] == VISUAL) & (turns[TURN] == number)]
        norms, angles = (along(select(rows, ratio), rows["layer"]) for ratio in _TO_FIRST.values())
        entry = ratios_by_layer(norms).get(0, Ratio(nan))
        if not entry.usable:
            continue
        name, tokens = f"turn_{number}", f"isual tokens of turn {number}"
        told = ratio_in_words(entry, than="in turn 1")
        findings.append(
            Finding(f"{name}.norm", f"Norm of v{tokens} at the decoder input: {told}.", {"": entry})
        )
        turning = {layer: ratio for layer, ratio in ratios_by_layer(angles).items() if layer}
        above, below = (
            f"V{tokens} turn more {way} than those of turn 1" for way in ("quickly", "slowly")
        )
        findings += layer_findings(
            turning, LayerPhrases(f"{name}.angle", above, below, f"Angle of v{tokens} and 1")
        )
        several = turns["samples"].max()  # who says something in turn 1
        held = {f"v{tokens}": float(norms["samples"].max())}
        findings.append(
            in_some_samples(held, several, "conversations")._replace(name=f"{name}.samples")
        )
    return findings


#: Curves are turns: as many as there are looks.
TURN_PANELS = tuple(
    Panel(
        f"visual tokens: {title} over that in turn 1",
        tuple(
            Curve(f"turn {number}", _TO_FIRST[metric], look, {"group": VISUAL, TURN: number})
            for number, look in enumerate(map(series_look, range(7)), start=2)
        ),
        "ratio",
    )
    for metric, title in zip(_METRICS, ("norm", "angle"), strict=True)
)


def turn_columns(turns: pd.DataFrame) -> list[NumberColumn]:
    """What a terminal shows of turns.csv: the mean norm and angle of visual tokens."""
    numbers = sorted(turns.loc[turns["group"] == VISUAL, TURN].unique())
    return [
        NumberColumn((metric, f"turn {number}"), metric, {"group": VISUAL, TURN: number})
        for metric in _METRICS
        for number in numbers
    ]


NOTES = (
    "Mean norm after the layer (layer 0: decoder input) and angle (radians per layer)",
    "by turn. turns.csv has text, video and audio tokens, too.",
)
