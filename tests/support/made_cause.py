"""cause.csv of made numbers: those of the specimen's prototype, with intervals about them."""

import numpy as np
import pandas as pd

from normprobe.tidy import BAND, INTERVAL

ANGLES = [9.42, 2.83, 1.65, 2.08, 1.87, 1.52]
ALIKE = [1.02, 1.03, 0.83, 1.14, 1.09, 0.94]
#: Dose, NLL, half the width of its interval, accuracy, share of the angle ratio that is gone.
SCALES = (
    (0.125, 1.239, 0.2, 0.360, 0.5),
    (0.25, 0.408, 0.08, 0.645, 0.3),
    (0.5, 0.247, 0.0085, 0.775, 0.1),
    (2.0, 0.249, 0.0075, 0.770, -0.1),
    (4.0, 0.264, 0.017, 0.720, -0.3),
    (8.0, 0.277, 0.023, 0.710, -0.5),
)
NLL, ACCURACY = 0.243, 0.775
_BANDED = ("visual_angle", "text_angle", "angle_ratio")


def row(intervention, quantity, value, mean, half, untouched=0.0, **more):
    ends = (mean * 0.95, mean * 1.05) if quantity in _BANDED else (mean - half, mean + half)
    known = {"intervention": intervention, "dose": np.nan, "layer": 0, "quantity": quantity}
    known |= {"mean": mean, **dict(zip((*INTERVAL, *BAND), (*ends, *ends), strict=True))}
    return known | {"untouched": untouched, "value": value, "off_map": False, "samples": 200} | more


def answers(intervention, nll, half, accuracy, **more):
    """What becomes of the answers."""
    touched = {"placebo": 6.0}.get(intervention, 64.0)
    return [
        row(intervention, "nll", nll, nll - NLL, half, NLL, **more),
        row(intervention, "accuracy", accuracy, accuracy - ACCURACY, half + 0.02, ACCURACY, **more),
        row(intervention, "kl", (kl := abs(nll - NLL) + 0.002), kl, kl / 2, **more),
        row(intervention, "changed", (kl := abs(accuracy - ACCURACY)), kl, half, **more),
        row(intervention, "moved", 0.1, 0.1, 0.02, **more),
        row(intervention, "images", 200.0, 200.0, np.nan, **more),
        row(intervention, "touched", touched, touched, np.nan, **more),
        row(intervention, "added", 0.0, 0.0, np.nan, **more),
    ]


def angles(intervention, visual, ratios, **more):
    """What becomes of turning: visual angles times ``visual``, by layer."""
    rows = []
    for layer, (before, after, factor) in enumerate(
        zip(ANGLES, ratios, visual, strict=True), start=1
    ):
        untouched = 0.6 / before
        told = {"layer": layer, **more}
        rows += [
            row(intervention, "visual_angle", untouched * factor, factor, 0, untouched, **told),
            row(intervention, "text_angle", 0.6, 1.0, 0, 0.6, **told),
            row(intervention, "angle_ratio", after, after / before, 0, before, **told),
        ]
    return rows


def cause(frozen_layers=True, intervals=True, right=True):
    """What `--do scale,scale-to-text,norm-at-layer,freeze,freeze-layer,blank,placebo` writes."""
    rows = []
    for dose, nll, half, accuracy, removed in SCALES:
        more = {"dose": dose, "off_map": dose < 0.5}
        rows += angles("scale", [1 / dose] * 6, [ratio * dose for ratio in ANGLES], **more)
        rows.append(row("scale", "share_removed", removed, removed, 0.05, **more))
        rows += answers("scale", nll, half, accuracy, **more)
    rows += angles("scale-to-text", [20.0] * 6, ALIKE, off_map=True)
    rows += answers("scale-to-text", 2.4, 0.3, 0.24, off_map=True)
    rows += angles("norm-at-layer", [b / a for b, a in zip(ANGLES, ALIKE, strict=True)], ALIKE)
    rows.append(row("norm-at-layer", "share_removed", 0.83, 0.83, 0.03))
    rows.append(row("scale-to-text", "share_removed", 0.92, 0.92, 0.02, off_map=True))
    rows.append(row("norm-at-layer", "layers_apart", 6.0, 6.0, np.nan))
    rows += answers("freeze", 0.290, 0.029, 0.690)
    if frozen_layers:
        for layer, nll in enumerate((0.2477, 0.2462, 0.2447, 0.2435, 0.2431, 0.2430), start=1):
            rows += answers("freeze-layer", nll, 0.002, 0.770, layer=layer)
    rows += answers("blank", 2.1, 0.2, 0.2)
    for dose, nll in ((0.125, 0.31), (8.0, 0.25)):
        rows += answers("placebo", nll, 0.02, 0.75, dose=dose)
    table = pd.DataFrame(rows)
    if not right:
        table = table[~table["quantity"].isin(["nll", "accuracy"])]
    if not intervals:
        table[[*INTERVAL, *BAND]] = np.nan
    return table.reset_index(drop=True)
