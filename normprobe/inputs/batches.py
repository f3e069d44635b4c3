"""A data set as batches of model inputs, made in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from normprobe.data.bad_rows import BadRows, RefusedSample
from normprobe.data.sample import Sample
from normprobe.inputs.builder import InputBuilder

if TYPE_CHECKING:
    from transformers import BatchFeature


def batches(
    data: Iterable[Sample], builder: InputBuilder, batch_size: int, bad: BadRows | None = None
) -> Iterator[tuple[list[Sample], BatchFeature]]:
    """Yield samples and their inputs, ``batch_size`` at a time; a batch may be smaller."""
    samples = iter(data)
    while batch := list(islice(samples, batch_size)):
        try:
            inputs = builder.build(batch)
        except RefusedSample:
            batch = _accepted(batch, builder, bad or BadRows())
            if not batch:
                continue
            inputs = builder.build(batch)
        yield batch, inputs
        del batch, inputs  # before the next one is decoded


def _accepted(batch: Sequence[Sample], builder: InputBuilder, bad: BadRows) -> list[Sample]:
    """The samples of a batch that the processor takes one by one."""
    accepted = []
    for sample in batch:
        try:
            builder.build([sample])
        except RefusedSample as error:
            bad.refuse(error, sample.id)
        else:
            accepted.append(sample)
    return accepted
