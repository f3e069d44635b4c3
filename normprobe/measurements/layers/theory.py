"""The paper's theory beside the measurement, layer by layer (Section 3, Appendix B)."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normprobe.measurements.layers.assumptions import CRITERIA
from normprobe.schema import MODALITIES, PAIR, PAIR_METRICS, TEXT, VISUAL
from normprobe.statistics.bootstrap import Held
from normprobe.statistics.resampling import Resampled, Together, add_intervals
from normprobe.statistics.sample_statistics import LOG_TOKENS, LOGARITHMS, product_of
from normprobe.tidy import BAND, INTERVAL, QUANTITY, Numbers, declared, in_order, tidy

Drawn = NDArray[np.float64]  # [draws, layers, modalities]; the first draw is the estimate


class ModalityDraws:
    """The sample rows of both modalities, drawn again by image; every result is a ``Drawn``."""

    def __init__(self, rows: pd.DataFrame, layers: list[int]) -> None:
        by = ["layer", "group"]
        cells = pd.MultiIndex.from_product([layers, MODALITIES], names=by).to_frame(index=False)
        self._resampled = Resampled(cells, rows, by)
        self._layers = len(layers)
        self.held: NDArray[np.bool_] = self._shaped(self._resampled.held)  # [units, ...]

    @property
    def units(self) -> int:
        """How many images are drawn from."""
        return self._resampled.units

    def mean(self, metric: str) -> Drawn:
        """Over tokens."""
        return self._shaped(self._resampled.means(f"{metric}_mean", by_tokens=True))

    def geometric_mean(self, metric: str) -> Drawn:
        """Over tokens."""
        return self._shaped(self._resampled.geometric_means(metric))

    def variance(self, metric: str) -> Drawn:
        """Over tokens."""
        names = f"{metric}_mean", f"{metric}_mean", f"{metric}_m2"
        return self._shaped(self._resampled.covariance(*names)).clip(min=0.0)

    def log_mean(self, logarithm: str) -> Drawn:
        """Of one of ``co_moments.LOGARITHMS``, over tokens."""
        means = self._resampled.means(f"{logarithm}_mean", by_tokens=True, tokens=LOG_TOKENS)
        return self._shaped(means)

    def log_covariance(self, first: str, second: str) -> Drawn:
        """Of two of ``co_moments.LOGARITHMS``, over tokens."""
        names = f"{first}_mean", f"{second}_mean", product_of(first, second)
        covariance = self._shaped(self._resampled.covariance(*names, tokens=LOG_TOKENS))
        return covariance.clip(min=0.0) if first == second else covariance

    def _shaped(self, drawn: NDArray[Any]) -> NDArray[Any]:
        return drawn.reshape(len(drawn), self._layers, len(MODALITIES))


def eq_13(norm: Drawn, update: Drawn, update_angle: Drawn) -> Drawn:
    """The angle by which Eq. 13 turns a token, radians."""
    along = norm + update * np.cos(update_angle)
    angle: Drawn = np.arctan2(update * np.sin(update_angle), along)
    return angle


#: From which deviation of log ||x|| on tokens differ in norm. Equal norms, as an alignment makes
#: them, differ by 3e-4 once the states are rounded to bfloat16 (64 dimensions; less in more).
SAME_NORM = 1e-3
#: How far two cosines, or angles of 0 to pi, can lie apart: bands of few images reach beyond.
_MOST = {"cosine_residual": 2.0, "update_angle_difference": np.pi}
#: Whose numbers stand in the rows of a layer, in their order.
_GROUPS = (PAIR, *MODALITIES)


def theory_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Predicted against measured cross-modal cosine, and the numbers of each assumption."""
    rows = rows[rows["sample_id"].isin(rows.loc[rows["group"] == PAIR, "sample_id"])]
    if rows.empty:
        return pd.DataFrame(columns=["layer", "group", QUANTITY, "samples"])
    by_sample = _by_sample(rows)
    layers = by_sample["cross_modal_cosine"].columns
    cells = pd.DataFrame([(layer, group) for group in _GROUPS for layer in layers])
    cells = cells.set_axis(["layer", "group"], axis=1)
    cells["samples"] = len(by_sample["cross_modal_cosine"])
    of_pairs = rows[rows["group"].isin(MODALITIES)]
    nonfinite = of_pairs.groupby("layer")["nonfinite"].sum()
    facts = {
        "hidden_size": [rows["hidden_size"].iloc[0]] * len(layers),
        "nonfinite": nonfinite.reindex(layers, fill_value=0),
    }

    long = pd.DataFrame({name: wide.stack(future_stack=True) for name, wide in by_sample.items()})
    hashes = rows.groupby("sample_id")["image_hash"].first()
    long = long.reset_index().assign(image_hash=lambda made: made["sample_id"].map(hashes))
    samples = Resampled(pd.DataFrame({"layer": layers}), long, ["layer"])
    draws = {name: samples.means(name, by_tokens=False)[..., None] for name in by_sample}
    held = {name: samples.holding(name)[..., None] for name in by_sample}
    of_tokens, in_some_samples = _of_tokens(rows, [*map(int, layers)])
    draws, held = draws | of_tokens, held | in_some_samples

    numbers: Numbers = {
        name: {"mean": _in_cells(np.array(of, dtype=float)[:, None], np.nan)}
        for name, of in facts.items()
    }
    drawn = {(name, "mean"): _in_cells(draws[name], np.nan) for name in draws}
    numbers |= {name: {"mean": of_cells[0]} for (name, _), of_cells in drawn.items()}
    for name, of_samples in by_sample.items():
        numbers[name]["std"] = _in_cells(of_samples.std(ddof=0).to_numpy()[None, :, None], np.nan)[
            0
        ]
    lagging = by_sample["lag_angle"].notna().sum().to_numpy()
    numbers["lag_angle"]["samples"] = np.tile(lagging, len(_GROUPS))
    judged = Together(list(dict.fromkeys(criterion.quantity for criterion in CRITERIA)))
    held_in = {(name, "mean"): _in_cells(of_units, False) for name, of_units in held.items()}
    table = declared(__package__)["theory"]
    add_intervals(numbers, drawn, samples.units, held_in, [judged], table=table)
    for name, most in _MOST.items():
        for end in (*INTERVAL, *BAND):
            numbers[name][end] = np.clip(numbers[name][end], -most, most)
    return in_order(tidy(cells, numbers), group=_GROUPS)


def _in_cells(values: NDArray[Any], empty: object) -> NDArray[Any]:
    """``[..., layers, 1]`` of pairs, or 2 of modalities, as ``[..., cells]``, group by group."""
    of_pairs = values.shape[-1] == 1
    nothing = np.full_like(values[..., :1], empty)
    parts = [values, nothing, nothing] if of_pairs else [nothing, values]
    return np.concatenate(parts, axis=-1).swapaxes(-1, -2).reshape(*values.shape[:-2], -1)


# --- over samples -------------------------------------------------------------------------------


def _by_sample(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Each quantity of pairs as ``[samples, layers]``."""

    def wide(group: str, column: str) -> pd.DataFrame:
        of_group = rows[rows["group"] == group]
        return of_group.pivot(index="sample_id", columns="layer", values=column)

    measured = wide(PAIR, "cross_modal_cosine")
    initial = measured[0]
    cosines = wide(VISUAL, "cosine_mean"), wide(TEXT, "cosine_mean")
    retention = cosines[0] * cosines[1]
    # What is added between two layers changes the cosine that the later one starts from.
    injected = wide(PAIR, "injected").astype(bool)
    predicted = (retention * measured.shift(axis=1)).where(~injected)
    # Layer 0 turns nothing.
    compounded = retention.fillna(1.0).cumprod(axis=1).mul(initial, axis=0)
    compounded = compounded.where(~injected.cummax(axis=1))
    balanced = _balanced_retention(*cosines).cumprod(axis=1, skipna=False).mul(initial, axis=0)
    lag = compounded.apply(np.arccos) - balanced.apply(np.arccos)
    return {
        "cross_modal_cosine": measured,
        "retention": retention,
        "predicted_cross_modal_cosine": predicted,
        "cosine_residual": measured - predicted,
        "compounded_cross_modal_cosine": compounded,
        "lag_angle": lag.where(initial > 0, axis=0),
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


# --- over tokens --------------------------------------------------------------------------------


def _of_tokens(rows: pd.DataFrame, layers: list[int]) -> tuple[dict[str, Drawn], dict[str, Held]]:
    """Each quantity of tokens, ``[..., modalities]`` or, of both together, 1; and who holds it."""
    drawn = ModalityDraws(rows, layers)
    norm = drawn.geometric_mean("norm")
    update, update_angle = map(drawn.mean, ("update_norm", "update_angle"))
    log_norm, log_update, log_angle = map(drawn.log_mean, LOGARITHMS)
    norms, updates, angles = (drawn.log_covariance(name, name) for name in LOGARITHMS)
    log_norm_std = np.sqrt(norms)
    norms = np.where(log_norm_std >= SAME_NORM, norms, np.nan)  # a slope on rounding is none
    norm_angle = drawn.log_covariance("log_norm", "log_angle")
    with np.errstate(divide="ignore", invalid="ignore"):
        predicted, slope = _eq_13_with_slope(
            np.exp(log_norm),
            np.exp(log_update.mean(axis=-1, keepdims=True)),
            update_angle.mean(axis=-1, keepdims=True),
        )
        measured_ratio = np.exp(log_angle[..., 1] - log_angle[..., 0])
        predicted_ratio = predicted[..., 1] / predicted[..., 0]
        each = {
            "update_norm_cv": np.sqrt(drawn.variance("update_norm")) / update,
            "update_norm_correlation": drawn.log_covariance("log_norm", "log_update")
            / np.sqrt(norms * updates),
            "update_angle": update_angle,
            "update_angle_std": np.sqrt(drawn.variance("update_angle")),
            "norm_angle_correlation": norm_angle / np.sqrt(norms * angles),
            "norm_angle_slope": norm_angle / norms,
            "predicted_norm_angle_slope": slope,
            "log_norm_std": log_norm_std,
        }
        of_both = {
            "norm_ratio": norm[..., 0] / norm[..., 1],
            "update_norm_ratio": np.exp(log_update[..., 0] - log_update[..., 1]),
            "update_angle_difference": update_angle[..., 0] - update_angle[..., 1],
            "angle_ratio": measured_ratio,
            "predicted_angle_ratio": predicted_ratio,
            "angle_ratio_error": measured_ratio / predicted_ratio,
        }
    both: Held = np.all(drawn.held, axis=-1, keepdims=True)
    held = dict.fromkeys(of_both, both) | dict.fromkeys(each, drawn.held)
    known = {name: np.where(np.isfinite(values), values, np.nan) for name, values in each.items()}
    return {name: values[..., None] for name, values in of_both.items()} | known, held


def _eq_13_with_slope(norm: Drawn, update: Drawn, update_angle: Drawn) -> tuple[Drawn, Drawn]:
    """The angle of Eq. 13, and the slope of its logarithm on that of the norm.

    The slope is near -1 for a token much longer than its update, near 0 for one much shorter.
    """
    across, along = update * np.sin(update_angle), norm + update * np.cos(update_angle)
    angle = eq_13(norm, update, update_angle)
    return angle, -norm * across / (along**2 + across**2) / angle
