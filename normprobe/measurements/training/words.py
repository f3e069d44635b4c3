"""What a training says, in sentences."""

import pandas as pd

from normprobe.errors import number_of
from normprobe.report.ratio_words import Ratio, factor
from normprobe.runs.run_folder import RunStore
from normprobe.schema import VISUAL


def verdict(run: RunStore) -> str:
    """How loud visual tokens were and became; then what seems wrong."""
    said, alarms = [], run.rows_of("alarms")
    disparity = disparities(run.table("training"))
    if len(disparity):
        told = [
            f"{factor([Ratio(ratio)])} {'the norm of text tokens ' * (not place)}at step {step}"
            for place, (step, ratio) in enumerate(disparity.items())
        ]
        ends = " and ".join(dict.fromkeys([told[0], told[-1]]))
        said.append(f"Visual tokens enter the decoder with {ends}.")
    if alarms is None:
        return " ".join([*said, "No alarm."])
    steps = alarms["training_step"].astype(int)
    raised = [f"at step {step}, {what}" for step, what in zip(steps, alarms["words"], strict=True)]
    return " ".join(
        [*said, f"{number_of(len(raised), 'alarm').capitalize()}: {'; '.join(raised)}."]
    )


def disparities(training: pd.DataFrame, layer: int = 0) -> "pd.Series[float]":
    """Visual over text norm after a layer, by step; without steps that have no pictures."""
    rows = training[(training["layer"] == layer) & (training["group"] == VISUAL)]
    ratios = rows.set_index(rows["training_step"].astype(int))["norm_geometric_ratio_to_text"]
    return ratios.dropna()
