"""Turns: what ``layers --by turn`` adds to a run, and what it says.

Of samples with several turns, each turn by itself, beside the first turn of the same sample: do
later pictures enter as loud, and turn as fast, as the first ones do?
"""

from math import nan

import numpy as np
import pandas as pd

from normprobe.report.charts import Curve, Panel
from normprobe.report.figures.style import series_look
from normprobe.report.ratio_words import FAST, LOUD, Ratio, ratio_in_words, ratios_by_layer
from normprobe.report.sentences import layers_in_words, out_of
from normprobe.report.terminal import NumberColumn
from normprobe.schema import OF_GROUP, TABLE_GROUPS, TURN, VISUAL
from normprobe.statistics.resampling import Resampled, Together, with_intervals
from normprobe.statistics.sample_statistics import merge

_BY = ["layer", TURN, "group"]
_METRICS = ("norm", "angle")
#: Of how many samples the ratios to the first turn are: pictures of others have none beside them.
_PAIRS = "samples_with_first_turn"
_TO_FIRST = {metric: f"{metric}_geometric_ratio_to_first_turn" for metric in _METRICS}


def turns_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Sample rows to turns.csv; no rows where no sample is known to have several turns."""
    held = rows[rows["group"] == TURN]
    if held.empty:
        return pd.DataFrame()
    held = held.drop(columns="group").rename(columns={OF_GROUP: "group"}).astype({TURN: int})
    held = _beside_first(held)
    counted = held.groupby(_BY)[_TO_FIRST["norm"]].count().rename(_PAIRS)
    table = merge(held, _BY, _METRICS).join(counted, on=_BY)
    order = {group: place for place, group in enumerate(TABLE_GROUPS)}
    table = table.sort_values(_BY, key=lambda c: c.map(order) if c.name == "group" else c)
    table = table.reset_index(drop=True)
    resampled = Resampled(table, held, _BY)
    draws = resampled.of_tokens(_METRICS)
    pairs = held.dropna(subset=[_TO_FIRST["norm"]])  # fewer pictures: intervals of their own
    paired = Resampled(table, held if pairs.empty else pairs, _BY)
    ratios = {
        column: np.exp(paired.means(column, by_tokens=False)) for column in _TO_FIRST.values()
    }
    table = table.assign(**{column: drawn[0] for column, drawn in ratios.items()})
    behind = (table["group"] == VISUAL) & (table["layer"] > 0)
    together = [
        Together([_TO_FIRST["angle"]], behind & (table[TURN] == number)) for number in _later(table)
    ]
    table = with_intervals(table, draws, resampled.units, resampled.held)
    return with_intervals(table, ratios, paired.units, paired.held, together)


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
    told = turns[(turns["group"] == VISUAL) & (turns[TURN] > 1)]
    return sorted(told.dropna(subset=_TO_FIRST["norm"])[TURN].unique())


def turns_verdict(turns: pd.DataFrame) -> str:
    """How loud the visual tokens of later turns enter, and how fast they turn."""
    sentences = []
    for number in _later(turns):
        rows = turns[(turns["group"] == VISUAL) & (turns[TURN] == number)]
        entry = _ratios(rows, "norm").get(0, Ratio(nan))
        turning = {layer: ratio for layer, ratio in _ratios(rows, "angle").items() if layer}
        told = layers_in_words(turning, FAST)
        louder = ratio_in_words([entry], LOUD, "those of turn 1")
        if not entry.usable:
            continue
        several = turns["samples"].max()  # who says something in turn 1
        held = out_of(rows[_PAIRS].max(), several, "conversations")
        sentences.append(
            f"Visual tokens of turn {number}{held} enter {louder}{told and f', and turn {told}'}."
        )
    return " ".join(sentences)


def _ratios(rows: pd.DataFrame, metric: str) -> dict[int, Ratio]:
    return ratios_by_layer(rows, _TO_FIRST[metric])


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
        NumberColumn((metric, f"turn {number}"), f"{metric}_mean", {"group": VISUAL, TURN: number})
        for metric in _METRICS
        for number in numbers
    ]


NOTES = (
    "Mean norm after the layer (layer 0: decoder input) and angle (radians per layer)",
    "by turn. turns.csv has text, video and audio tokens, too.",
)
