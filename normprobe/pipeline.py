"""A run as a pipeline: begin, ready, collect, finish.

with OverSamples(source, layers, options, output, sampling).begin() as pipeline:
    pipeline.ready(align="table")     # the model, and what the run records of it
    rows = pipeline.collect()         # of all samples
    pipeline.finish(lambda: pipeline.tables(rows))
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Any, Self

import pandas as pd
import torch

from normprobe.data.data_set import DataSet, open_data
from normprobe.errors import NormprobeError
from normprobe.inputs.on_device import dtype_of, inputs_for, named_inputs
from normprobe.inputs.pixel_hash import pixel_digest
from normprobe.inputs.prefetch import batches
from normprobe.inputs.processor import classes_of
from normprobe.measurements import over_samples
from normprobe.measurements.measurement import Measurement, SampleMeasurement
from normprobe.model.align.target import PROMPT, aligned
from normprobe.model.find.overrides import DISCRETE, OVERRIDES
from normprobe.model.load.loading import device_and_dtype
from normprobe.model.load.required_tensors import Needs, everything
from normprobe.model.measured_model import MeasuredModel
from normprobe.model.tracing.trace import traced_example
from normprobe.options import TENSOR_PARALLEL, Output, Sampling
from normprobe.run import Run, finished, finished_later
from normprobe.runs.begin import doubt, note_weights, start_run, warn
from normprobe.runs.collecting import (
    collect,
    long_prompt,
    norm_maps,
    note_confidence,
    note_unused_inputs,
)
from normprobe.runs.facts import (
    note_buffers,
    note_model,
    note_parts,
    note_recomputed,
    note_verified,
)
from normprobe.runs.fingerprints import tensor_digests
from normprobe.runs.model_source import ModelSource, example_inputs
from normprobe.runs.processes import join_processes, naming_the_run
from normprobe.runs.run_folder import RunStore
from normprobe.schema import BARE_VISION_ENCODER, LANGUAGE_MODEL, TEXT, TURN

log = logging.getLogger(__name__)

Tables = Callable[[], Mapping[str, pd.DataFrame]]

#: What a record calls the data of a batch that was given.
INPUTS = "fixed inputs"


class Pipeline:
    """A run of a model, from its record to its figures."""

    run: RunStore  # what it holds, from ``begin`` on
    model: MeasuredModel  # what is measured, from ``ready`` on
    _can_wait = False  # the tables, until somebody asks for one

    def __init__(
        self,
        source: ModelSource,
        measured_by: Measurement,
        options: Mapping[str, Any],
        output: Output,
        samples: DataSet | Sequence[Any] = (),
    ) -> None:
        _require_kind(source, measured_by)
        self.source = source
        self.measured_by = measured_by
        self.samples = samples
        self._options = {**source.loading.record, **options}
        self._output = output
        self._device = ""  # of this process, where several share a run
        self._until_finished = ExitStack()

    @contextmanager
    def begin(self) -> Iterator[Self]:
        """Open the run before anything slow is done; what fails before any rows leaves nothing."""
        self.run = self._start()
        with naming_the_run(self.run), self.run.discarded_on_failure(), self._until_finished:
            yield self

    def ready(self, *, verify: bool = False, align: str | float | None = None) -> MeasuredModel:
        """Load the model; verify and align it where that is asked for; record what it is."""
        needs = [everything] if verify else self._needs()
        self.model = model = self.source.measured(
            needs, self._examples(), self._device, runs=self.measured_by.runs_model
        )
        self._note_weights()
        if verify:
            self._verify()
        if align is not None:
            aligned = aligned_for(self.run, model, align, self._alignment_examples(align))
            self._until_finished.enter_context(aligned)
        self._look_further()
        self.run.note(bridges=list(self.source.bridges), prepared=self.source.prepared)
        self.run.note(model_type=self.source.facts["model_type"])
        notes = [] if self.source.plan is None else [*self.source.plan.notes]
        sees = model.parts.vision_encoder or model.parts.projector
        if isinstance(self.samples, DataSet):
            notes += self.source.builder.left_out if sees else self._unseen(self.samples)
        for warning in note_model(self.run, model, self.source.weights_record, notes):
            log.warning("warning: %s", warning)
        if self.source.doubt:
            doubt(self.run, self.source.doubt)
        self._started = time.perf_counter()
        return model

    def _unseen(self, samples: DataSet) -> list[str]:
        """A note where samples have pictures, and nothing was found that sees them."""
        parts = self.model.parts
        looked_up = parts.visual_embedding is not None or parts.fusion == DISCRETE
        if looked_up or self.source.is_told_inputs or not samples.has_images:
            return []
        return [
            f"no vision encoder and no projector found: pictures of {samples.name} are left out"
        ]

    def _look_further(self) -> None:
        """Before a run over samples: what it will miss, and whose numbers it adds."""

    def finish(self, tables: Tables) -> Run:
        """Write the tables, draw the figures, call the run complete."""
        note_parts(self.run, self.model)
        if self.model.doubt:
            doubt(self.run, self.model.doubt)
        before, now = self.source.dtype, device_and_dtype(self.model.model)[1]
        if now != before:
            self.run.note(dtype=now)
            doubt(self.run, f"the model's own forward casts its weights from {before} to {now}")
        if self._can_wait:
            return finished_later(self.run, tables, self._started)
        return finished(self.run, tables(), self._started)

    def _start(self) -> RunStore:
        data = self.samples if isinstance(self.samples, DataSet) else None
        facts, name = self.source.facts, self.measured_by.name
        return start_run(name, facts, self._options, self._output, data)

    def _needs(self) -> list[Needs]:
        return [] if self.measured_by.needs is None else [self.measured_by.needs]

    def _examples(self) -> Iterator[Mapping[str, Any]]:
        """Inputs with an image, made where a trace asks for them."""
        yield example_inputs(self.source.builder, self.samples)

    def _alignment_examples(self, target: str | float) -> list[Mapping[str, Any]]:
        """Inputs that an alignment target is measured on, on the model's device."""
        found = [*self._examples()]
        if target == PROMPT:
            found = [*islice(self._prepared(), _ALIGNMENT_SAMPLES)]
        return [inputs_for(self.model.model, inputs) for inputs in found]

    def _first(self) -> Mapping[str, Any]:
        """Inputs of the first sample that the processor takes, on the model's device."""
        for inputs in self._prepared():
            return inputs_for(self.model.model, inputs)
        raise NormprobeError("the processor takes no sample of the data", "pass other --data")

    def _prepared(self) -> Iterator[Mapping[str, Any]]:
        """Inputs of each sample that the processor takes."""
        assert isinstance(self.samples, DataSet)
        for _, inputs in batches(self.samples, self.source.builder, 1, bad=self.samples.bad):
            yield inputs

    def _note_weights(self) -> None:
        """Record the weights that are measured, where the run is kept."""
        shared = self.source.loading.device == TENSOR_PARALLEL  # then all have to ask
        if self.run.path is not None and (self.run.writer == 0 or shared):
            self._note_digests()

    def _note_digests(self) -> None:
        for needs in self._needs():
            names = needs(self.model.model, self.model.parts)
            note_weights(self.run, tensor_digests(self.model.model, names))

    def _verify(self) -> None:
        """Check buffers, parts and one batch of numbers on ways of their own."""
        model, example = self.model, next(self._examples())
        note_buffers(self.run, self.source.changed_buffers())
        traced = traced_example(model.model, model.parts, example)
        note_verified(self.run, model.parts, traced)
        if self.measured_by.recomputed is not None:
            inputs = inputs_for(model.model, example)
            found = self.measured_by.recomputed.differences(model, inputs, traced)
            note_recomputed(self.run, found, dtype_of(model.model) or torch.float32)


class _OfSamples(Pipeline):
    """A run of a measurement over samples."""

    measured_by: SampleMeasurement

    def _look_further(self) -> None:
        for remark in self.measured_by.remarks(self.model, self._first):
            warn(self.run, remark)
        if facts := self.measured_by.facts(self.model, self._first):
            self.run.note(**facts)
        if own := self.measured_by.own_numbers:
            before = self.run.record.get("own_numbers", own)
            changed = [name for name in own if before.get(name) != own[name]]
            if changed:
                raise NormprobeError(
                    f"the code of {changed[0]} is another one than when the run began",
                    "put the file back, or begin a new run",
                )
            self.run.note(own_numbers=own)

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """What the rows say."""
        return self.measured_by.tables(rows, self.model)


class OverSamples(_OfSamples):
    """A run over the samples of a data set, which several processes may share."""

    samples: DataSet

    def __init__(
        self,
        source: ModelSource,
        measured_by: SampleMeasurement,
        options: Mapping[str, Any],
        output: Output,
        sampling: Sampling,
        only: Collection[str] | None = None,
    ) -> None:
        super().__init__(source, measured_by, {**options, **vars(sampling)}, output)
        self.samples = open_data(sampling.data, **sampling.draw)
        self._sampling, self._only = sampling, only
        self._pictures = options.get("map")
        data = f"--data {sampling.data}"
        _require_fitting(source, measured_by, self.samples, data)
        if only is not None and (absent := set(only) - set(self.samples.ids)):
            raise NormprobeError(
                f"{data} holds no sample {min(absent)}", "pass the data that it belongs to"
            )
        if self._pictures is not None:
            _require_pictures(measured_by, data, has_images=self.samples.has_images)

    def collect(self) -> pd.DataFrame:
        """The rows of all samples, those measured before among them."""
        builder, sampling = self.source.builder, self._sampling
        by_turn = self._options.get("by") == TURN
        builder = replace(builder, by_turn=True) if by_turn else builder
        self.run.note(processor=classes_of(builder.processor))
        rows = collect(
            self.run, self.model, self.samples, builder, self.measured_by, sampling, self._only
        )
        if by_turn and self._only is None and not (rows["group"] == TURN).any():
            warn(self.run, "no turns.csv: no sample has several turns that the decoder's rows show")
        return rows

    def tables(self, rows: pd.DataFrame) -> Mapping[str, pd.DataFrame]:
        """What the rows say, and maps of the first pictures."""
        tables = dict(super().tables(rows))
        if self._pictures is not None:
            draw = self.measured_by.norm_map
            builder, pictures = self.source.builder, self._pictures
            tables |= norm_maps(self.run, self.model, self.samples, builder, draw, rows, pictures)
        return tables

    def _start(self) -> RunStore:
        if self.source.loading.device == TENSOR_PARALLEL and (
            self.measured_by.name != "layers" or self._options.get("map") is not None
        ):  # these need the model when the other processes have ended
            raise NormprobeError(
                "--device tp measures layers, without --map",
                "pass --device balanced, in one process",
            )
        processes = join_processes(self.source.loading.device)
        self._device = processes.device
        return processes.shared(super()._start)

    def _note_weights(self) -> None:
        if self._only is None:
            super()._note_weights()
        else:  # measured again, to be compared with a run that is kept
            self._note_digests()


class FixedInputs(_OfSamples):
    """A run of batches as the model's processor, or a script, made them."""

    def __init__(
        self,
        source: ModelSource,
        measured_by: SampleMeasurement,
        options: Mapping[str, Any],
        output: Output,
        batches: Callable[[], Sequence[Any]],
    ) -> None:
        super().__init__(source, measured_by, {**options, "data": INPUTS}, output)
        if measured_by.reads_samples:
            raise NormprobeError(
                f"{measured_by.name} measures samples; received a batch that a processor made",
                f"pass the name or path of data, such as data={measured_by.data!r}",
            )
        if options.get("map") is not None:
            _require_pictures(measured_by, INPUTS, has_images=False)
        if options.get("by"):
            raise NormprobeError(
                "nobody knows which turn a token of fixed inputs is of",
                "leave by out, or pass data",
            )
        self._batches = batches
        self._can_wait = measured_by.tables_can_wait and output.output is None

    def ready(self, *, verify: bool = False, align: str | float | None = None) -> MeasuredModel:
        """As of any run; a script loads its model when it makes the batches."""
        _ = self._given
        return super().ready(verify=verify, align=align)

    def collect(self) -> pd.DataFrame:
        """The rows of all batches."""
        self.run.note(data=INPUTS)
        inputs = self._first()
        note_unused_inputs(self.run, self.model, inputs)
        if too_long := long_prompt(self.model, inputs):
            warn(self.run, too_long)
        found = [self.measured_by.sample_rows(self.model, inputs, None).assign(image_hash=None)]
        for number, named in enumerate(self._named[1:], 2):
            rows = self.measured_by.sample_rows(self.model, inputs_for(self.model.model, named))
            names = [f"{number}.{name}" for name in rows["sample_id"]]
            found.append(rows.assign(sample_id=names, image_hash=pixel_digest(named)))
        if found[1:]:  # questions about one picture are no pictures of their own
            found[0]["image_hash"] = pixel_digest(self._named[0])
        rows = pd.concat(found, ignore_index=True)
        self.run.append(rows)
        if self.measured_by.intervals:
            note_confidence(self.run, rows)
        else:
            self.run.note(intervals=None)
        if not self.model.knows_special and TEXT in set(rows.get("group", ())):
            warn(
                self.run,
                "no tokenizer is known: special tokens, such as marks of a turn, count as text; "
                "pass Probe(model, processor), or their ids by special_token_ids",
            )
        return rows

    def _examples(self) -> Iterator[Mapping[str, Any]]:
        yield self._named[0]

    def _alignment_examples(self, target: str | float) -> list[Mapping[str, Any]]:
        return [self._first()]

    def _first(self) -> Mapping[str, Any]:
        return inputs_for(self.model.model, self._named[0])

    @cached_property
    def _named(self) -> list[dict[str, Any]]:
        """The batches by the names of the model's forward, as soon as the model is loaded."""
        return [named_inputs(self.source.model, batch) for batch in self._given]

    @cached_property
    def _given(self) -> Sequence[Any]:
        return self._batches()


def _require_kind(source: ModelSource, measured_by: Measurement) -> None:
    """Refuse a checkpoint that a measurement makes no sense of."""
    kind, kinds = source.kind, measured_by.kinds
    if kind is not None and kinds and kind not in kinds:
        raise NormprobeError(
            f"{source.name} is a {kind}; {measured_by.name} needs a {' or '.join(kinds)}",
            f"measure the side that exists: normprobe interface {source.argument}; "
            "--part kind=KIND says what a model is, where its config does not",
        )


def _require_fitting(
    source: ModelSource, measured_by: SampleMeasurement, samples: DataSet, data: str
) -> None:
    """Refuse images for a language model's layers, and text for a vision encoder."""
    kind, model_type = source.kind, source.facts["model_type"]
    if OVERRIDES.get(model_type, {}).get("videos_only"):
        raise NormprobeError(
            f"{source.name} ({model_type}) reads videos; {measured_by.name} measures images",
            "`normprobe embeddings` and `normprobe inspect` work without images",
        )
    sees_none = kind == LANGUAGE_MODEL and not source.is_told_inputs
    if sees_none and measured_by.text_alone and samples.has_images:
        raise NormprobeError(
            f"{source.name} is a {kind}, and the samples of {data} hold images",
            "pass --data text, measure the side that exists: normprobe interface "
            f"{source.argument}, or say --part kind=vision-language, if it reads images",
        )
    needs_images = kind == BARE_VISION_ENCODER or measured_by.needs_images
    if needs_images and not samples.has_images:
        bare = f"{source.name} is a {kind}" if kind == BARE_VISION_ENCODER else ""
        raise NormprobeError(
            f"{bare or measured_by.name + ' is about pictures'}, and the samples of {data} hold no "
            "images",
            "pass --data with images, such as --data sample",
        )


def _require_pictures(measured_by: SampleMeasurement, data: str, *, has_images: bool) -> None:
    """Refuse a map of what draws none, or where no picture is at hand."""
    if "map" not in measured_by.options:
        able = [name for name, offered in over_samples().items() if "map" in offered.options]
        raise NormprobeError(
            f"{measured_by.name} draws no map", f"leave map out, or use {' or '.join(able)}"
        )
    if not has_images:
        raise NormprobeError(
            f"--map lays norms over pictures; {data}: no pictures",
            "leave --map out, or pass --data with images, such as --data sample",
        )


#: Samples that an alignment target is measured on: the prompts of a data set differ little.
_ALIGNMENT_SAMPLES = 16


@contextmanager
def aligned_for(
    run: RunStore, model: MeasuredModel, target: str | float, examples: Sequence[Mapping[str, Any]]
) -> Iterator[None]:
    """Align a model inside the block, and record how."""
    with aligned(model, _number_or_name(target), examples) as alignment:
        facts = {name: value for name, value in vars(alignment).items() if name != "norm"}
        run.note(alignment=facts | {"hidden_size": alignment.norm.normalized_shape[0]})
        if alignment.scale is None:
            warn(
                run,
                "behind the projector the model does more than scale visual tokens (it adds "
                "positions or normalises): their norm at the decoder input is not the target",
            )
        yield


def _number_or_name(target: str | float) -> str | float:
    try:
        return float(target)
    except ValueError:
        return target
