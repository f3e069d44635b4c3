"""Runs of ``interface`` side by side: what ranks them, and how they are shown."""

import pandas as pd

from normprobe.report.ratio_words import Ratio, with_ends
from normprobe.schema import DECODER_INPUT, TEXT, VISUAL

#: Header and column of each number of the ranking.
COLUMNS = {
    "x prompt": "disparity_input",
    "x table": "ratio_to_table",
    "visual": "visual_norm",
    "text": "text_norm",
}
NOTES = (
    "Norms at the decoder input, visual / text. x prompt: geometric means, the text",
    "tokens of the prompts. x table: means, the non-zero effective text embeddings",
    "(Eq. 11). Ranked by |log x prompt|.",
)
#: What the intervals need of the sample rows: they are in the table.
ROW_COLUMNS = ()


def figures(compare: pd.DataFrame) -> tuple[str, ...]:
    """The modules that draw ``compare.csv``."""
    del compare
    return ("compare_interface",)


def measures(interface: pd.DataFrame, rows: pd.DataFrame | None = None) -> dict[str, float]:
    """Disparity of one run at the decoder input, each number with its 95 % interval."""
    del rows
    at_input = interface[interface["stage"] == DECODER_INPUT].set_index("group")

    def measured(column: str, group: str) -> Ratio:
        columns = [column, f"{column}_ci_low", f"{column}_ci_high"]
        return Ratio(*at_input.reindex(index=[group], columns=columns).iloc[0].astype(float))

    return with_ends(
        {
            "disparity_input": measured("geometric_ratio_to_prompt", VISUAL),
            "ratio_to_table": measured("ratio_to_table", VISUAL),
            "visual_norm": measured("norm_mean", VISUAL),
            "text_norm": measured("norm_mean", TEXT),
        }
    )
