"""``interface.csv`` as dots, stage by stage."""

from typing import Any

import pandas as pd

from normprobe.report.figures.style import GROUP_LOOKS
from normprobe.report.page.dots import Dots, dot, dots_of
from normprobe.report.ratio_words import times
from normprobe.schema import (
    DECODER_INPUT,
    NONZERO_ROWS,
    ROW_SCOPES,
    STAGES,
    TEXT,
    TOKEN_GROUPS,
    VISUAL,
    VISUAL_EMBEDDING_TABLE,
)


def interface_dots(interface: pd.DataFrame) -> Dots:
    """The mean norm of every stage and group, from the vision encoder to the text embeddings."""
    rows = interface[interface["norm_mean"] > 0]
    made = [
        _dot(stage, group, row)
        for stage in STAGES
        for group in (*TOKEN_GROUPS, *ROW_SCOPES)
        for _, row in rows[(rows["stage"] == stage) & (rows["group"] == group)].iterrows()
    ]
    prompt = rows[(rows["stage"] == DECODER_INPUT) & (rows["group"] == TEXT)]["norm_mean"]
    reference = None
    if len(prompt):
        color = GROUP_LOOKS[TEXT].color
        reference = ("the text tokens of the prompts", float(prompt.iloc[0]), color)
    return dots_of("L2 norm from vision encoder to decoder input", "L2 norm", made, reference)


def _dot(stage: str, group: str, row: "pd.Series[Any]") -> dict[str, Any]:
    # Rows of a table look as its tokens do; those that the paper averages are filled.
    of_table = VISUAL if stage == VISUAL_EMBEDDING_TABLE else TEXT
    ratio = row["ratio_to_prompt"]
    return dot(
        stage=f"{stage.replace('_', ' ')} (d = {row['hidden_size']:.0f})",
        name=group.replace("_", " "),
        color=GROUP_LOOKS[group if group in TOKEN_GROUPS else of_table].color,
        value=row["norm_mean"],
        interval=(row.get("norm_mean_ci_low"), row.get("norm_mean_ci_high")),
        spread=(row["norm_q05"], row["norm_q95"]),
        hollow=group in ROW_SCOPES and group != NONZERO_ROWS,
        ratio=times(ratio) if group == VISUAL and ratio > 0 else "",
    )
