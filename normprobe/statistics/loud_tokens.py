"""Tokens and dimensions that stand out: massive activations, sinks, high norms, the loudest."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from normprobe.schema import NO_ID, SINK_RATIO
from normprobe.statistics.token_metrics import token_norms, widened

#: How many of the largest dimensions are counted together.
FEW = 10

#: Classes of visual tokens: the loudest of a sample behind the tower, by their share of all.
LOUDEST = {"loudest_1": 0.01, "loudest_2": 0.02, "loudest_5": 0.05}
#: The same in words: ``loudest 5 %``.
LOUDEST_CALLED = {name: f"loudest {100 * share:.0f} %" for name, share in LOUDEST.items()}
#: The quiet tokens beside those of the largest class.
QUIET = "quiet"

#: What ``peaks`` says of a token.
PEAK_METRICS = ("top1_share", "top10_share", "peak", "peak_to_token_median", "peak_dimension")


def peaks(states: Tensor) -> Tensor:
    """How far the largest dimensions of each token stand out.

    - top1_share, top10_share: share of ||h||^2 in the largest dimension, and in the ten largest
    - peak, peak_dimension: the largest magnitude, and in which dimension
    - peak_to_token_median: the largest over the median magnitude of the token's own dimensions

    Args:
        states: ``[batch, seq, hidden]``.

    Returns:
        ``[5, batch, seq]`` in the order of ``PEAK_METRICS``. The shares of a zero state are NaN.
    """
    magnitudes = widened(states).abs()
    largest, dimensions = magnitudes.topk(min(FEW, states.shape[-1]), dim=-1)
    shares = (largest / token_norms(states).unsqueeze(-1)).square()
    peak, width = largest[..., 0], states.shape[-1]
    # The two in the middle, one of an odd number; `Tensor.median` is the lower of them.
    lower, upper = (
        magnitudes.kthvalue(place, dim=-1).values for place in ((width + 1) // 2, width // 2 + 1)
    )
    median = (lower + upper) / 2
    where = dimensions[..., 0].to(peak)
    return torch.stack([shares[..., 0], shares.sum(-1), peak, peak / median, where])


def sequence_scales(states: Tensor, counted: Tensor) -> Tensor:
    """How large the states of whole sequences are: ``[batch, 2]``.

    The median magnitude over all dimensions of all tokens, as the code of Sun et al. (2024) takes
    it: of an even number the smaller of the two in the middle. And the root of the sum of ||h||^2.

    Args:
        states: ``[batch, seq, hidden]``; tokens that are not finite are left out.
        counted: ``[batch, seq]`` bool, False for padding.
    """
    norms = token_norms(states)
    kept = counted & torch.isfinite(norms)
    magnitudes = torch.where(kept.unsqueeze(-1), widened(states).abs(), torch.nan)
    norms = torch.where(kept, norms, 0.0)
    loudest = norms.amax(-1, keepdim=True).clamp(min=torch.finfo(norms.dtype).tiny)
    whole = (norms / loudest).square().sum(-1, keepdim=True).sqrt() * loudest  # without overflow
    return torch.cat([_median(magnitudes.flatten(1)), whole], dim=-1)


def _median(rows: Tensor) -> Tensor:
    """Of each row, ``[batch, 1]``; NaN is left out, of an even number it is the smaller one."""
    if rows.device.type == "cpu":
        return rows.nanmedian(-1, keepdim=True).values
    return _median_by_sorting(rows)


def _median_by_sorting(rows: Tensor) -> Tensor:
    """The same, 70 times as fast on a GPU: there one block selects from a row, and all sort it."""
    held = rows.isnan().logical_not().sum(-1, keepdim=True)
    ascending = rows.sort(-1).values  # NaN last
    return ascending.gather(-1, ((held - 1) // 2).clamp_min(0))


def sinks(states: Tensor, counted: Tensor) -> Tensor:
    """Which tokens are attention sinks by their dimensions (Kang et al., 2025).

    A token is a sink where |h_d| / rms(h) is at least ``SINK_RATIO`` in a sink dimension d. The
    paper lists the sink dimensions of its models: those in which the first token of a sequence is
    that large. Here they are looked up in the first token of each sequence, at the same layer.

    |h_d| / rms(h) is at most sqrt(hidden): below a hidden size of 400 nothing is a sink.

    Args:
        states: ``[batch, seq, hidden]``.
        counted: ``[batch, seq]`` bool, False for padding.

    Returns:
        ``[batch, seq]``, 1 for a sink, else 0.
    """
    width = states.shape[-1]
    # So many dimensions can be that large at once, for the squares of |h_d| / rms(h) add up to it.
    most = int(width / SINK_RATIO**2)
    norms = token_norms(states)
    if most == 0:
        return torch.zeros_like(norms)
    relative = width**0.5 / norms
    first = counted.int().argmax(-1)
    sample = torch.arange(len(states), device=states.device)
    largest, dimensions = widened(states[sample, first]).abs().topk(most, dim=-1)
    is_sink_dimension = largest * relative[sample, first].unsqueeze(-1) >= SINK_RATIO
    places = dimensions.unsqueeze(1).expand(-1, states.shape[1], -1)
    there = widened(states.gather(-1, places)).abs() * relative.unsqueeze(-1)
    found: Tensor = (there >= SINK_RATIO) & is_sink_dimension.unsqueeze(1)
    return found.any(-1).float()


def dimension_shares(states: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """In which dimensions a group of tokens is large.

    The share of a dimension is the sum of h_d^2 over the group's tokens, over their sum of ||h||^2:
    loud tokens have the say that they have in the residual stream. Tokens that are not finite are
    left out.

    Args:
        states: ``[batch, seq, hidden]``.
        masks: ``[batch, groups, seq]`` bool.

    Returns:
        The ``FEW`` dimensions with the largest shares, and their shares, each
        ``[batch, groups, FEW]`` in descending order; NaN shares where all tokens are zero, or
        there are none.
    """
    norms = token_norms(states)
    pointing = torch.isfinite(norms) & (norms > 0)
    kept = torch.where(masks & pointing.unsqueeze(1), norms.unsqueeze(1), 0.0)
    energies = (kept / kept.amax(-1, keepdim=True)).square()  # of the loudest token: no overflow
    weights = energies / energies.sum(-1, keepdim=True)
    units = torch.where(pointing.unsqueeze(-1), widened(states) / norms.unsqueeze(-1), 0.0)
    shares, dimensions = (weights @ units.square()).topk(min(FEW, states.shape[-1]), dim=-1)
    return dimensions, shares


def loudest_token(
    norms: NDArray[np.floating[Any]], positions: NDArray[Any], ids: NDArray[Any] | None
) -> dict[str, list[float]]:
    """Columns of sample rows about the loudest token of a group, one entry a layer.

    Args:
        norms: ``[layers, tokens]``; those that are not finite have no say.
        positions: ``[tokens]`` in the prompt.
        ids: ``[tokens]``; None: tokens have none.

    Returns:
        ``loudest_share`` of the sum of norms, ``loudest_position`` and ``loudest_id``.
    """
    held = np.where(np.isfinite(norms), norms, 0.0).astype(np.float64)
    places = held.argmax(axis=1)
    with np.errstate(invalid="ignore"):  # nothing but zeros
        share = held.max(axis=1) / held.sum(axis=1)
    named = np.full(held.shape[1], np.nan) if ids is None else ids
    if (named == NO_ID).any():
        named = np.where(named == NO_ID, np.nan, named)
    return {
        "loudest_share": share.tolist(),
        "loudest_position": positions[places].tolist(),
        "loudest_id": named[places].tolist(),
    }


def loudest_tokens(
    rows: pd.DataFrame, by: list[str], token_text: Callable[[int], str] | None
) -> pd.DataFrame:
    """Which token is the loudest of its group, in most samples.

    Args:
        rows: sample rows with the columns of ``loudest_token``.
        by: the columns that name a cell.
        token_text: a token id as text; None: tokens have no text.

    Returns:
        A row a cell that has such a token: ``by``, ``token``, ``position``, and in how many
        ``samples`` it is the loudest.
    """
    which = ["loudest_id", "loudest_position"]
    counts = rows[rows["loudest_position"].notna()].groupby([*by, *which], dropna=False).size()
    most = counts.rename("samples").reset_index()
    most = most.sort_values("samples", ascending=False, kind="stable")
    first = rows[by].drop_duplicates()
    table = first.merge(most.drop_duplicates(by), on=by)
    ids = table.pop("loudest_id")
    text = [
        np.nan if pd.isna(token) or token_text is None else token_text(int(token)) for token in ids
    ]
    table.insert(len(by), "token", pd.Series(text, dtype=object))
    return table.rename(columns={"loudest_position": "position"}).astype({"position": int})


def loud_classes(norms: NDArray[np.float64]) -> dict[str, NDArray[np.int_]]:
    """The loudest of some tokens, by class; at least one each, so in a small picture the same."""
    order = np.argsort(-norms, kind="stable")
    return {
        name: np.sort(order[: max(1, round(share * len(norms)))]) for name, share in LOUDEST.items()
    }


def twins_of(
    chosen: NDArray[np.int_], norms: NDArray[np.float64], images: NDArray[np.int_] | None
) -> list[NDArray[np.int_]]:
    """For each chosen token the nearest quiet ones of its picture, before it and behind it.

    Quiet: not above the median behind the tower. What a place gets by itself, such as the last
    rows of a picture, both have.
    """
    quiet = np.flatnonzero(norms <= np.median(norms))
    found = []
    for token in chosen:
        mine = quiet if images is None else quiet[images[quiet] == images[token]]
        mine = mine[mine != token]
        place = np.searchsorted(mine, token)
        found.append(mine[max(place - 1, 0) : place + 1])
    return found


def loudness_classes(
    norms: NDArray[np.float64], images: NDArray[np.int_] | None
) -> dict[str, NDArray[np.int_]]:
    """The tokens of each class, of ``LOUDEST`` and ``QUIET``."""
    found = loud_classes(norms)
    *_, largest = found.values()
    return {**found, QUIET: np.unique(np.concatenate(twins_of(largest, norms, images)))}
