"""Massive activations: a few dimensions, and a few tokens, that hold most of what is large."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normprobe.measurements.layers.massive.without import SUFFIX, WITHOUT
from normprobe.model.measured_model import MeasuredModel
from normprobe.schema import TOKEN_METRICS
from normprobe.statistics.loud_tokens import (
    HIGH_NORM,
    PEAK_METRICS,
    STILL_COSINE,
    dimension_shares,
    peaks,
    sinks,
)
from normprobe.statistics.sample_statistics import finite_tokens, statistics_by_layer


class MassiveActivations:
    """Which tokens and dimensions of each layer are massive, and what is left without them."""

    metrics = PEAK_METRICS

    def watching(self, layers: Sequence[nn.Module]) -> AbstractContextManager[object]:
        """It needs no hooks of its own."""
        return nullcontext()

    def see(self, number: int, x: Tensor, h: Tensor) -> Tensor:
        """``peaks`` of what left the layer."""
        return peaks(h)

    def see_groups(self, number: int, h: Tensor, masks: Tensor) -> Tensor:
        """How many sinks a group has, its largest dimensions, and their shares."""
        dimensions, shares = dimension_shares(h, masks)
        count = (masks * sinks(h, masks.any(1)).unsqueeze(1)).sum(-1, keepdim=True)
        return torch.cat([count, dimensions.float(), shares], dim=-1)

    def columns(
        self, tokens: Mapping[str, NDArray[np.float32]], group: NDArray[np.float32]
    ) -> Mapping[str, Sequence[Any]]:
        """Shares of the kinds of tokens, the largest dimensions, and ``WITHOUT``.

        A token that is massive after any layer is left out of ``WITHOUT`` in all of them: the
        layers are told of the same tokens.
        """
        counted = _counted(tokens)
        of_sinks, dimensions, shares = np.split(group, [1, 1 + (group.shape[1] - 1) // 2], axis=1)
        norms = np.where(counted, tokens["norm"], np.nan)
        still = tokens["cosine"] >= STILL_COSINE
        still[0] = True  # no layer has been there yet
        still = np.logical_and.accumulate(still, axis=0) & counted
        with np.errstate(divide="ignore", invalid="ignore"):  # no token, no share
            number = counted.sum(axis=1)
            high = (norms >= HIGH_NORM * _median(norms)).sum(axis=1) / number
            columns: dict[str, Any] = {
                "sink_mean": (of_sinks[:, 0] / number).tolist(),
                "high_norm_mean": high.tolist(),
                "still_mean": (still.sum(axis=1) / number).tolist(),
            }
        for name in ("peak", "peak_to_median"):
            values = np.where(counted, tokens[name], np.nan)
            columns[f"{name}_max"] = np.fmax.reduce(values, axis=1).tolist()
        columns["dimensions"] = list(dimensions.astype(np.int32))
        columns["dimension_shares"] = list(shares)
        kept = counted & ~(counted & (tokens["massive"] > 0)).any(axis=0)
        number_kept = kept.sum(axis=1).tolist()
        for name in WITHOUT:
            values = np.where(kept, tokens[name], np.nan)[:, None]
            found = statistics_by_layer(values, (name + SUFFIX,))
            columns |= {part: found[part] for part in found if part.startswith(name)}
            if columns.get(f"{name}{SUFFIX}_tokens") == number_kept:
                del columns[f"{name}{SUFFIX}_tokens"]
        columns["tokens" + SUFFIX] = number_kept
        return columns


def watcher(model: MeasuredModel) -> MassiveActivations:
    """What looks at one forward; every model has such states."""
    del model
    return MassiveActivations()


def _counted(tokens: Mapping[str, NDArray[np.float32]]) -> NDArray[np.bool_]:
    """``[layers, tokens]``: which tokens the means of layers.csv are over."""
    measured = np.stack([tokens[name] for name in TOKEN_METRICS], axis=1)
    measured[0, 1:] = 0.0  # layer 0 has norms alone
    return finite_tokens(measured, TOKEN_METRICS)


def _median(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """``[layers, 1]``; NaN, without a warning, where a layer has no number."""
    ordered = np.sort(values, axis=1)  # NaN last
    count = np.isfinite(values).sum(axis=1, keepdims=True)
    middle = np.hstack([np.maximum(count - 1, 0) // 2, count // 2])  # the same of an odd number
    middle = np.minimum(middle, values.shape[1] - 1)
    median: NDArray[np.float32] = np.take_along_axis(ordered, middle, axis=1).mean(1, keepdims=True)
    return median
