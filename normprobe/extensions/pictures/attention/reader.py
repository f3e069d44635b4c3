"""Keeps a few numbers a head of each layer's attention while the forward runs."""

import re
from collections import defaultdict
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normprobe.errors import NormprobeError
from normprobe.statistics.attention_rows import visual_attention

#: Attention modules inside a decoder layer whose keys are states of the vision encoder.
_CROSS = re.compile(r"cross|encoder|enc_")


class HeadNumbers(NamedTuple):
    """What one query of one layer gives to visual keys, head by head, in float64 on the CPU."""

    # ``[heads, tokens]``, of a token's attention the part that falls on visual keys
    share: NDArray[np.float64]
    # ``[heads, tokens]``, that part if it spread evenly over all that it may see
    even_share: NDArray[np.float64]
    # ``[heads, tokens]``, of the weights on visual keys, renormalised, over the logarithm of their
    # number. NaN for a token that gives them nothing, or a single key.
    entropy: NDArray[np.float64]
    # ``[heads, visual keys]``, the weights, mean over the query's tokens
    by_key: NDArray[np.float64]
    # how many visual keys some row sees: of empty tiles, which a mask hides from all text, none is
    # counted
    visible: int
    # ``[visual keys]``, before the softmax, mean over heads and tokens; NaN where the model returns
    # its weights itself, or a key cannot be seen
    scores: NDArray[np.float64]


class _Module(NamedTuple):
    """What was seen of one attention module, chunk of rows by chunk of rows."""

    numbers: list[Tensor]  # [numbers, heads, rows]
    by_key: list[Tensor]  # [queries, heads, visual keys], summed over rows
    scores: list[Tensor]  # [queries, visual keys], summed over heads and rows


class Reader:
    """Takes the rows of the asked text tokens, of each attention module of each layer.

    Args:
        visual: ``[keys]`` bool; None: every key of cross-attention is visual.
        members: ``[queries, rows]`` bool: which of the watched rows are a query's.
    """

    def __init__(self, visual: Tensor | None, members: Tensor) -> None:
        self._visual = visual
        self._members = members
        self._modules: dict[int, dict[str, _Module]] = defaultdict(dict)

    @property
    def has_seen(self) -> bool:
        """Whether any layer attends to visual keys in a way that can be watched."""
        return bool(self._modules)

    def see(
        self, layer: int, name: str, start: int, weights: Tensor, scores: Tensor | None
    ) -> None:
        """Take rows ``[heads, rows, keys]``, the first of which has the number ``start``."""
        _, rows, keys = weights.shape
        if self._visual is None:
            if not _CROSS.search(name):
                return  # text attends to itself
            visual = weights.new_ones(keys, dtype=torch.bool)
        else:
            visual = self._visual.to(weights.device)
        if len(visual) != keys:
            raise NormprobeError(
                f"decoder layer {layer} ({name}) attends to {keys} keys; expected {len(visual)}, "
                "one for each position",
                "open an issue with the model type",
            )
        seen = visual_attention(weights, visual)
        members = self._members[:, start : start + rows].to(seen.by_key)
        of_scores = torch.full((len(members), seen.by_key.shape[-1]), torch.nan)
        if scores is not None:
            by_key = scores[..., visual].sum(dim=0)
            # No product with zeros: a key that a row of another query cannot see is -inf.
            of_queries = [by_key[member.bool()].sum(dim=0) for member in members]
            of_scores = torch.stack(of_queries).cpu()
        module = self._modules[layer].setdefault(name, _Module([], [], []))
        module.numbers.append(torch.stack([seen.share, seen.even_share, seen.entropy]).cpu())
        module.by_key.append(torch.einsum("qr,hrk->qhk", members, seen.by_key).cpu())
        module.scores.append(of_scores)

    def tokens(self, query: int) -> int:
        """How many tokens a query has."""
        return int(self._members[query].sum())

    def numbers(self, layer: int, query: int) -> HeadNumbers | None:
        """What a query of a layer gives to visual keys.

        Returns:
            None of a layer without softmax attention, or without visual keys.
        """
        modules = self._modules.get(layer, {}).values()
        if not modules:
            return None
        tokens = self._members[query]
        seen = torch.cat([torch.cat(module.numbers, dim=-1) for module in modules], dim=1)
        share, even_share, entropy = seen[..., tokens].double().numpy()
        summed = [torch.stack(module.by_key).sum(dim=0)[query] for module in modules]
        by_key = (torch.cat(summed).double() / tokens.sum()).numpy()
        scores = torch.stack([torch.stack(module.scores).sum(dim=0)[query] for module in modules])
        in_sequence = self._visual is not None
        visible = by_key.shape[-1] if in_sequence else int(by_key.any(axis=0).sum())
        with np.errstate(divide="ignore"):
            entropy = entropy / (np.log(visible) or np.nan)
        of_keys = (scores.sum(dim=0).double() / share.size).numpy()
        return HeadNumbers(share, even_share, entropy, by_key, visible, of_keys)
