"""What looks further at the decoder layers, where an option asks for it."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normprobe.measurements.layers.massive import SUFFIX, WITHOUT
from normprobe.model.find.layer_branches import split
from normprobe.model.find.residual import Residual
from normprobe.schema import (
    BRANCH_METRICS,
    BRANCHES,
    HIGH_NORM,
    MASSIVE_MAGNITUDE,
    MASSIVE_RATIO,
    STILL_COSINE,
    TOKEN_METRICS,
)
from normprobe.statistics.loud_tokens import (
    PEAK_METRICS,
    dimension_shares,
    peaks,
    sequence_scales,
    sinks,
)
from normprobe.statistics.sample_statistics import finite_tokens, statistics_by_layer
from normprobe.statistics.token_metrics import token_metrics, widened


class Watcher(Protocol):
    """Looks at each layer beside what ``measure`` reads, where an option asks for it.

    There is one a forward.
    """

    metrics: tuple[str, ...]  # the names of its numbers, each of a token

    def watching(self, layers: Sequence[nn.Module]) -> AbstractContextManager[object]:
        """Its hooks, around the forward."""

    def see(self, number: int, x: Tensor, h: Tensor) -> Tensor:
        """Its numbers of a layer that has ended, ``[metrics, batch, seq]``; NaN where it has none.

        Args:
            number: of the layer; 0: the decoder input, which is both x and h.
            x: ``[batch, seq, hidden]``, what entered the layer.
            h: likewise, what left it.
        """


@runtime_checkable
class GroupWatcher(Watcher, Protocol):
    """A watcher that also looks at token groups, and says more of them than means over tokens."""

    def see_groups(self, number: int, h: Tensor, masks: Tensor) -> Tensor:
        """Its numbers of the token groups of a state, ``[batch, len(POOLED_GROUPS), numbers]``.

        Args:
            number: of the layer, as for ``see``.
            h: ``[batch, seq, hidden]``, what left the layer.
            masks: ``[batch, len(POOLED_GROUPS), seq]`` bool.
        """

    def columns(
        self, tokens: Mapping[str, NDArray[np.float32]], group: NDArray[np.float32]
    ) -> Mapping[str, Sequence[Any]]:
        """More columns for the rows of one group of a sample, one entry a layer from 0 on.

        Args:
            tokens: ``[layers, tokens]`` of the group by metric, its own among them; ``position``
                in the prompt, and ``id``, NaN where a token has none.
            group: ``[layers, numbers]`` of ``see_groups``.
        """


class MassiveActivations:
    """Which tokens and dimensions of each layer are massive, and what is left without them."""

    metrics: tuple[str, ...] = PEAK_METRICS

    def watching(self, layers: Sequence[nn.Module]) -> AbstractContextManager[object]:
        """It needs no hooks of its own."""
        return nullcontext()

    def see(self, number: int, x: Tensor, h: Tensor) -> Tensor:
        """``peaks`` of what left the layer."""
        return peaks(h)

    def see_groups(self, number: int, h: Tensor, masks: Tensor) -> Tensor:
        """How many sinks a group has, how large its sequence is, its largest dimensions."""
        counted = masks.any(1)
        dimensions, shares = dimension_shares(h, masks)
        count = (masks * sinks(h, counted).unsqueeze(1)).sum(-1, keepdim=True)
        scales = sequence_scales(h, counted).unsqueeze(1).expand(-1, masks.shape[1], -1)
        return torch.cat([count, scales, dimensions, shares], dim=-1)

    def columns(
        self, tokens: Mapping[str, NDArray[np.float32]], group: NDArray[np.float32]
    ) -> Mapping[str, Sequence[Any]]:
        """Shares of the kinds of tokens, the largest dimensions, the largest peak, ``WITHOUT``.

        A token that is massive after any layer is left out of ``WITHOUT`` in all of them: the
        layers are told of the same tokens.
        """
        counted = _counted(tokens)
        of_sinks, median, whole = (group[:, [place]] for place in range(3))
        dimensions, shares = np.split(group[:, 3:], 2, axis=1)
        peak = np.where(counted, tokens["peak"], np.nan)
        to_token = np.where(counted, tokens["peak_to_token_median"], np.nan)
        norms = np.where(counted, tokens["norm"], np.nan)
        still = tokens["cosine"] >= STILL_COSINE
        still[0] = True  # no layer has been there yet
        still = np.logical_and.accumulate(still, axis=0) & counted
        with np.errstate(divide="ignore", invalid="ignore"):  # no token, no share
            number = counted.sum(axis=1)
            to_sequence = peak / median
            massive = (peak > MASSIVE_MAGNITUDE) & (to_sequence >= MASSIVE_RATIO)
            by_token = (peak > MASSIVE_MAGNITUDE) & (to_token >= MASSIVE_RATIO)
            high = (norms >= HIGH_NORM * _median(norms)).sum(axis=1) / number
            columns: dict[str, Any] = {
                "massive_mean": (massive.sum(axis=1) / number).tolist(),
                "massive_by_token_median_mean": (by_token.sum(axis=1) / number).tolist(),
                "sink_mean": (of_sinks[:, 0] / number).tolist(),
                "high_norm_mean": high.tolist(),
                "still_mean": (still.sum(axis=1) / number).tolist(),
            }
            share = np.square(norms / whole)
        largest = {"peak": peak, "peak_to_sequence_median": to_sequence}
        for name, values in (largest | {"peak_to_token_median": to_token}).items():
            columns[f"{name}_max"] = np.fmax.reduce(values, axis=1).tolist()
        at_peak = {"position": tokens["position"], "id": tokens["id"], "share": share}
        at_peak |= {"dimension": tokens["peak_dimension"], "to_token_median": to_token}
        place = np.where(counted, tokens["peak"], -1.0).argmax(axis=1)[:, None]
        for name, values in at_peak.items():
            columns[f"at_peak_{name}"] = np.take_along_axis(values, place, axis=1)[:, 0].tolist()
        columns["dimensions"] = list(dimensions.astype(np.int32))
        columns["dimension_shares"] = list(shares)
        kept = counted & ~massive.any(axis=0)
        number_kept = kept.sum(axis=1).tolist()
        for name in WITHOUT:
            values = np.where(kept, tokens[name], np.nan)[:, None]
            found = statistics_by_layer(values, (name + SUFFIX,))
            columns |= {part: found[part] for part in found if part.startswith(name)}
            if columns.get(f"{name}{SUFFIX}_tokens") == number_kept:
                del columns[f"{name}{SUFFIX}_tokens"]
        columns["tokens" + SUFFIX] = number_kept
        return columns


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


_OF_TOKENS = [TOKEN_METRICS.index(metric) for metric in BRANCH_METRICS]


_MISFIT = "what its modules return does not add up to its update"


#: Norm placements whose layers do not split.
_UNSPLIT = {
    "post": "norms stand on the residual itself (post-norm)",
    "multi-stream": "the residual is several streams",
}


class BranchWatcher:
    """Measures the branches of each layer that splits."""

    metrics = tuple(f"{name}_{metric}" for name in BRANCHES for metric in BRANCH_METRICS)

    def __init__(self, norm_placement: str = "") -> None:
        self._none = _UNSPLIT.get(norm_placement, "")
        self.unsplit: dict[int, str] = {}
        self.fits: dict[int, Tensor] = {}
        self._residual = Residual()

    def watching(self, layers: Sequence[nn.Module]) -> AbstractContextManager[object]:
        """As a ``Watcher``."""
        return self._residual.following(layers)

    def see(self, number: int, x: Tensor, h: Tensor) -> Tensor:
        """As a ``Watcher``; NaN where a layer has no such branch."""
        numbers = h.new_full((len(self.metrics), *h.shape[:2]), torch.nan, dtype=widened(h).dtype)
        if number == 0:
            return numbers
        branches, reason, fits = split(self._residual.take())
        if self._none or fits is None:
            self.unsplit[number] = self._none or reason
            return numbers
        for branch in branches:
            state, *terms = (widened(t).reshape(h.shape) for t in (branch.state, *branch.terms))
            metrics = token_metrics(state, state + sum(terms))
            place = self.metrics.index(f"{branch.name}_{BRANCH_METRICS[0]}")
            numbers[place : place + len(_OF_TOKENS)] = metrics[_OF_TOKENS]
        self.fits[number] = fits
        return torch.where(fits, numbers, torch.nan)

    @property
    def without_branches(self) -> dict[int, str]:
        """Which layers have no numbers, and why."""
        misfits = {number: _MISFIT for number, fits in self.fits.items() if not bool(fits)}
        return self.unsplit | misfits
