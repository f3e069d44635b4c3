"""What theory.csv and assumptions.csv say, in sentences."""

import pandas as pd

from normprobe.report.significant import significant


def theory_verdict(theory: pd.DataFrame, assumptions: pd.DataFrame) -> str:
    """How many assumptions hold, and prediction against measurement at the last predicted layer.

    Args:
        theory: ``theory.csv``.
        assumptions: ``assumptions.csv``.
    """
    if assumptions.empty:
        return ""
    assumed = assumptions[assumptions["source"] == "Section 3.1"]
    holding = int((assumed["verdict"] == "holds").sum())
    sentence = f"{holding} of {len(assumed)} assumptions hold in every layer."
    predicted = theory[theory["predicted_cross_modal_cosine_mean"].notna() & (theory["layer"] > 0)]
    if len(predicted):
        last = predicted.iloc[-1]
        sentence += (
            f" After layer {int(last['layer'])} Eq. 15 predicts a cross-modal cosine of "
            f"{significant(float(last['predicted_cross_modal_cosine_mean']), 2)}; measured "
            f"{significant(float(last['cross_modal_cosine_mean']), 2)}."
        )
    lags = theory[theory["lag_angle_mean"].notna() & (theory["layer"] > 0)]
    if len(lags):
        last = lags.iloc[-1]
        sentence += (
            f" The lag angle (Eq. 17) is {significant(float(last['lag_angle_mean']), 2)} rad after "
            f"layer {int(last['layer'])}"
        )
        having, samples = int(last["lag_angle_samples"]), int(last["samples"])
        if having < samples:
            sentence += f", in the {having} of {samples} samples that begin with a cosine above 0"
        sentence += "."
    return sentence
