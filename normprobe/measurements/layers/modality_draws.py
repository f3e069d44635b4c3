"""Numbers of the visual and the text tokens of each layer, drawn again and again by image."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normprobe.schema import TEXT, VISUAL
from normprobe.statistics.resampling import Resampled
from normprobe.statistics.sample_statistics import LOG_TOKENS, product_of

MODALITIES = (VISUAL, TEXT)

Drawn = NDArray[np.float64]  # [draws, layers, modalities]; the first draw is the estimate


class ModalityDraws:
    """The sample rows of both modalities, drawn again by image; every result is a ``Drawn``."""

    def __init__(self, rows: pd.DataFrame, layers: list[int]) -> None:
        by = ["layer", "group"]
        cells = pd.MultiIndex.from_product([layers, MODALITIES], names=by).to_frame(index=False)
        self._resampled = Resampled(cells, rows, by)
        self._layers = len(layers)

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

    def _shaped(self, drawn: NDArray[np.float64]) -> Drawn:
        return drawn.reshape(len(drawn), self._layers, len(MODALITIES))


def eq_13(norm: Drawn, update: Drawn, update_angle: Drawn) -> Drawn:
    """The angle by which Eq. 13 turns a token, radians."""
    along = norm + update * np.cos(update_angle)
    angle: Drawn = np.arctan2(update * np.sin(update_angle), along)
    return angle
