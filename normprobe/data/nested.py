"""Batches that are no flat mapping of equal tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from transformers import BatchFeature


class NestedFeature(BatchFeature):
    """A batch whose ``to`` also reaches into dicts: some models take one dict as their input."""

    def to(self, *args: Any, **kwargs: Any) -> "NestedFeature":
        """Move every tensor and cast the floating-point ones."""
        super().to(*args, **kwargs)
        for name, value in self.data.items():
            if isinstance(value, dict):
                self.data[name] = dict(BatchFeature(value).to(*args, **kwargs))
        return self


def stacked(rows: Sequence[Mapping[str, Tensor]], fill: Mapping[str, float]) -> BatchFeature:
    """Samples without a batch axis as one batch, every axis padded at its end.

    Args:
        rows: one mapping a sample, all with the same names.
        fill: what to pad with, by name; others are padded with zeros.

    Returns:
        ``[batch, ...]`` tensors, each as large as the largest sample.

    Raises:
        ValueError: when the samples hold different inputs.
    """
    if any(row.keys() != rows[0].keys() for row in rows):
        raise ValueError("samples with and without an image do not fit into one batch")
    return BatchFeature(
        {name: _stack([row[name] for row in rows], fill.get(name, 0)) for name in rows[0]}
    )


def _stack(tensors: Sequence[Tensor], fill: float) -> Tensor:
    shape = [max(sizes) for sizes in zip(*(tensor.shape for tensor in tensors), strict=True)]
    batch = tensors[0].new_full((len(tensors), *shape), fill)
    for row, tensor in zip(batch, tensors, strict=True):
        row[tuple(slice(size) for size in tensor.shape)] = tensor
    return batch
