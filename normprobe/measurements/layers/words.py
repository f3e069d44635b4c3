"""What layers.csv says, in sentences."""

from collections.abc import Sequence

import pandas as pd

from normprobe.measurements.layers.theory_words import theory_verdict
from normprobe.report.ratio_words import direction, loudness, times, usable
from normprobe.runs.run_store import RunStore
from normprobe.schema import (
    TEXT,
    VISUAL,
)

#: A leading layer counts as turning slowly when text turns this many times as far.
CLEARLY_SLOWER = 2.0


def verdict(run: RunStore) -> str:
    """What the layers say, and what the theory says of them."""
    theory = theory_verdict(run.table("theory"), run.table("assumptions"))
    return " ".join(filter(None, [layers_verdict(run.table("layers")), theory]))


def layers_verdict(layers: pd.DataFrame) -> str:
    """Loudness at the decoder input and the last layer, and who turns more slowly.

    Args:
        layers: ``layers.csv``.

    Returns:
        E.g. "Visual tokens enter the decoder 57 x louder than text tokens and turn 9.1 x more
        slowly in layers 1-3. After layer 6 they are 2.4 x louder."
    """
    norms = _visual_and_text(layers, "norm_mean")
    if norms.empty:
        return ""
    ratios = norms[VISUAL] / norms[TEXT]
    first, last = int(ratios.index[0]), int(ratios.index[-1])
    if first != 0:
        return ""
    louder = direction(ratios[first])
    sentence = f"Visual tokens enter the decoder {loudness(ratios[first])} text tokens"
    turning, pace = _turning(_visual_and_text(layers, "angle_mean"))
    if turning:
        # Louder tokens are expected to turn more slowly; anything else is worth a "but".
        sentence += f" {'and' if pace == -louder else 'but'} {turning}"
    sentence += "."
    if last > first:
        sentence += f" After layer {last} they are {loudness(ratios[last], short=True)}."
    return sentence


def _visual_and_text(layers: pd.DataFrame, column: str) -> pd.DataFrame:
    """One row a layer, columns visual and text, only where both are finite and positive."""
    wide = (
        layers[layers["group"].isin([VISUAL, TEXT])]
        .pivot(index="layer", columns="group", values=column)
        .reindex(columns=[VISUAL, TEXT])
        .astype(float)
        .sort_index()
    )
    return wide[wide.map(usable).all(axis=1)]


def _turning(angles: pd.DataFrame) -> tuple[str, int]:
    """The clause on turning, and 1 where visual tokens are faster, -1 slower, 0 alike."""
    if angles.empty:
        return "", 0
    ratio = angles[TEXT] / angles[VISUAL]
    for pace, word in ((-1, "slowly"), (1, "quickly")):
        leading = _leading(ratio**-pace >= CLEARLY_SLOWER)
        if leading:
            means = angles.loc[leading].mean()
            factor = (means[TEXT] / means[VISUAL]) ** -pace
            return f"turn {times(factor)} more {word} in {_layers(leading)}", pace
    # No clear gap at the start: the whole depth decides.
    means = angles.mean()
    pace = direction(means[VISUAL] / means[TEXT])
    if pace == 0:
        return "turn at about the same rate", 0
    word = "quickly" if pace > 0 else "slowly"
    factor = (means[VISUAL] / means[TEXT]) ** pace
    return f"turn {times(factor)} more {word} on average over all layers", pace


def _leading(holds: "pd.Series[bool]") -> list[int]:
    """The layers from 1 on, without a gap, for which the condition holds."""
    leading: list[int] = []
    for layer, true in holds.items():
        if not true or layer != len(leading) + 1:
            break
        leading.append(len(leading) + 1)
    return leading


def _layers(layers: Sequence[int]) -> str:
    return f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]}-{layers[-1]}"
