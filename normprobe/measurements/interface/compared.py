"""Runs of ``interface`` side by side: what ranks them, and how they are shown."""

from math import nan

import pandas as pd

from normprobe.schema import DECODER_INPUT, TEXT, VISUAL

#: Header and column of each number of the ranking.
COLUMNS = {
    "x prompt": "disparity_input",
    "x table": "ratio_to_table",
    "visual": "visual_norm",
    "text": "text_norm",
}
NOTES = (
    "Mean norms at the decoder input, visual / text: of the prompts' text tokens",
    "and of the non-zero effective text embeddings. Ranked by x prompt.",
)


def figures(compare: pd.DataFrame) -> tuple[str, ...]:
    """The modules that draw ``compare.csv``."""
    del compare
    return ("compare_interface",)


def measures(interface: pd.DataFrame) -> dict[str, float]:
    """Disparity of one run at the decoder input.

    Args:
        interface: ``interface.csv``.

    Returns:
        ``disparity_input``: visual / text mean norm of the prompts' tokens; ``ratio_to_table``:
        visual mean norm / that of the non-zero effective text embeddings; and both mean norms.
    """
    rows = interface[interface["stage"] == DECODER_INPUT].set_index("group")
    return {
        "disparity_input": float(rows["ratio_to_prompt"].get(VISUAL, nan)),
        "ratio_to_table": float(rows["ratio_to_table"].get(VISUAL, nan)),
        "visual_norm": float(rows["norm_mean"].get(VISUAL, nan)),
        "text_norm": float(rows["norm_mean"].get(TEXT, nan)),
    }
