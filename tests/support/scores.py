"""Attention scores before the softmax, computed in float64 NumPy from what the kernel is given."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from support.capture import Array, to_numpy


@contextmanager
def scores_of(layers: nn.ModuleList) -> Iterator[dict[int, Array]]:
    """Collect ``[heads, queries, keys]`` of each layer, from 1, while one sample runs with SDPA."""
    where = {id(part): n for n, layer in enumerate(layers, start=1) for part in layer.modules()}
    found: dict[int, Array] = {}
    sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def attend(
        module: nn.Module,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any = None,
        **more: Any,
    ) -> Any:
        if id(module) in where:
            found[where[id(module)]] = _scores(
                to_numpy(query[0]), to_numpy(key[0]), attention_mask, more
            )
        return sdpa(module, query, key, value, attention_mask, **more)

    with patch.dict(ALL_ATTENTION_FUNCTIONS._global_mapping, {"sdpa": attend}):
        yield found


def _scores(query: Array, key: Array, mask: Any, more: dict[str, Any]) -> Array:
    group = len(query) // len(key)
    scaling = more.get("scaling")
    scale = 1 / np.sqrt(query.shape[-1]) if scaling is None else scaling
    scores = np.stack([scale * q @ key[head // group].T for head, q in enumerate(query)])
    if mask is not None and mask.dtype == torch.bool:
        return np.where(mask[0].numpy(), scores, -np.inf)
    if mask is not None:
        return scores + to_numpy(mask[0])
    return np.where(np.tril(np.ones(scores.shape[1:], dtype=bool)), scores, -np.inf)
