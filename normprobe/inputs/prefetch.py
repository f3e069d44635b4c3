"""Batches of model inputs: made in this process, or by workers while the model runs."""

from __future__ import annotations

import itertools
import mmap
import os
import pickle
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from xxhash import xxh3_64_hexdigest

from normprobe.console_state import sigint_blocked
from normprobe.data.data_set import DataSet
from normprobe.data.media import Video
from normprobe.data.rows import BadRows, RefusedSample
from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.pixel_hash import pixel_hashes
from normprobe.inputs.standard import REFUSALS
from normprobe.sandbox import end_with_the_parent
from normprobe.schema import DIGESTS, DRAWN_FRAMES
from normprobe.tensors import find_named

if TYPE_CHECKING:
    from transformers import BatchFeature

_LOOK_AGAIN = 0.005  # seconds


class InFlight:
    """Lets processes make windows of inputs ahead only while those in flight fit into a bound.

    Windows are taken in order. The one that is taken next is always made, however large, so that
    nobody waits for ever. Another is begun when it fits beside those in flight, if it is as large
    as the largest so far; before the first is made, nobody knows how large that is. So the bound is
    passed where windows grow, or two processes look at the same moment: by a window a process.

    The numbers lie in memory that forked processes share. Each is written by one process at a time,
    so there is no lock that a killed process could leave locked.
    """

    def __init__(self, windows: int, most: int) -> None:
        shared = np.frombuffer(mmap.mmap(-1, 8 * (windows + 2)), np.int64)
        self._next, self._largest = shared[:1], shared[1:2]
        self._bytes = shared[2:]  # of a window that is being made: as many as the largest has
        self._most = most

    def has_room(self, index: int) -> bool:
        """Whether a window may be made now."""
        largest = int(self._largest[0])
        if index <= self._next[0]:
            return True
        return largest > 0 and int(self._bytes.sum()) + largest <= self._most

    def begin(self, index: int) -> None:
        """Wait until a window may be made."""
        while not self.has_room(index):
            time.sleep(_LOOK_AGAIN)
        self._bytes[index] = self._largest[0]

    def made(self, index: int, size: int) -> None:
        """A window is made, of so many bytes."""
        self._bytes[index] = size
        self._largest[0] = max(size, int(self._largest[0]))

    def mark_taken(self, index: int) -> None:
        """A window has been taken: it is in flight no more, and the one after it is next."""
        self._bytes[index] = 0
        self._next[0] = index + 1

    def ended(self) -> None:
        """No window is taken any more: whoever waits may go on."""
        self._next[0] = len(self._bytes)


_BATCHES_A_WINDOW = 4  # at most; see `_Windows`
_SAMPLES_A_WINDOW = 128  # at most: a worker holds their pictures at once; a batch may be larger
_MOST_WORKERS = 8
_BYTES_A_PIXEL = 4  # of RGB in Pillow

#: Decoded pictures that all workers together keep of their windows, beside those of the batches
#: they make. Those beyond are decoded again for their batch, so that this changes no batch.
PICTURE_BYTES = 2**30

#: Inputs that wait for the model, of all workers together, beside the window that is taken next.
INPUT_BYTES = 2**30


@dataclass(frozen=True)
class Batch:
    """A batch, without its pictures unless they are asked for: those stay in the worker."""

    # by the names of ``DIGESTS``, then by sample id, in the order of the batch; None: it has no
    # picture, or nobody knows which pixels are its own
    digests: dict[str, dict[str, str | None]]
    inputs: BatchFeature  # of ``InputBuilder.build``
    samples: list[Sample]  # with their pictures; none where they are not asked for
    frames: dict[str, str]  # by sample id: how many frames of its videos the processor drew

    @property
    def sample_ids(self) -> list[str]:
        """In the order of the batch."""
        return list(self.digests["image_hash"])


def prefetched(
    data: DataSet,
    builder: InputBuilder,
    batch_size: int,
    *,
    wanted: Set[str] | None = None,
    share: tuple[int, int] = (0, 1),
    workers: int | None = None,
    with_samples: bool = False,
) -> Iterator[Batch]:
    """Yield the batches of a data set that hold wanted samples, made ahead in other processes.

    Samples of about the same length go together, among those of a few batches, so that little is
    padded. Which samples go together, and in which order, depends on the data and the batch size
    alone: a state depends a little on what else is in its batch.
    """
    from torch.utils.data import DataLoader

    windows: Any = _Windows(data, builder, batch_size, wanted, share, with_samples)
    workers = _workers(len(windows)) if workers is None else workers
    windows.picture_bytes = PICTURE_BYTES // max(1, workers)
    loader = DataLoader(
        windows,
        batch_size=None,
        collate_fn=bytes,
        num_workers=workers,
        worker_init_fn=end_with_the_parent,  # it would wait forever to be read
        multiprocessing_context="fork" if workers else None,
    )
    with sigint_blocked():
        arriving = iter(loader)  # has a name: it ends, which joins the workers, after `ended`
    try:
        for index, packed in enumerate(arriving):
            windows.in_flight.mark_taken(index)
            made, skipped, failure = pickle.loads(packed)
            data.bad.add(skipped)
            yield from made
            if failure is not None:
                raise failure
    finally:
        windows.in_flight.ended()


class _Windows:
    """A data set cut into windows: what ``DataLoader`` calls a map-style dataset.

    A window is as many consecutive samples as fill a few batches. Samples are sorted by length
    within a window. ``windows[i]`` makes the batches of the i-th window that is to be read, in
    whichever process asks for it, and returns them pickled, with the samples that were left out
    and the error that ended the window, if any.

    The result is bytes because these go through a pipe. Tensors would go through shared memory, of
    which a container has little, and an exception would lose its second line.

    Attributes:
        picture_bytes: decoded pictures that are kept of a window.
        in_flight: bounds what is made ahead.
    """

    picture_bytes = PICTURE_BYTES

    def __init__(
        self,
        data: DataSet,
        builder: InputBuilder,
        batch_size: int,
        wanted: Set[str] | None,
        share: tuple[int, int],
        with_samples: bool,
    ) -> None:
        self._data = data
        self._builder = builder
        self._batch_size = batch_size
        self._with_samples = with_samples
        self._wanted = set(data.ids) if wanted is None else wanted
        # One sample a batch needs no sorting.
        most = max(1, _SAMPLES_A_WINDOW // batch_size)
        length = batch_size * min(_BATCHES_A_WINDOW, most) if batch_size > 1 else 1
        windows = [data.ids[i : i + length] for i in range(0, len(data.ids), length)]
        number, processes = share
        self._windows = [ids for ids in windows if self._wanted & set(ids)]
        self._windows = self._windows[number::processes]
        self.in_flight = InFlight(len(self._windows), INPUT_BYTES)

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> bytes:
        self.in_flight.begin(index)
        packed = self._packed(self._windows[index])
        self.in_flight.made(index, len(packed))
        return packed

    def _packed(self, ids: list[str]) -> bytes:
        made: list[Batch] = []
        bad = BadRows(skip=self._data.bad.skip)
        try:
            samples = self._by_length(self._data.subset(ids, bad), bad)
            for batch, inputs in batches(samples, self._builder, self._batch_size, bad):
                if self._wanted & {sample.id for sample in batch}:
                    digests = _digests(batch, inputs, self._with_samples)
                    frames = _drawn_frames(batch, inputs)
                    kept = batch if self._with_samples else []
                    made.append(Batch(digests, inputs, kept, frames))
                del batch, inputs  # before the next one is decoded
        except NormprobeError as error:
            return pickle.dumps((made, bad.skipped, error))
        return pickle.dumps((made, bad.skipped, None))

    def _by_length(self, samples: DataSet, bad: BadRows) -> Iterator[Sample]:
        """The samples of a window, sorted where they fill more than a batch."""
        if len(samples) <= self._batch_size:
            yield from samples
            return
        read: list[tuple[int, str, Sample | None]] = []
        left = self.picture_bytes
        for sample in samples:
            left -= _BYTES_A_PIXEL * sample.pixels
            with self._builder.limits([sample]):
                length = about_length(self._builder, sample)
            read.append((length, sample.id, sample if left >= 0 else None))
        waiting = deque(sorted(read, key=lambda entry: entry[0]))
        read.clear()
        while waiting:  # each is let go when it is taken
            _, sample_id, kept = waiting.popleft()
            if kept is not None:
                yield kept
            else:
                yield from self._data.subset([sample_id], bad)


def _digests(
    batch: Sequence[Sample], inputs: BatchFeature, answered: bool
) -> dict[str, dict[str, str | None]]:
    """What tells the samples of a batch apart; see ``Batch``."""
    prompts = (
        _prompt_hash(sample, inputs, row, len(batch), answered) for row, sample in enumerate(batch)
    )
    of_each = [sample.image_hash for sample in batch], prompts, pixel_hashes(batch, inputs)
    return {
        name: {sample.id: digest for sample, digest in zip(batch, digests, strict=True)}
        for name, digests in zip(DIGESTS, of_each, strict=True)
    }


def _prompt_hash(sample: Sample, inputs: BatchFeature, row: int, rows: int, answered: bool) -> str:
    """16 hex digits of a prompt as the model gets it: its token ids, and what a word of it means.

    Where no ids with a mask of padding hold a row a sample: of the prompt as the data have it.
    """
    ids, mask = (find_named(inputs, name) for name in ("input_ids", "attention_mask"))
    seen = "".join(itertools.chain(*sample.earlier, [sample.prompt]))
    padded = mask is not None and getattr(ids, "shape", None) == mask.shape
    if padded and ids.ndim == 2 and len(ids) == rows:
        seen = repr(ids[row][mask[row] > 0].tolist())
    told = f"{seen} {sample.referent or ''}{sample.answer or '' if answered else ''}"
    return xxh3_64_hexdigest(told.encode(errors="surrogatepass"))


def _drawn_frames(samples: Sequence[Sample], inputs: BatchFeature) -> dict[str, str]:
    """How many frames of which video were drawn; all of them, where the processor does not say."""
    drawn = iter(inputs.get(DRAWN_FRAMES, ()))

    def told(video: Video) -> str:
        rate = f" at {video.fps:g} a second" if video.fps else ""
        return f"{int(next(drawn, len(video.frames)))} of {len(video.frames)} frames{rate}"

    return {sample.id: ", ".join(map(told, sample.videos)) for sample in samples if sample.videos}


def about_length(builder: InputBuilder, sample: Sample) -> int:
    """About how many tokens a sample takes. It serves to sort samples and nothing else."""
    tokenizer = builder.tokenizer
    tokens = 0 if tokenizer is None else len(tokenizer(sample.prompt)["input_ids"])
    # What processors tell inference engines; those without it give every image the same length.
    count = getattr(builder.processor, "_get_num_multimodal_tokens", None)
    if not sample.images or count is None:
        return tokens
    sizes = [image.size[::-1] for image in sample.images]
    try:
        return tokens + int(sum(count(sizes)["num_image_tokens"]))
    except REFUSALS:
        return tokens


def _workers(tasks: int) -> int:
    """How many processes: half of this process's share of the cores, none for a single task.

    Only where a process can be forked: elsewhere each would load its own libraries and data. Nor
    with TensorFlow, which Molmo resizes with: once it ran, it hangs in a forked process.
    """
    if sys.platform != "linux" or "tensorflow" in sys.modules:
        return 0
    cores = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(0, min(_MOST_WORKERS, max(1, cores // 2), tasks - 1))


def batches(
    data: Iterable[Sample], builder: InputBuilder, batch_size: int, bad: BadRows | None = None
) -> Iterator[tuple[list[Sample], BatchFeature]]:
    """Yield samples and their inputs, ``batch_size`` at a time; a batch may be smaller.

    Samples that the processor takes alone, but not together, are batches of one.
    """
    samples = iter(data)
    while batch := list(islice(samples, batch_size)):
        try:
            inputs = builder.build(batch)
        except RefusedSample:
            accepted = _accepted(batch, builder, bad or BadRows())
            size = 1 if len(accepted) == len(batch) else batch_size
            yield from batches(accepted, builder, size, bad)
            continue
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
