"""Measure the samples that are not measured yet, and keep their rows as they come."""

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import islice
from typing import Any, Protocol, TypeVar

import pandas as pd
import torch
from PIL import Image
from torch import Tensor

from normprobe.console_state import has_colour
from normprobe.data.data_set import DataSet
from normprobe.data.rows import BadRows
from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError, number_of
from normprobe.failures import is_native
from normprobe.hooks import unused_inputs
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.on_device import completed, dtype_of, pixel_inputs
from normprobe.inputs.prefetch import Batch, prefetched
from normprobe.model.measured_model import MeasuredModel
from normprobe.model.provenance import text_ids
from normprobe.model.token_places import NormMap, Picture
from normprobe.options import AUTO, Sampling
from normprobe.runs.begin import doubt, warn
from normprobe.runs.processes import meeting
from normprobe.runs.run_folder import PARTIAL, RunStore, image_name
from normprobe.schema import AUDIO, DIGESTS, IMAGE, TOKEN_GROUPS, VIDEO, VISUAL
from normprobe.statistics.bootstrap import DRAWS, LEVEL, SEED
from normprobe.statistics.resampling import image_units
from normprobe.statistics.token_metrics import token_norms

T = TypeVar("T")


def progress(steps: Iterable[T], *, total: int, what: str, shown: bool = True) -> Iterator[T]:
    """Pass steps on and show how many are done."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True, color_system="auto" if has_colour() else None)
    yield from track(
        steps,
        description=what,
        total=total,
        console=console,
        disable=not (shown and console.is_terminal),
    )


log = logging.getLogger(__name__)

#: A killed process loses the batch at work, the one before it, and at most the rows of this many
#: seconds.
SECONDS_A_PART = 1.0
_FEW_UNITS = 20  # below, a reader may wonder what intervals of so few are worth


class ByBatch(Protocol):
    """What is asked of a measurement, batch by batch."""

    @property
    def reads_samples(self) -> bool:
        """Whether the samples are asked for, beside the inputs that are made of them."""
        ...

    @property
    def intervals(self) -> bool:
        """Whether its tables have intervals."""
        ...

    def observer(
        self, model: MeasuredModel, builder: InputBuilder
    ) -> Callable[[Mapping[str, Any], Sequence[Sample]], Any]:
        """A function that runs the model once, and returns what was seen.

        It takes the inputs of a batch, on the CPU, and its samples, where they are asked for.
        Nothing waits for the device.
        """
        ...

    def rows(self, seen: Any, sample_ids: Sequence[str] | None) -> pd.DataFrame:
        """One row a (sample, layer or stage, token group), as ``tables`` takes them.

        It is called in a thread of its own, while the model runs on the next batch.
        """
        ...


def collect(
    run: RunStore,
    model: MeasuredModel,
    data: DataSet,
    builder: InputBuilder,
    measurement: ByBatch,
    sampling: Sampling,
    only: Collection[str] | None = None,
) -> pd.DataFrame:
    """Measure what the run does not hold yet, this process's share of it."""
    from accelerate import PartialState
    from accelerate.utils import gather_object

    state = PartialState()
    alone = state.num_processes == 1
    shared = not alone and any(hasattr(w, "full_tensor") for w in model.model.parameters())
    share = (0, 1) if shared else (state.process_index, state.num_processes)
    run.kept_on_failure = not alone  # others add to it
    if state.is_main_process:
        _refuse_other_samples(run, data, builder, measurement, sampling.workers)
    left = set(data.ids if only is None else only) - run.sample_ids()
    with meeting():  # every process has seen the same parts before one adds another
        state.wait_for_everyone()
    # Processes that share a model all measure the same; the first one writes it down.
    into = run if state.is_main_process or not shared else RunStore(dict(run.record))
    if shared and sampling.batch_size == AUTO:  # none may halve it alone
        sampling = replace(sampling, batch_size=_largest(model))
    _measure_share(into, model, data, left, share, builder, measurement, sampling)
    with meeting():
        data.bad.add(gather_object(data.bad.skipped))
        state.wait_for_everyone()
    if state.num_processes > 1:
        state.destroy_process_group()
    if not state.is_main_process:
        raise SystemExit(0)
    _note_skipped(run, data)
    rows = _collected(run, data, only, alone)
    if not measurement.intervals:
        run.note(intervals=None)
    elif (warning := note_confidence(run, rows)) and only is None:
        log.warning("note: %s", warning)
    return rows


def _refuse_other_samples(
    run: RunStore,
    data: DataSet,
    builder: InputBuilder,
    measurement: ByBatch,
    workers: int | None,
) -> None:
    """Refuse to go on where a sample that was measured has another picture or prompt by now."""
    rows = run.rows(["sample_id", *DIGESTS])
    if rows.empty:
        return
    measured = rows.drop_duplicates("sample_id").set_index("sample_id")
    left = dict.fromkeys(sample_id for sample_id in data.ids if sample_id in measured.index)
    before = {name: measured[name].dropna().to_dict() for name in DIGESTS if name in measured}
    bad = BadRows(skip=True)  # what cannot be read any more is named below
    read = prefetched(
        data.subset(left, bad),
        builder,
        1,
        wanted=set(left),
        workers=workers,
        with_samples=measurement.reads_samples,
    )
    for batch in progress(read, total=len(left), what="samples measured before", shown=True):
        for name, known in before.items():
            for sample_id, digest in batch.digests[name].items():
                if digest is not None and known.get(sample_id, digest) != digest:
                    raise _other(run, f"the {DIGESTS[name]} of {sample_id} is not the one")
        for sample_id in batch.sample_ids:
            left.pop(sample_id, None)
    for sample_id in left:
        reason = bad.skipped[0].reason
        raise _other(run, f"{sample_id} cannot be read any more ({reason}): it is not the one")


def _other(run: RunStore, problem: str) -> NormprobeError:
    return NormprobeError(
        f"{problem} that {run.path} measured",
        "put back what it was begun with, versions of libraries too, or measure again with "
        "--overwrite",
    )


def _measure_share(
    run: RunStore,
    model: MeasuredModel,
    data: DataSet,
    left: set[str],
    share: tuple[int, int],
    builder: InputBuilder,
    measurement: ByBatch,
    sampling: Sampling,
) -> None:
    """Measure what is left, in the batches that the whole run has.

    With ``auto`` they become smaller until they fit.
    """
    from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size

    def alone(sample_id: str) -> Mapping[str, Any]:
        (sample,) = islice((each for each in data if each.id == sample_id), 1)
        return builder.build([sample])

    size = _largest(model) if sampling.batch_size == AUTO else sampling.batch_size
    observe = measurement.observer(model, builder)
    while left:
        used = {*run.record.get("batch_sizes", ()), size}
        run.note(status=PARTIAL, batch_size=size, batch_sizes=sorted(used))
        batches = prefetched(
            data,
            builder,
            size,
            wanted=left,
            share=share,
            workers=sampling.workers,
            with_samples=measurement.reads_samples,
        )
        measured = _measured(run, model, batches, observe, measurement, alone)
        try:
            with _Parts(run) as parts:
                total = -(-len(left) // (size * share[1]))
                shown = run.writer == 0
                for rows in progress(measured, total=total, what=run.command, shown=shown):
                    new = rows[rows["sample_id"].isin(left)]
                    parts.add(new)
                    left = left - set(new["sample_id"])
            break
        except RuntimeError as error:
            if sampling.batch_size != AUTO or size == 1 or not should_reduce_batch_size(error):
                raise
        size //= 2
        del batches, measured
        clear_device_cache(garbage_collection=True)


def _largest(model: MeasuredModel) -> int:
    """Where a batch size of ``auto`` begins to halve.

    The samples of a batch change each other's last bits. In float32 they are measured one by one,
    so that no digit depends on the memory of the machine.
    """
    if dtype_of(model.model) in (torch.float32, None):
        return 1
    # A processor gains nothing from larger batches.
    return 8 if next(model.model.parameters()).device.type == "cpu" else 64


def _measured(
    run: RunStore,
    model: MeasuredModel,
    batches: Iterator[Batch],
    observe: Callable[[Mapping[str, Any], Sequence[Sample]], Any],
    measurement: ByBatch,
    alone: Callable[[str], Mapping[str, Any]],
) -> Iterator[pd.DataFrame]:
    """Sample rows in the order of the batches, each with the digests of its sample.

    The rows of a batch are made in a thread while the model runs on the batch after it. Of a batch
    that fails, the one before it is still yielded.
    """

    def rows_of(
        seen: Any, digests: Mapping[str, Mapping[str, str | None]], frames: Mapping[str, str]
    ) -> pd.DataFrame:
        rows = measurement.rows(seen, list(digests["image_hash"]))
        ids = rows["sample_id"]
        rows = rows.assign(**{name: ids.map(found) for name, found in digests.items()})
        return rows.assign(frames=ids.map(frames)) if frames else rows

    def started(thread: Executor) -> Iterator[Future[pd.DataFrame]]:
        warned = marked = compared = False
        own_code = not is_native(model.model)
        for batch in batches:
            note_unused_inputs(run, model, batch.inputs)
            too_long = None if warned else long_prompt(model, batch.inputs, batch.sample_ids)
            if too_long is not None:
                warn(run, too_long)
                warned = True
            if (told := untiled(model, batch)) and told not in run.record.get("doubts", []):
                doubt(run, told)
            told = begun_twice(model, batch) if own_code else ""
            if told and told not in run.record.get("warnings", []):
                warn(run, told)
            if own_code and not marked and (told := unmarked(model, batch)):
                warn(run, told)
                marked = True
            inputs = completed(model.model, batch.inputs)
            seen = observe(inputs, batch.samples)
            if own_code and not compared and len(batch.sample_ids) > 1:
                compared = True
                if told := apart_in_a_batch(model, alone, inputs, batch.sample_ids):
                    doubt(run, told)
            del inputs
            yield thread.submit(rows_of, seen, batch.digests, batch.frames)
            del seen  # while the next one is made

    with ThreadPoolExecutor(1) as thread:
        yield from _one_behind(started(thread))


def _one_behind(futures: Iterator[Future[pd.DataFrame]]) -> Iterator[pd.DataFrame]:
    """The result of each future, once the one after it has been started or has failed to."""
    waiting: Future[pd.DataFrame] | None = None
    while True:
        failure: BaseException | None = None
        following: Future[pd.DataFrame] | None = None
        try:
            following = next(futures, None)
        except BaseException as error:
            failure = error
        if waiting is not None:
            yield waiting.result()
        if failure is not None:
            raise failure
        if following is None:
            return
        waiting = following


class _Parts:
    """Adds rows to a run, about one part a second: small batches make few files."""

    def __init__(self, run: RunStore) -> None:
        self._run = run
        self._rows: list[pd.DataFrame] = []
        self._due = 0.0

    def __enter__(self) -> "_Parts":
        return self

    def __exit__(self, *_: Any) -> None:
        # However the block ends, what is measured is kept.
        self._write()

    def add(self, rows: pd.DataFrame) -> None:
        self._rows.append(rows)
        if time.monotonic() >= self._due:
            self._write()
            self._due = time.monotonic() + SECONDS_A_PART

    def _write(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            self._run.append(pd.concat(rows, ignore_index=True))


def note_confidence(run: RunStore, rows: pd.DataFrame) -> str:
    """Record what the intervals rest on, and a note where that is little."""
    units = int(image_units(rows).nunique())
    run.note(intervals={"level": LEVEL, "units": units, "draws": DRAWS, "seed": SEED})
    kinds = _media(rows)
    if kinds and kinds != ["image"]:
        run.note(media=kinds)
    if units >= _FEW_UNITS:
        return ""
    unit = "sample" if kinds[1:] else "".join(kinds) or "image"
    if rows["image_hash"].isna().all():
        unit = "sample" if kinds else "prompt"
    few, of = number_of(units, unit), ", ".join(f"{kind}s" for kind in kinds or [unit])
    without = int(rows["sample_id"][rows["image_hash"].isna()].nunique())
    if 0 < without < units:
        few = f"{number_of(units - without, unit)} and {number_of(without, 'sample')} without"
        of = "samples"
    if units == 1 and run.record.get("sample_ids") == []:  # inputs in memory may be of several
        few = "1 batch"
    if units == 1:
        warning = f"{few}: no intervals, and nothing is said of others"
    else:
        warning = f"{few}: the intervals are widened for so few; they speak of {of} like these"
    run.add_warning(warning)
    return warning


def _media(rows: pd.DataFrame) -> list[str]:
    """What the samples hold, in words; tokens of a clip are visual, too."""
    if "group" not in rows:
        return ["image"]
    groups = (VISUAL, IMAGE, VIDEO, AUDIO)
    seen, images, clips, sounds = (set(rows["sample_id"][rows["group"] == g]) for g in groups)
    held = {"image": images or seen - clips, "clip": clips, "sound": sounds}
    return [kind for kind, samples in held.items() if samples]


def _note_skipped(run: RunStore, data: DataSet) -> None:
    """List what was left out, and say how much that is."""
    if not data.bad.skipped:
        return
    place = {sample_id: place for place, sample_id in enumerate(data.ids)}
    # First what has no sample, as it was found when the data were opened. The others were
    # found by several processes, in batches of one size or another.
    skipped = sorted(data.bad.skipped, key=lambda row: place.get(row.sample or "", -1))
    table = pd.DataFrame([asdict(row) for row in skipped])
    table["row"] = table["row"].astype("Int64")  # no row at all is an empty field, not 3.0
    run.write_table("skipped", table)
    run.note(skipped=len(skipped))
    run.kept_on_failure = True  # the list is what helps
    rows = "1 bad row" if len(skipped) == 1 else f"{len(skipped)} bad rows"
    log.warning("warning: %s left out, listed in skipped.csv", rows)


def _collected(
    run: RunStore, data: DataSet, only: Collection[str] | None, alone: bool
) -> pd.DataFrame:
    """All rows of the run, in the order of the data; ``alone``: one process measured them."""
    rows = run.rows()
    place = {sample_id: place for place, sample_id in enumerate(data.ids)}
    asked = place.keys() if only is None else set(only)
    missing = asked - {row.sample for row in data.bad.skipped}
    if not missing:
        reasons = [row.reason for row in data.bad.skipped]
        left_out = f" that can be used; {len(reasons)} left out: {reasons[0]}" if reasons else ""
        raise NormprobeError(f"{data.name} holds no samples{left_out}", "pass another --data")
    missing -= set() if rows.empty else set(rows["sample_id"])
    if missing:
        held = f"{run.path} holds {len(asked) - len(missing)} of {len(asked)} samples"
        if alone:
            raise NormprobeError(
                f"{held}: rows that were written have been deleted since",
                "leave the folder alone while a run writes into it; --resume measures them again",
            )
        raise NormprobeError(
            f"{held}: what another process measured is not there",
            "give an --output on a file system that all nodes share, and leave the folder alone "
            "while a run writes into it",
        )
    rows = rows.sort_values("sample_id", key=lambda ids: ids.map(place), kind="stable")
    samples = rows.drop_duplicates("sample_id").set_index("sample_id")
    for name in DIGESTS:
        if name in samples:
            run.note(**{f"{name}es": samples[name].to_dict()})
    if "frames" in samples:
        run.note(frames=samples["frames"].dropna().to_dict())
    return rows.reset_index(drop=True)


#: The table of a run.
MAP = "map"


def norm_maps(
    run: RunStore,
    model: MeasuredModel,
    data: DataSet,
    builder: InputBuilder,
    norm_map: Callable[[MeasuredModel, Picture], NormMap],
    rows: pd.DataFrame,
    pictures: int,
) -> dict[str, pd.DataFrame]:
    """Map the first pictures of the measured samples, each picture once.

    Places are told by some forwards of the vision side for each picture, so the cost does not grow
    with the samples. What has no map is a warning.
    """
    tables: list[pd.DataFrame] = []
    unknown: dict[str, list[str]] = {}
    measured = data.subset(rows["sample_id"].unique(), BadRows(skip=True))
    for sample, place in progress(_first(measured, pictures), total=pictures, what=MAP):
        found = norm_map(model, _picture(builder, sample, place))
        for what, reason in found.unknown.items():
            unknown.setdefault(what, []).append(reason)
        if len(found.rows):
            number = len(tables) + 1
            table = found.rows.copy()
            table.insert(0, "sample_id", sample.id)
            table.insert(1, IMAGE, number)
            run.write_image(image_name(number), sample.images[place])
            tables.append(table)
    if not tables and not unknown:
        warn(run, "no map: no sample has a picture")
    for what, reasons in unknown.items():
        warn(run, f"no map of {what.replace('_', ' ')}: {reasons[0]}")
    return {MAP: pd.concat(tables, ignore_index=True)} if tables else {}


def _first(samples: DataSet, pictures: int) -> Iterator[tuple[Sample, int]]:
    """So many different pictures: the sample, and which of its images it is, from 0."""
    seen: set[str] = set()
    for sample in samples:
        for place, known in enumerate(sample.image_hashes):
            if known in seen:
                continue
            seen.add(known)
            yield sample, place
            if len(seen) == pictures:
                return


def _picture(builder: InputBuilder, sample: Sample, place: int) -> Picture:
    """One image of a sample."""

    def build(image: Image.Image) -> dict[str, object]:
        images = [*sample.images[:place], image, *sample.images[place + 1 :]]
        return dict(builder.build([replace(sample, images=tuple(images))]))

    return Picture(sample.images[place], build, alone=len(sample.images) == 1)


def note_unused_inputs(run: RunStore, model: MeasuredModel, inputs: Mapping[str, Any]) -> None:
    """Record the inputs that the model's forward does not take."""
    known = run.record.get("inputs_not_taken", [])
    if model.has_decoder and (new := set(unused_inputs(model.model, inputs)) - set(known)):
        run.note(inputs_not_taken=sorted({*known, *new}))


def untiled(model: MeasuredModel, batch: Batch) -> str:
    """A doubt where a config asks for tiles, and each picture is one square (LLaVA-NeXT's code)."""
    asks = str(getattr(getattr(model.model, "config", None), "image_aspect_ratio", None))
    pixels = [batch.inputs[name] for name in pixel_inputs(batch.inputs) if name in batch.inputs]
    squares = [each for each in pixels if isinstance(each, Tensor) and each.dim() == 4]
    if "anyres" not in asks or is_native(model.model) or len(squares) != 1:
        return ""
    if len(squares[0]) > len(batch.sample_ids):
        return ""
    return (
        f"config.json asks for tiles (image_aspect_ratio {asks}), and the inputs hold one square a "
        "picture: what the model makes of tiles is not measured"
    )


def begun_twice(model: MeasuredModel, batch: Batch) -> str:
    """A warning where code of a model's own is given prompts that open with two begin tokens."""
    if model.begin_id is None:
        return ""
    ids, mask = text_ids(batch.inputs, model.parts)
    if ids is None:
        return ""
    held = torch.ones_like(ids).bool() if mask is None else mask.bool()
    opening = [row[kept][:2].tolist() for row, kept in zip(ids, held, strict=True)]
    if [model.begin_id] * 2 not in opening:
        return ""
    return (
        "a prompt opens with two begin tokens: its text (TURN) holds one, the tokenizer may add one"
    )


#: A mark in a vocabulary, such as <vision> or <|user|>; none that stands for rows of a picture.
_MARK = re.compile(r"<(?!.*(image|img|patch|pad))[|/]*\w+[|/]*>", re.IGNORECASE)
_TOLD = 3

#: How far a mean norm at the decoder input may be apart in a batch and alone, by rounding.
_APART = 0.01


def apart_in_a_batch(
    model: MeasuredModel,
    alone: Callable[[str], Mapping[str, Any]],
    inputs: Mapping[str, Any],
    sample_ids: Sequence[str],
) -> str:
    """A doubt where the last sample of a batch enters the decoder otherwise than alone.

    Innovator-VL's vision encoder reads rows of the picture before. ``alone``: makes the inputs of
    one sample.
    """
    found = list[float]()
    with suppress(Exception):  # where it cannot be looked at, nothing is said
        for given in (completed(model.model, alone(sample_ids[-1])), inputs):
            visual = model.placed(given).groups[-1] == TOKEN_GROUPS.index(VISUAL)
            entered = model.decoder_input(given)[-1]
            found.append(float(token_norms(entered[visual.to(entered.device)]).mean()))
    if len(found) < 2 or not abs(found[1] - found[0]) > _APART * found[0]:
        return ""
    return (
        f"visual tokens of {sample_ids[-1]} enter the decoder with a mean norm of {found[1]:.4g} "
        f"in a batch of {len(sample_ids)}, and of {found[0]:.4g} alone: code of the model's own "
        "reads samples otherwise beside others; use --batch-size 1"
    )


def unmarked(model: MeasuredModel, batch: Batch) -> str:
    """A warning where prompts of code of a model's own hold marks that no tokenizer calls special.

    They are words of its vocabulary, and count as text: SOLO's stand around rows of a picture.
    """
    ids, _ = text_ids(batch.inputs, model.parts)
    if ids is None or model.token_text is None:
        return ""
    known = {*model.special_token_ids, *model.parts.image_token_ids}
    words = [each for each in {*ids.flatten().tolist()} if each >= 0 and each not in known]
    marks = sorted({text for n in words if _MARK.fullmatch(text := model.token_text(n).strip())})
    if not marks:
        return ""
    more = f" and {len(marks) - _TOLD} more" * (len(marks) > _TOLD)
    return (
        f"{', '.join(marks[:_TOLD])}{more} in prompts: no special tokens to the tokenizer, so they "
        "count as text; load_processor() of an --inputs file may add them as special tokens"
    )


def long_prompt(
    model: MeasuredModel, inputs: Mapping[str, Any], sample_ids: Sequence[str] | None = None
) -> str | None:
    """What to say of the longest prompt of a batch; None: the model has positions for all."""
    ids, mask = text_ids(inputs, model.parts)
    if model.positions is None or ids is None or ids.shape[-1] <= model.positions:
        return None
    fits = mask is not None and mask.shape == ids.shape
    lengths = mask.sum(dim=-1).tolist() if mask is not None and fits else [ids.shape[-1]]
    length, place = max((length, -place) for place, length in enumerate(lengths))
    if length <= model.positions:
        return None
    name = f"sample {-place}" if sample_ids is None else sample_ids[-place]
    return (
        f"the prompt of {name} has {length} tokens, more than the "
        f"{model.positions} positions of the model (max_position_embeddings)"
    )
