"""Measuring the samples that are not measured yet, and keeping their rows on disk."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal

import typer

from normprobe.cli import console
from normprobe.errors import NormprobeError

if TYPE_CHECKING:
    import pandas as pd
    from transformers import BatchFeature

    from normprobe.cli.subject import Subject
    from normprobe.data.datasets import DataSet
    from normprobe.report.run_dir import RunDir

Measure = Callable[..., "Iterator[pd.DataFrame]"]

#: Where ``--batch-size auto`` begins to halve. A processor gains nothing from larger batches.
_LARGEST = {"cpu": 8}
_LARGEST_ELSEWHERE = 64

_SECONDS_A_PART = 1.0


def collect(
    run: "RunDir",
    subject: "Subject",
    data: "DataSet",
    measure: Measure,
    batch_size: int | Literal["auto"],
    system: str | None,
    what: str,
) -> "pd.DataFrame":
    """Measure what the run does not hold yet, this process's share of it.

    Args:
        run: where the rows go: a killed process loses the batch at work and at most a second
            of those before it.
        subject: the loaded model.
        data: all samples of the run.
        measure: ``measure_layers`` or ``measure_interface``.
        batch_size: samples a forward, or ``auto``.
        system: system prompt.
        what: names the progress bar.

    Returns:
        The sample rows of the whole run, in the order of ``data``, in the main process. The others
        end here: their work is done.

    Raises:
        NormprobeError: no samples, or rows of another process that did not arrive.
    """
    from accelerate import PartialState
    from accelerate.utils import gather_object

    state = PartialState()
    measured = run.sample_ids()
    rest = [sample_id for sample_id in data.ids if sample_id not in measured]
    state.wait_for_everyone()  # every process has seen the same parts before one adds another
    # Every n-th: neighbours in a file often cost about the same.
    share = data.subset(rest[state.process_index :: state.num_processes])
    alone = state.num_processes == 1  # otherwise another may be adding its first rows
    with run.discarded_on_failure() if alone else nullcontext():
        _measure_share(run, subject, share, measure, batch_size, system, what)
    data.bad.add(gather_object(data.bad.skipped))
    state.wait_for_everyone()
    if state.num_processes > 1:
        state.destroy_process_group()
    if not state.is_main_process:
        raise typer.Exit
    note_skipped(run, data)
    return _collected(run, data)


def _measure_share(
    run: "RunDir",
    subject: "Subject",
    data: "DataSet",
    measure: Measure,
    batch_size: int | Literal["auto"],
    system: str | None,
    what: str,
) -> None:
    """Measure some samples; with ``auto``, in batches that become smaller until they fit."""
    from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size

    device = subject.model.device.type
    largest = _LARGEST.get(device, _LARGEST_ELSEWHERE)
    size = largest if batch_size == "auto" else batch_size
    done: set[str] = set()
    while left := [sample_id for sample_id in data.ids if sample_id not in done]:
        hashes: dict[str, str | None] = {}
        inputs = _inputs(subject, data.subset(left), size, system, hashes)
        batches = measure(subject.model, subject.parts, inputs, subject.special_token_ids)
        try:
            with _Parts(run) as parts:
                total = -(-len(left) // size)
                shown = run.writer == 0
                for rows in console.progress(batches, total=total, what=what, shown=shown):
                    parts.add(rows.assign(image_hash=rows["sample_id"].map(hashes)))
                    done.update(rows["sample_id"])
            break
        except RuntimeError as error:
            if batch_size != "auto" or size == 1 or not should_reduce_batch_size(error):
                raise
        size //= 2
        del inputs, batches
        clear_device_cache(garbage_collection=True)
    run.note(batch_size=size)


def _inputs(
    subject: "Subject",
    data: "DataSet",
    batch_size: int,
    system: str | None,
    hashes: dict[str, str | None],
) -> "Iterator[tuple[Sequence[str], BatchFeature]]":
    """Sample ids and model inputs, batch by batch. ``hashes`` gets the image of each sample."""
    from normprobe.data.prefetch import prefetched

    model_type = subject.checkpoint.config.model_type
    for batch in prefetched(data, subject.processor, batch_size, system, model_type):
        hashes.update(batch.image_hashes)
        yield list(batch.image_hashes), batch.inputs


def note_skipped(run: "RunDir", data: "DataSet") -> None:
    """List what was left out, and say how much that is."""
    from dataclasses import asdict

    import pandas as pd

    if data.bad.skipped:
        place = {sample_id: place for place, sample_id in enumerate(data.ids)}
        # First what has no sample, as it was found when the data were opened. The others were
        # found by several processes, in batches of one size or another.
        skipped = sorted(data.bad.skipped, key=lambda row: place.get(row.sample or "", -1))
        table = pd.DataFrame([asdict(row) for row in skipped])
        table["row"] = table["row"].astype("Int64")  # no row at all is an empty field, not 3.0
        run.write_table("skipped", table)
        run.note(skipped=len(skipped))
        rows = "1 bad row" if len(skipped) == 1 else f"{len(skipped)} bad rows"
        console.talk(f"warning: {rows} left out, listed in skipped.csv")


class _Parts:
    """Writes rows to the run folder, about one part a second: small batches make few files."""

    def __init__(self, run: "RunDir") -> None:
        self._run = run
        self._rows: list[pd.DataFrame] = []
        self._due = 0.0

    def __enter__(self) -> "_Parts":
        return self

    def __exit__(self, *_: Any) -> None:
        # However the block ends, what is measured is kept.
        self._write()

    def add(self, rows: "pd.DataFrame") -> None:
        self._rows.append(rows)
        if time.monotonic() >= self._due:
            self._write()
            self._due = time.monotonic() + _SECONDS_A_PART

    def _write(self) -> None:
        import pandas as pd

        rows, self._rows = self._rows, []
        if rows:
            self._run.append(pd.concat(rows, ignore_index=True))


def note_confidence(run: "RunDir", rows: "pd.DataFrame") -> None:
    """Record what the intervals rest on, and say where that is little."""
    from normprobe.analyses.confidence import image_units
    from normprobe.probes.bootstrap import DRAWS, FEW_UNITS, LEVEL, SEED

    units = int(image_units(rows).nunique())
    run.note(intervals={"level": LEVEL, "units": units, "draws": DRAWS, "seed": SEED})
    if units < FEW_UNITS:
        unit = "image" if rows["image_hash"].notna().any() else "prompt"
        few = f"{units} {unit}{'' if units == 1 else 's'}"
        warning = f"{few}: intervals (_ci_low, _ci_high) need {FEW_UNITS} or more to be trusted"
        run.add_warning(warning)
        console.talk(f"note: {warning}")


def _collected(run: "RunDir", data: "DataSet") -> "pd.DataFrame":
    rows = run.rows()
    skipped = {row.sample for row in data.bad.skipped}
    if rows.empty:
        reasons = [row.reason for row in data.bad.skipped]
        left_out = f" that can be used; {len(reasons)} left out: {reasons[0]}" if reasons else ""
        raise NormprobeError(f"{data.name} holds no samples{left_out}", "pass another --data")
    place = {sample_id: place for place, sample_id in enumerate(data.ids)}
    missing = place.keys() - set(rows["sample_id"]) - skipped
    if missing:
        raise NormprobeError(
            f"{run.path} holds {len(place) - len(missing)} of {len(place)} samples: what another "
            "process measured is not there",
            "give an --output on a file system that all nodes share",
        )
    rows = rows.sort_values("sample_id", key=lambda ids: ids.map(place), kind="stable")
    images = rows.drop_duplicates("sample_id").set_index("sample_id")["image_hash"]
    run.note(image_hashes=images.to_dict())
    return rows.reset_index(drop=True)
