"""What the ratios of interface.csv divide by."""

import pandas as pd

from normprobe.schema import DECODER_INPUT, EFFECTIVE_EMBEDDING, NONZERO_ROWS, PROMPT_ROWS, TEXT

#: Column -> stage and groups: the norm of the first of these groups that the stage has.
REFERENCES = {
    "ratio_to_table": (EFFECTIVE_EMBEDDING, (NONZERO_ROWS, PROMPT_ROWS)),
    "ratio_to_prompt": (DECODER_INPUT, (TEXT,)),
}


def reference_rows(table: pd.DataFrame, stage: str, groups: tuple[str, ...]) -> "pd.Series[bool]":
    """Which rows of interface.csv a ratio may divide by; the first of them is taken."""
    return (table["stage"] == stage) & table["group"].isin(groups)
