"""The plain sentence under a table: what the numbers say, without the numbers' columns.

Every function takes the table of one command and returns an empty string where the table holds
nothing to compare, such as a text-only model.
"""

import math
from collections.abc import Sequence

import pandas as pd

from normprobe.report.significant import significant
from normprobe.schema import (
    DECODER_INPUT,
    NONZERO_ROWS,
    PROJECTOR_INPUT,
    PROJECTOR_OUTPUT,
    TEXT,
    VISION_ENCODER,
    VISUAL,
    VISUAL_EMBEDDING_TABLE,
)

#: Ratios between 1 / 1.25 and 1.25 are called equal: token spread is larger than that.
ALIKE = 1.25

#: A leading layer counts as turning slowly when text turns this many times as far.
CLEARLY_SLOWER = 2.0


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
    loudness = _direction(ratios[first])
    sentence = f"Visual tokens enter the decoder {_loudness(ratios[first])} text tokens"
    turning, pace = _turning(_visual_and_text(layers, "angle_mean"))
    if turning:
        # Louder tokens are expected to turn more slowly; anything else is worth a "but".
        sentence += f" {'and' if pace == -loudness else 'but'} {turning}"
    sentence += "."
    if last > first:
        sentence += f" After layer {last} they are {_loudness(ratios[last], short=True)}."
    return sentence


def interface_verdict(interface: pd.DataFrame) -> str:
    """How loud visual tokens are against the prompts' text, and what the projector changes.

    Args:
        interface: ``interface.csv``.
    """
    ratio = _value(interface, DECODER_INPUT, VISUAL, "ratio_to_prompt")
    if not _usable(ratio):
        return ""
    sentences = [
        f"At the decoder input visual tokens are {_loudness(ratio)} the text tokens of the prompts"
    ]
    table_ratio = _value(interface, DECODER_INPUT, VISUAL, "ratio_to_table")
    if _usable(table_ratio):
        sentences[0] += f", and {_loudness(table_ratio)} the effective text embedding table"
    before = _value(interface, PROJECTOR_INPUT, VISUAL, "norm_mean")
    if not _usable(before):
        before = _value(interface, VISION_ENCODER, VISUAL, "norm_mean")
    after = _value(interface, PROJECTOR_OUTPUT, VISUAL, "norm_mean")
    # A visual table is fed probabilities, whose norm is at most 1: nothing to compare.
    if _usable(before) and _usable(after) and before > 1.0:
        change = _direction(after / before)
        verb = {1: "raises", -1: "lowers", 0: "about keeps"}[change]
        sentences.append(
            f"The projector {verb} their mean L2 norm: "
            f"{significant(before)} before, {significant(after)} after"
        )
    sentences += _mixtures(interface)
    return ". ".join(sentences) + "."


def _mixtures(interface: pd.DataFrame) -> list[str]:
    """Rows of a visual table, and the tokens that are mixed from them."""
    rows = _value(interface, VISUAL_EMBEDDING_TABLE, NONZERO_ROWS, "norm_mean")
    tokens = _value(interface, PROJECTOR_OUTPUT, VISUAL, "norm_mean")
    if not (_usable(rows) and _usable(tokens)):
        return []
    sentence = (
        f"Rows of the visual table have a mean L2 norm of {significant(rows)}, the tokens mixed "
        f"from them {significant(tokens)}"
    )
    weight = _value(interface, PROJECTOR_INPUT, VISUAL, "norm_q50")
    if _usable(weight):
        sentence += f"; a median token mixes {significant(weight**-2, 2)} rows (1 / ||p||^2)"
    return [sentence]


def embeddings_verdict(embeddings: pd.DataFrame) -> str:
    """The visual table against the text table, or how far the text table's loudest row stands out.

    Args:
        embeddings: ``embeddings.csv``; the non-zero rows are compared.
    """
    rows = embeddings[embeddings["rows"] == NONZERO_ROWS].set_index("table")
    means = {table: float(rows["norm_mean"].get(table, math.nan)) for table in (VISUAL, TEXT)}
    if not _usable(means[TEXT]):
        return ""
    if _usable(means[VISUAL]):
        return (
            f"Rows of the visual table are {_loudness(means[VISUAL] / means[TEXT])} rows of the "
            f"text table (mean L2 norm {significant(means[VISUAL])} against "
            f"{significant(means[TEXT])})."
        )
    sentence = f"Non-zero text embedding rows have a mean L2 norm of {significant(means[TEXT])}"
    loudest = float(rows["norm_max"].get(TEXT, math.nan))
    if _usable(loudest):
        sentence += f"; the loudest has {_times(loudest / means[TEXT])} that"
    return sentence + "."


def attention_verdict(attention: pd.DataFrame) -> str:
    """How much attention of the text reaches the image, how widely it spreads, how well it aims.

    Args:
        attention: ``attention.csv``; its first query, all text, is told.

    Returns:
        E.g. "Text gives 12 % of its attention to visual tokens (even attention: 88 %), most in
        layer 2 (31 %). Its entropy over them is 0.71 of the possible."
    """
    rows = attention[attention["query"] == attention["query"].iloc[0]].set_index("layer")
    rows = rows[rows["heads"] > 0]
    share = rows["share_mean"]
    if share.empty:
        return ""
    sentence = f"Text gives {share.mean():.0%} of its attention to visual tokens"
    if (rows["even_share_mean"] < 1).any():  # cross-attention sees nothing else
        sentence += (
            f" (spread evenly: {rows['even_share_mean'].mean():.0%}), most in layer "
            f"{share.idxmax()} ({share.max():.0%})"
        )
    sentences = [sentence]
    entropy = rows["entropy_mean"].dropna()
    if len(entropy):
        sentences.append(
            f"Over them it is most focused in layer {entropy.idxmin()} (entropy "
            f"{entropy.min():.2f} of 1)"
        )
    target = rows["signal_to_noise"].dropna()
    if len(target):
        sentences.append(
            f"A token inside the box draws {significant(float(target.mean()), 2)} x the attention "
            f"of one outside, at best {significant(float(target.max()), 2)} x in layer "
            f"{target.idxmax()}"
        )
    return ". ".join(sentences) + "."


def _visual_and_text(layers: pd.DataFrame, column: str) -> pd.DataFrame:
    """One row a layer, columns visual and text, only where both are finite and positive."""
    wide = (
        layers[layers["group"].isin([VISUAL, TEXT])]
        .pivot(index="layer", columns="group", values=column)
        .reindex(columns=[VISUAL, TEXT])
        .astype(float)
        .sort_index()
    )
    return wide[wide.map(_usable).all(axis=1)]


def _turning(angles: pd.DataFrame) -> tuple[str, int]:
    """The clause on turning, and 1 where visual tokens are faster, -1 slower, 0 alike."""
    if angles.empty:
        return "", 0
    ratio = angles[TEXT] / angles[VISUAL]
    for pace, word in ((-1, "slowly"), (1, "quickly")):
        leading = _leading(ratio**-pace >= CLEARLY_SLOWER)
        if leading:
            means = angles.loc[leading].mean()
            times = (means[TEXT] / means[VISUAL]) ** -pace
            return f"turn {_times(times)} more {word} in {_layers(leading)}", pace
    # No clear gap at the start: the whole depth decides.
    means = angles.mean()
    pace = _direction(means[VISUAL] / means[TEXT])
    if pace == 0:
        return "turn at about the same rate", 0
    word = "quickly" if pace > 0 else "slowly"
    times = (means[VISUAL] / means[TEXT]) ** pace
    return f"turn {_times(times)} more {word} on average over all layers", pace


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


def _loudness(ratio: float, *, short: bool = False) -> str:
    """``57 x louder than``; without the last word when nothing follows."""
    words = {1: ("louder", " than"), -1: ("quieter", " than"), 0: ("about as loud", " as")}
    direction = _direction(ratio)
    word, joint = words[direction]
    times = f"{_times(ratio**direction)} " if direction else ""
    return times + word + ("" if short else joint)


def _direction(ratio: float) -> int:
    if ratio >= ALIKE:
        return 1
    return -1 if ratio <= 1 / ALIKE else 0


def _times(ratio: float) -> str:
    return f"{significant(ratio, digits=2 if ratio < 99.5 else 3)} x"


def _value(interface: pd.DataFrame, stage: str, group: str, column: str) -> float:
    rows = interface[(interface["stage"] == stage) & (interface["group"] == group)]
    return float(rows[column].iloc[0]) if len(rows) and column in rows else math.nan


def _usable(value: float) -> bool:
    return math.isfinite(value) and value > 0
