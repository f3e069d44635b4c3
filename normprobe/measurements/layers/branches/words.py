"""What branches.csv says, in sentences."""

import pandas as pd

from normprobe.report.layer_words import layers_in_words
from normprobe.report.ratio_words import FAST, Ratio, Words, ratios_by_layer
from normprobe.schema import BRANCHES, VISUAL

BRANCH_WORDS = dict(zip(BRANCHES, ("attention", "cross-attention", "MLP"), strict=True))
_LARGE = Words("larger", "smaller", "about as large")


def branches_verdict(branches: pd.DataFrame) -> str:
    """What each branch adds to visual tokens, and how fast it turns them, against text tokens."""
    sentences: list[str] = []
    for branch, name in BRANCH_WORDS.items():
        rows = branches[(branches["branch"] == branch) & (branches["group"] == VISUAL)]
        size = layers_in_words(_ratios(rows, "update_norm"), _LARGE)
        turn = layers_in_words(_ratios(rows, "angle"), FAST)
        if size and turn:
            sentences.append(
                f"{'What' if sentences else 'Against text tokens, what'} the {name} adds to "
                f"visual tokens is {size}, and it turns them {turn}."
            )
    return " ".join(sentences)


def _ratios(rows: pd.DataFrame, metric: str) -> dict[int, Ratio]:
    return ratios_by_layer(rows, f"{metric}_geometric_ratio_to_text")
