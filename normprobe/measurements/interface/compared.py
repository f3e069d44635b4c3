"""Runs of ``interface`` side by side: what ranks them, and how they are shown."""

import pandas as pd

from normprobe.measurements.embeddings.compared import _at
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
        "disparity_input": _at(rows, VISUAL, "ratio_to_prompt"),
        "ratio_to_table": _at(rows, VISUAL, "ratio_to_table"),
        "visual_norm": _at(rows, VISUAL, "norm_mean"),
        "text_norm": _at(rows, TEXT, "norm_mean"),
    }
