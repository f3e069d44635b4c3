"""What attention and the MLP of each decoder layer write, each by itself: ``--also branches``.

A branch adds a to a state x. ``update_norm`` is ||a||, ``relative_update`` ||a|| / ||x||, and
``angle`` that between x and x + a: by how much this branch alone turns the state (Eq. 8). Blocks in
parallel turn the same x. ``model.find.layer_branches`` tells the branches apart.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from normprobe.errors import NormprobeError
from normprobe.measurements.layers.measure import observe
from normprobe.model.find.layer_branches import LayerBranches
from normprobe.model.measured_model import MeasuredModel
from normprobe.report.layer_words import layer_names
from normprobe.schema import BRANCH_METRICS, BRANCHES, TOKEN_METRICS
from normprobe.statistics.token_metrics import token_metrics, widened

_METRICS = [TOKEN_METRICS.index(metric) for metric in BRANCH_METRICS]
_MISFIT = "what its modules return does not add up to its update"
#: Norm placements whose layers do not split.
_UNSPLIT = {
    "post": "norms stand on the residual itself (post-norm)",
    "multi-stream": "the residual is several streams",
}


class BranchWatcher:
    """Measures the branches of each layer that splits."""

    metrics = tuple(f"{name}_{metric}" for name in BRANCHES for metric in BRANCH_METRICS)

    def __init__(self, unsplit: str = "") -> None:
        self._none = unsplit
        self.unsplit: dict[int, str] = {}
        self.fits: dict[int, Tensor] = {}
        self._layer = LayerBranches()

    def watching(self, layers: Sequence[nn.Module]) -> AbstractContextManager[object]:
        """As a ``Watcher``."""
        return self._layer.following(layers)

    def see(self, number: int, x: Tensor, h: Tensor) -> Tensor:
        """As a ``Watcher``; NaN where a layer has no such branch."""
        numbers = h.new_full((len(self.metrics), *h.shape[:2]), torch.nan, dtype=widened(h).dtype)
        if number == 0:
            return numbers
        split = self._layer.take()
        if self._none or split.fits is None:
            self.unsplit[number] = self._none or split.reason
            return numbers
        for branch in split.branches:
            state, *terms = (widened(t).reshape(h.shape) for t in (branch.state, *branch.terms))
            moved = token_metrics(state, state + sum(terms))
            place = self.metrics.index(f"{branch.name}_{BRANCH_METRICS[0]}")
            numbers[place : place + len(_METRICS)] = moved.metrics[_METRICS]
        self.fits[number] = split.fits
        return torch.where(split.fits, numbers, torch.nan)


def watcher(model: MeasuredModel) -> BranchWatcher:
    """A watcher for one forward."""
    placement = model.norm_placement.partition(":")[0]
    return BranchWatcher(_UNSPLIT.get(placement, ""))


def remark(model: MeasuredModel, inputs: Mapping[str, Any]) -> str:
    """Which layers have no numbers, and why; empty: all have."""
    seen = watcher(model)
    observe(model, inputs, [seen])
    fits = {number: bool(fits) for number, fits in seen.fits.items()}
    misfits = dict.fromkeys((number for number in fits if not fits[number]), _MISFIT)
    reasons = sorted((seen.unsplit | misfits).items(), key=lambda item: (item[1], item[0]))
    told = "; ".join(
        f"{layer_names([number for number, _ in items])}: {reason}"
        for reason, items in groupby(reasons, key=lambda item: item[1])
    )
    if any(fits.values()):
        return f"no branches of {told}" if told else ""
    raise NormprobeError(
        f"attention and MLP of {model} cannot be told apart: {told}", "leave branches out of --also"
    )
