"""The paper's theory beside the measurement, layer by layer (Section 3, Appendix B).

Everything is computed per sample from its sample rows, then averaged over samples.
"""

import numpy as np
import pandas as pd

from normprobe.schema import PAIR, PAIR_METRICS, TEXT, VISUAL
from normprobe.statistics.co_moments import CO_MOMENTS, norm_angle_relation


def theory_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Predicted against measured cross-modal cosine, and a number for each assumption.

    Args:
        rows: sample rows of ``layer_rows``.

    Returns:
        The rows of theory.csv, one a layer, ``_mean`` and ``_std`` over samples of:

        - cross_modal_cosine: measured mean cosine over all (visual, text) pairs
        - retention: product of both modalities' mean cosines (Eq. 16)
        - predicted_cross_modal_cosine: running product of retentions times the value at layer 0
          (Eq. 15), empty from the first layer on whose visual input was changed between layers
        - lag_angle: arccos of that prediction minus arccos of the balanced one, where both
          modalities turn by the geometric mean of the tangents (Eq. 17, Lemma 1), in radians;
          empty where a mean cosine or the cosine at layer 0 is not positive; ``lag_angle_samples``
          counts the samples that have one
        - norm_ratio: visual / text norm of what leaves the layer, above 1 under Modality Norm
          Imbalance
        - update_norm_ratio: visual / text update norm, 1 under Uniform Update Magnitude
        - update_angle_visual, update_angle_text: equal under Consistent Update Geometry (radians)
        - visual_turn_to_text, text_turn_to_visual: 0 under Random Rotational Direction

        and, over tokens rather than samples, ``norm_angle_correlation`` and ``norm_angle_slope`` of
        log angle on the log norm that enters the layer, for visual tokens, text tokens and both
        together (``_visual``, ``_text``, ``_both``): about -1 under Eq. 13.

        Samples without visual or without text tokens have no say; no rows where there are none.
    """
    rows = rows[rows["sample_id"].isin(rows.loc[rows["group"] == PAIR, "sample_id"])]
    if rows.empty:
        return pd.DataFrame(columns=["layer", "samples"])
    columns = _by_sample(rows)
    measured = columns["cross_modal_cosine"]
    merged = pd.DataFrame({"samples": len(measured)}, index=measured.columns)
    for name, of_samples in columns.items():
        merged[f"{name}_mean"] = of_samples.mean()
        merged[f"{name}_std"] = of_samples.std(ddof=0)
    merged["lag_angle_samples"] = columns["lag_angle"].notna().sum()
    merged = merged.join(_norm_angle_relations(rows))
    merged.insert(1, "hidden_size", rows["hidden_size"].iloc[0])
    return merged.reset_index()


def _norm_angle_relations(rows: pd.DataFrame) -> pd.DataFrame:
    """Correlation and slope of log angle on log norm, one row a layer."""
    rows = rows.reindex(columns=["layer", "group", *CO_MOMENTS])
    relations = [
        norm_angle_relation(rows[rows["group"].isin(groups)], "layer")
        .add_prefix("norm_angle_")
        .add_suffix(f"_{name}")
        for name, groups in (("visual", [VISUAL]), ("text", [TEXT]), ("both", [VISUAL, TEXT]))
    ]
    return pd.concat(relations, axis=1)


def _by_sample(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Each quantity as ``[samples, layers]``."""

    def wide(group: str, column: str) -> pd.DataFrame:
        of_group = rows[rows["group"] == group]
        return of_group.pivot(index="sample_id", columns="layer", values=column)

    measured = wide(PAIR, "cross_modal_cosine")
    initial = measured[0]
    cosines = wide(VISUAL, "cosine_mean"), wide(TEXT, "cosine_mean")
    retention = cosines[0] * cosines[1]
    # Layer 0 turns nothing; between layers an injection of visual features ends the prediction.
    followed = ~wide(PAIR, "injected").astype(bool).cummax(axis=1)
    predicted = retention.fillna(1.0).cumprod(axis=1).mul(initial, axis=0).where(followed)
    balanced = _balanced_retention(*cosines).cumprod(axis=1, skipna=False).mul(initial, axis=0)
    lag = predicted.apply(np.arccos) - balanced.apply(np.arccos)
    return {
        "cross_modal_cosine": measured,
        "retention": retention,
        "predicted_cross_modal_cosine": predicted,
        "lag_angle": lag.where(initial > 0, axis=0),
        "norm_ratio": wide(VISUAL, "norm_mean") / wide(TEXT, "norm_mean"),
        "update_norm_ratio": wide(VISUAL, "update_norm_mean") / wide(TEXT, "update_norm_mean"),
        "update_angle_visual": wide(VISUAL, "update_angle_mean"),
        "update_angle_text": wide(TEXT, "update_angle_mean"),
        **{name: wide(PAIR, name) for name in PAIR_METRICS[1:]},
    }


def _balanced_retention(visual: pd.DataFrame, text: pd.DataFrame) -> pd.DataFrame:
    """Retention if both modalities turned by the geometric mean of their tangents (Lemma 1).

    With t = tan(a) tan(b), both turn by atan(sqrt(t)), and cos(atan(sqrt(t)))^2 = 1 / (1 + t).
    NaN where a mean cosine is not positive: the tangent has no such angle. 1 at layer 0.
    """
    tangents = [(1 - c.clip(upper=1.0) ** 2) ** 0.5 / c.where(c > 0) for c in (visual, text)]
    balanced = 1 / (1 + tangents[0] * tangents[1])
    balanced[0] = 1.0
    return balanced
