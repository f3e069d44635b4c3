"""Sample rows to branches.csv: what attention and the MLP of each layer write, each by itself."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from math import nan
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich.console import Console
from rich.text import Text
from torch import Tensor, nn

from normprobe.errors import NormprobeError
from normprobe.measurements.layers.measure import observe
from normprobe.model.find.layer_branches import LayerBranches
from normprobe.model.measured_model import MeasuredModel
from normprobe.report.ratio_words import FAST, Ratio, Words, ratios_by_layer
from normprobe.report.readable import significant
from normprobe.report.sentences import layer_names, layers_in_words
from normprobe.report.terminal import (
    ALIGNED,
    GROUP_STYLES,
    add_column,
    new_table,
    print_notes,
    print_sentence,
    print_table,
    selected_layers,
)
from normprobe.schema import (
    BRANCH_METRICS,
    BRANCHES,
    IMAGE,
    NON_VISUAL,
    PAIR,
    TEXT,
    TOKEN_GROUPS,
    TOKEN_METRICS,
    VISUAL,
)
from normprobe.statistics.resampling import Resampled, Together, with_intervals
from normprobe.statistics.sample_statistics import merge
from normprobe.statistics.token_metrics import token_metrics, widened

_BY = ["layer", "branch", "group"]

#: Of which metrics the table holds a group's mean over that of text tokens.
RATIO_METRICS = ("update_norm", "angle")


def branches_table(rows: pd.DataFrame) -> pd.DataFrame:
    """What each branch of each layer adds."""
    held = _by_branch(rows[~rows["group"].isin([PAIR, IMAGE])])
    if held.empty:
        return pd.DataFrame()
    table = merge(held, _BY, BRANCH_METRICS).drop(columns="nonfinite")
    order = {name: place for place, name in enumerate((*BRANCHES, *TOKEN_GROUPS, NON_VISUAL))}
    table = table.sort_values(_BY, key=lambda c: c if c.name == "layer" else c.map(order))
    table = table.reset_index(drop=True)
    resampled = Resampled(table, held, _BY)
    draws = {}
    for metric in BRANCH_METRICS:
        draws[f"{metric}_mean"] = resampled.means(f"{metric}_mean", by_tokens=True)
        draws[f"{metric}_sample_mean"] = resampled.means(f"{metric}_mean", by_tokens=False)
        if metric in RATIO_METRICS:
            draws[f"{metric}_geometric_mean"] = resampled.geometric_means(metric)
    cells = pd.MultiIndex.from_frame(table[_BY])
    beside = cells.get_indexer(pd.MultiIndex.from_frame(table[_BY].assign(group=TEXT)))
    for metric in RATIO_METRICS:
        for kind in ("", "geometric_"):
            column, means = f"{metric}_{kind}ratio_to_text", draws[f"{metric}_{kind}mean"]
            with np.errstate(divide="ignore", invalid="ignore"):  # a branch that adds nothing
                draws[column] = np.where(beside >= 0, means / means[:, beside], np.nan)
            table[column] = draws[column][0]
    together = [
        Together(
            [f"{metric}_geometric_ratio_to_text"],
            (table["group"] == VISUAL) & (table["branch"] == branch),
        )
        for metric in RATIO_METRICS
        for branch in BRANCHES
    ]
    return with_intervals(table, draws, resampled.units, resampled.held, together)


def _by_branch(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of each branch below each other, its columns named by the metric alone."""
    common = ["sample_id", "image_hash", "layer", "group", "tokens", "nonfinite"]
    parts = []
    for branch in BRANCHES:
        names = {
            f"{branch}_{metric}_{part}": f"{metric}_{part}"
            for metric in BRANCH_METRICS
            for part in ("mean", "m2", "tokens", "log_mean", "log_tokens")
            if f"{branch}_{metric}_{part}" in rows
        }
        if names:
            held = rows.dropna(subset=[f"{branch}_{BRANCH_METRICS[0]}_mean"])
            parts.append(held[[*common, *names]].rename(columns=names).assign(branch=branch))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


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
            numbers[place : place + len(_OF_TOKENS)] = moved.metrics[_OF_TOKENS]
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
        f"attention and MLP of {model} cannot be told apart: {told}", "leave --branches out"
    )


BRANCH_WORDS = dict(zip(BRANCHES, ("attention", "cross-attention", "MLP"), strict=True))
_LARGE = Words("larger", "smaller", "about as large")


def branches_verdict(branches: pd.DataFrame) -> str:
    """What each branch adds to visual tokens, and how fast it turns them, against text tokens."""
    sentences: list[str] = []
    for branch, name in BRANCH_WORDS.items():
        rows = branches[(branches["branch"] == branch) & (branches["group"] == VISUAL)]
        size = layers_in_words(_ratios(rows, "update_norm"), _LARGE)
        turn = layers_in_words(_ratios(rows, "angle"), FAST)
        if size and turn:
            sentences.append(
                f"{'What' if sentences else 'Against text tokens, what'} the {name} adds to "
                f"visual tokens is {size}, and it turns them {turn}."
            )
    return " ".join(sentences)


def _ratios(rows: pd.DataFrame, metric: str) -> dict[int, Ratio]:
    return ratios_by_layer(rows, f"{metric}_geometric_ratio_to_text")


#: Metric and its header; of more than two branches the first alone fits.
_SHOWN = {"angle": "angle", "relative_update": "rel.update"}


def print_branches(branches: pd.DataFrame, console: Console, *, aligned: bool = False) -> None:
    """Print each branch's angle and relative update: visual beside text, layer by layer."""
    present = [name for name in BRANCH_WORDS if (branches["branch"] == name).any()]
    groups = [group for group in (VISUAL, TEXT) if (branches["group"] == group).any()]
    metrics = list(_SHOWN)[: 2 if len(present) < 3 else 1]
    cells = branches.set_index(["layer", "branch", "group"])
    means = {metric: cells[f"{metric}_mean"].to_dict() for metric in metrics}
    shown = [(name, metric, group) for name in present for metric in metrics for group in groups]

    table = new_table("Branches" + ALIGNED * aligned)
    add_column(table, "\n\nlayer")
    for name, metric, group in shown:
        first = group == groups[0]
        words = BRANCH_WORDS[name] if first and metric == metrics[0] else ""
        title = Text(f"{words}\n{_SHOWN[metric] if first else ''}\n")
        title.append(group, style=GROUP_STYLES[group])
        add_column(table, title)
    numbers = sorted(int(layer) for layer in branches["layer"].unique())
    for layer in selected_layers(numbers):
        texts = [Text(str(layer))]
        for name, metric, group in shown:
            key = (layer, name, group)
            text = significant(means[metric].get(key, nan))
            texts.append(Text(text, style=GROUP_STYLES[group]))
        table.add_row(*texts)
    print_table(table, console)
    print_notes(
        console,
        "Each branch by itself: radians by which it turns the state that it is added to,",
        "and its relative update |a| / |x|. branches.csv has all.",
    )
    print_sentence(branches_verdict(branches), console)
