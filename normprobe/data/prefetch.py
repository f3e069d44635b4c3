"""Batches that worker processes decode and process while the model runs."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from normprobe.data.bad_rows import BadRows
from normprobe.data.batches import batches
from normprobe.data.chat import is_multimodal
from normprobe.data.datasets import DataSet
from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError

if TYPE_CHECKING:
    from transformers import BatchFeature

_BATCHES_A_WINDOW = 4  # among which samples are sorted by length
_SAMPLES_A_WINDOW = 128  # whose pictures a worker holds at once; more only for one larger batch
_MOST_WORKERS = 8


@dataclass(frozen=True)
class Batch:
    """A batch without its pictures: those stay in the worker.

    Attributes:
        image_hashes: by sample id, in the order of the batch.
        inputs: of ``build_inputs``.
    """

    image_hashes: dict[str, str | None]
    inputs: BatchFeature


def prefetched(
    data: DataSet,
    processor: Any,
    batch_size: int,
    system: str | None = None,
    model_type: str | None = None,
) -> Iterator[Batch]:
    """Yield the batches of a data set, made ahead in other processes.

    Samples of about the same length go together, among those of a few batches, so that little is
    padded. The order depends on the data and the batch size alone.

    Args:
        data: what to read; what is left out is added to ``data.bad``.
        processor: from ``load_processor``.
        batch_size: samples a batch; fewer at the end of a window.
        system: of ``build_inputs``.
        model_type: of ``build_inputs``.

    Raises:
        NormprobeError: as ``build_inputs``, from whichever process.
        RuntimeError: "DataLoader worker ..." when the system kills one.
    """
    from torch.utils.data import DataLoader

    windows: Any = _Windows(data, processor, batch_size, system, model_type)
    workers = _workers(len(windows))
    loader = DataLoader(
        windows,
        batch_size=None,
        collate_fn=bytes,
        num_workers=workers,
        worker_init_fn=_end_with_the_parent,
        multiprocessing_context="fork" if workers else None,
    )
    for packed in loader:
        made, skipped, failure = pickle.loads(packed)
        data.bad.add(skipped)
        yield from made
        if failure is not None:
            raise failure


class _Windows:
    """A few batches at each index, as bytes.

    Bytes go through a pipe. Tensors would go through shared memory, of which a container has
    little, and an exception would lose its second line.
    """

    def __init__(
        self,
        data: DataSet,
        processor: Any,
        batch_size: int,
        system: str | None,
        model_type: str | None,
    ) -> None:
        self._data = data
        self._ids = data.ids
        self._processor = processor
        self._batch_size = batch_size
        self._system = system
        self._model_type = model_type
        # One sample a batch needs no sorting.
        most = max(1, _SAMPLES_A_WINDOW // batch_size)
        self._length = batch_size * min(_BATCHES_A_WINDOW, most) if batch_size > 1 else 1

    def __len__(self) -> int:
        return -(-len(self._ids) // self._length)

    def __getitem__(self, index: int) -> bytes:
        ids = self._ids[index * self._length : (index + 1) * self._length]
        made: list[Batch] = []
        bad = BadRows(skip=self._data.bad.skip)
        try:
            samples: Sequence[Sample] = list(self._data.subset(ids, bad))
            if len(samples) > self._batch_size:
                samples = sorted(samples, key=lambda sample: about_length(self._processor, sample))
            for batch, inputs in batches(
                samples,
                self._processor,
                self._batch_size,
                self._system,
                model_type=self._model_type,
                bad=bad,
            ):
                made.append(Batch({sample.id: sample.image_hash for sample in batch}, inputs))
        except NormprobeError as error:
            return pickle.dumps((made, bad.skipped, error))
        return pickle.dumps((made, bad.skipped, None))


def about_length(processor: Any, sample: Sample) -> int:
    """About how many tokens a sample takes. Only the order of samples is made of it."""
    tokenizer = processor.tokenizer if is_multimodal(processor) else processor
    tokens = len(tokenizer(sample.prompt)["input_ids"]) if hasattr(tokenizer, "vocab_size") else 0
    # What processors tell inference engines; None of a processor of fixed length is the same.
    count = getattr(processor, "_get_num_multimodal_tokens", None)
    if sample.image is None or count is None:
        return tokens
    try:
        return tokens + int(count([sample.image.size[::-1]])["num_image_tokens"][0])
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return tokens


def _end_with_the_parent(_: int) -> None:
    """A killed run leaves no worker behind, which would wait forever to be read."""
    set_death_signal = 1  # PR_SET_PDEATHSIG of Linux
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def _workers(tasks: int) -> int:
    """How many processes: half of this process's share of the cores, none for a single task.

    Only where a process can be forked: elsewhere each would load its own libraries and data.
    """
    if sys.platform != "linux":
        return 0
    cores = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(0, min(_MOST_WORKERS, max(1, cores // 2), tasks - 1))
