"""What interface.csv says, in sentences."""

import math

import pandas as pd

from normprobe.report.ratio_words import direction, loudness, usable
from normprobe.report.significant import significant
from normprobe.runs.run_store import RunStore
from normprobe.schema import (
    DECODER_INPUT,
    NONZERO_ROWS,
    PROJECTOR_INPUT,
    PROJECTOR_OUTPUT,
    VISION_ENCODER,
    VISUAL,
    VISUAL_EMBEDDING_TABLE,
)


def verdict(run: RunStore) -> str:
    """What the norms at the interface say."""
    return interface_verdict(run.table("interface"))


def interface_verdict(interface: pd.DataFrame) -> str:
    """How loud visual tokens are against the prompts' text, and what the projector changes.

    Args:
        interface: ``interface.csv``.
    """
    ratio = _value(interface, DECODER_INPUT, VISUAL, "ratio_to_prompt")
    if not usable(ratio):
        return ""
    sentences = [
        f"At the decoder input visual tokens are {loudness(ratio)} the text tokens of the prompts"
    ]
    table_ratio = _value(interface, DECODER_INPUT, VISUAL, "ratio_to_table")
    if usable(table_ratio):
        sentences[0] += f", and {loudness(table_ratio)} the effective text embedding table"
    before = _value(interface, PROJECTOR_INPUT, VISUAL, "norm_mean")
    if not usable(before):
        before = _value(interface, VISION_ENCODER, VISUAL, "norm_mean")
    after = _value(interface, PROJECTOR_OUTPUT, VISUAL, "norm_mean")
    # A visual table is fed probabilities, whose norm is at most 1: nothing to compare.
    if usable(before) and usable(after) and before > 1.0:
        change = direction(after / before)
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
    if not (usable(rows) and usable(tokens)):
        return []
    sentence = (
        f"Rows of the visual table have a mean L2 norm of {significant(rows)}, the tokens mixed "
        f"from them {significant(tokens)}"
    )
    weight = _value(interface, PROJECTOR_INPUT, VISUAL, "norm_q50")
    if usable(weight):
        sentence += f"; a median token mixes {significant(weight**-2, 2)} rows (1 / ||p||^2)"
    return [sentence]


def _value(interface: pd.DataFrame, stage: str, group: str, column: str) -> float:
    rows = interface[(interface["stage"] == stage) & (interface["group"] == group)]
    return float(rows[column].iloc[0]) if len(rows) and column in rows else math.nan
