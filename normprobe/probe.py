"""``Probe``: a model that is ready to be measured. The command line is this in words.

probe = Probe("org/model")                 # a hub id, a folder, or a model in memory
run = probe.layers(data="mmbench")         # a Run: .table, .verdict, .figures(), .save()
probe.layers(inputs).table                 # one batch of the processor, in memory
"""

import logging
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from torch import nn

from normprobe.data.data_set import DataSet, open_data
from normprobe.data.sample import Picture, Sample, as_sample
from normprobe.errors import NormprobeError
from normprobe.inputs.inputs_file import NO_INPUTS_FILE, read_inputs_file
from normprobe.inputs.on_device import inputs_for
from normprobe.measurements import (
    NAMES,
    Measurement,
    is_measurement,
    measurement,
    measurements,
)
from normprobe.model.checkpoint import (
    LANGUAGE_MODEL,
    VISION_ENCODER,
    is_here,
    open_checkpoint,
)
from normprobe.model.find.overrides import OVERRIDES
from normprobe.model.find.parts import Parts
from normprobe.model.load.device import check_dtype
from normprobe.model.load.required_tensors import Needs, everything
from normprobe.model.measured_model import MeasuredModel
from normprobe.model.tracing.trace import traced_example
from normprobe.paper.numbers import tokens_of
from normprobe.run import Run, finished, finished_later
from normprobe.runs.begin import Output, doubt, note_model, start_run, warn
from normprobe.runs.collecting import BatchSize, collect, norm_maps, note_confidence
from normprobe.runs.fingerprints import tensor_digests
from normprobe.runs.model_source import CheckpointSource, MemorySource, example_inputs
from normprobe.runs.preparing import (
    aligned_for,
    alignment_examples,
    first_inputs,
    long_prompt,
    note_buffers,
    note_recomputed,
    note_verified,
)
from normprobe.runs.processes import join_processes, naming_the_run
from normprobe.runs.resuming import note_weights
from normprobe.runs.run_folder import RunFolder, RunStore, image_name

log = logging.getLogger(__name__)

#: What a record calls the data of a batch that was given.
_INPUTS = "fixed inputs"

_Given = ParamSpec("_Given")
_Found = TypeVar("_Found")


def _undisturbed(
    method: Callable[Concatenate["Probe", _Given], _Found],
) -> Callable[Concatenate["Probe", _Given], _Found]:
    """A method that no other probe of the model runs beside, and that draws no random number."""

    @wraps(method)
    def alone(self: "Probe", /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Found:
        with self._source.lock, _same_random_numbers():
            return method(self, *args, **kwargs)

    return alone


class Probe:
    """A model that is ready to be measured, as often as wanted.

    Parts and structural tokens are found once. Of a checkpoint no more is loaded than the
    measurements read; a measurement that reads more loads it then.

    What other threads run on a model in memory passes untouched, as they would without the probe.
    Several probes of it measure one after the other. Random numbers that are drawn afterwards are
    those that would have been drawn without it.

    Args:
        model: ``specimen`` (bundled), a local folder, a hub id, or a transformers model in memory.
        processor: of a model in memory, where samples are measured; of a checkpoint: its own.
        revision: branch, tag or commit of a hub id.
        trust_remote_code: run the checkpoint's own code.
        device: ``auto``, cpu, cuda, cuda:1 or mps. A model in memory stays where it is.
        dtype: ``auto`` (as saved), float32, bfloat16 or float16.
        device_map: ``auto``: spread over devices with accelerate.
        attn_implementation: sdpa, eager, flash_attention_2.
        range_reads: fetch the needed bytes of a hub model, not whole files.
        kind: ``vision-language``, ``vision-encoder`` or ``language``: what a checkpoint is, where
            its config does not tell.
        named: parts named by hand: dotted names by role, and ``image_token_ids``.
        system: system prompt; ``none`` for none; None: the chat template's.
        allow_long_prompts: measure samples whose prompt has more tokens than the model has
            positions.
        special_token_ids: ids to report as ``special`` rather than ``text``; None: those of the
            tokenizer.
        inputs: a Python file that says how the model takes its inputs, as ``inputs.inputs_file``
            describes it.

    Raises:
        NormprobeError: there is no such checkpoint, or its config or ``inputs`` cannot be read.
    """

    def __init__(
        self,
        model: str | Path | nn.Module = "specimen",
        processor: Any = None,
        *,
        revision: str | None = None,
        trust_remote_code: bool = False,
        device: str = "auto",
        dtype: str = "auto",
        device_map: str | None = None,
        attn_implementation: str | None = None,
        range_reads: bool = False,
        kind: str | None = None,
        named: Mapping[str, Any] | None = None,
        system: str | None = None,
        allow_long_prompts: bool = False,
        special_token_ids: Iterable[int] | None = None,
        inputs: str | Path | None = None,
    ) -> None:
        inputs_file = NO_INPUTS_FILE if inputs is None else read_inputs_file(inputs)
        check_dtype(dtype)
        common: dict[str, Any] = {
            "inputs_file": inputs_file,
            "named": named,
            "system": system,
            "allow_long_prompts": allow_long_prompts,
            "special_token_ids": special_token_ids,
        }
        loading: dict[str, Any] = {
            "device": device,
            "dtype": dtype,
            "device_map": device_map,
            "attn_implementation": attn_implementation,
            "range_reads": range_reads,
        }
        self._source: MemorySource | CheckpointSource
        if isinstance(model, nn.Module):
            self._source = MemorySource(model, processor, **common)
        else:
            _refuse_hub_options(str(model), {"revision": revision, "range-reads": range_reads})
            checkpoint = open_checkpoint(
                str(model),
                revision=revision,
                trust_remote_code=trust_remote_code,
                inputs_file=inputs_file,
                kind=kind,
            )
            self._source = CheckpointSource(checkpoint, processor, **loading, **common)
        self._typed = None if isinstance(model, nn.Module) else str(model)
        self._device, self._device_map = device, device_map
        self._options = {
            "model": self._typed,
            "revision": revision,
            "trust_remote_code": trust_remote_code,
            "kind": kind,
            "inputs": None if inputs is None else str(inputs),
            "system": system,
            "allow_long_prompts": allow_long_prompts,
            **loading,
            **(named or {}),
        }

    @property
    def name(self) -> str:
        """What the model is called in run folders and titles."""
        return str(self._source.facts["model"])

    @property
    def fetched_bytes(self) -> int | None:
        """Bytes of weights that were fetched so far; None where that is unknown."""
        return self._source.fetched

    @property
    @_undisturbed
    def parts(self) -> Parts:
        """Where the model keeps its vision encoder, projector, decoder layers and tables.

        Raises:
            NormprobeError: the model cannot be loaded, or its parts are not found.
        """
        return self._source.measured([]).parts

    @_undisturbed
    def load(self, *names: str) -> "Probe":
        """Load what some measurements read, rather than when the first of them asks for it.

        Args:
            *names: of measurements, such as ``layers``; none: the whole model.

        Returns:
            The probe itself.

        Raises:
            NormprobeError: there is no such measurement, or the model cannot be loaded.
        """
        if unknown := [name for name in names if not is_measurement(name)]:
            raise NormprobeError(
                f"there is no measurement {unknown[0]}: expected one of {', '.join(NAMES)}",
                "pass no name to load the whole model",
            )
        needs = [needs for name in names if (needs := measurement(name).needs)] or [everything]
        runs = not names or any(measurement(name).runs_model for name in names)
        self._source.measured(needs, runs=runs)
        return self

    def layers(self, data: str | Mapping[str, Any] = "sample", **options: Any) -> Run:
        """Norm, cosine, angle and update of every decoder layer. Arguments are of ``measure``."""
        return self.measure("layers", data, **options)

    def interface(self, data: str | Mapping[str, Any] = "sample", **options: Any) -> Run:
        """Norms from the vision encoder to the decoder input. Arguments are of ``measure``."""
        return self.measure("interface", data, **options)

    def grounding(self, data: str = "boxes", **options: Any) -> Run:
        """A word against the visual tokens that it means. Arguments are of ``measure``."""
        return self.measure("grounding", data, **options)

    @_undisturbed
    def measure(
        self,
        name: str,
        data: str | Mapping[str, Any] | None = None,
        *,
        prompt: str | None = None,
        batch_size: BatchSize = 1,
        workers: int | None = None,
        limit: int | None = None,
        seed: int = 42,
        skip_bad: bool = False,
        align: str | float | None = None,
        map_pictures: int | None = None,
        verify: bool = False,
        branches: bool = False,
        massive: bool = False,
        output: Output = None,
        overwrite: bool = False,
        resume: bool = False,
        only: Collection[str] | None = None,
    ) -> Run:
        """Run the model over samples.

        Args:
            name: of a measurement over samples: ``layers``, ``interface`` or ``grounding``.
            data: what ``--data`` takes: ``sample`` (bundled), ``text``, a benchmark, a file or a
                folder; or one batch, as the model's processor returned it; None: the bundled data
                that the measurement is for.
            prompt: of every image, where the data are a folder of images; None: a neutral one.
            batch_size: samples a forward; ``auto``: as many as fit.
            workers: processes that decode pictures, 0: none but this one; None: half of the cores.
            limit: draw this many samples.
            seed: of the draw.
            skip_bad: leave bad rows out and list them.
            align: measure with a norm behind the projector, untrained: ``table`` (the mean norm of
                the text embedding), ``prompt`` (that of the prompts) or a number. The model is as
                it was afterwards.
            map_pictures: lay the norms of visual tokens over so many pictures of the samples, the
                first ones; None: no map.
            verify: compare the parts with a trace of the running model, buffers with a fresh build,
                and the numbers of one sample with recomputed ones.
            branches: of ``layers``, also what attention and MLP write, each by itself.
            massive: of ``layers``, also the largest dimensions of the states, massive tokens, and
                norm, cosine and angle without them.
            output: the run folder; ``auto``: below ``runs/``; None: the run stays in memory.
            overwrite: replace a run folder that exists.
            resume: go on with an unfinished run in ``output``; of ``auto``, the last one.
            only: ids of samples that are measured, each in the batch that it has among all; None:
                all are.

        Raises:
            NormprobeError: whatever of these fails; nothing is written before the run is due.
            SystemExit: in all but the main process of several, whose work is done.
        """
        asked = {"branches": branches, "massive": massive}
        watching = [watcher for watcher in asked if asked[watcher]]
        measured_by = _over_samples(name).looking_at(watching)
        self._require_kind(measured_by)
        options = {
            **self._options,
            "batch_size": batch_size,
            "skip_bad": skip_bad,
            "align": align,
            "map_pictures": map_pictures,
            "verify": verify,
            **dict.fromkeys(watching, True),
        }
        begin: dict[str, Any] = {"output": output, "overwrite": overwrite, "resume": resume}
        data = measured_by.data if data is None else data
        if isinstance(data, Mapping):
            _refuse_inputs(measured_by)
            if map_pictures is not None:
                _require_pictures(measured_by, _INPUTS, has_images=False)
            return self._measure_inputs(measured_by, data, options | {"data": _INPUTS}, begin)
        options |= {"data": data, "prompt": prompt, "limit": limit, "seed": seed}
        samples = open_data(data, prompt=prompt, limit=limit, seed=seed, skip_bad=skip_bad)
        self._require_fitting(measured_by, samples, data)
        if only is not None and (absent := set(only) - set(samples.ids)):
            raise NormprobeError(
                f"--data {data} holds no sample {min(absent)}", "pass the data that it belongs to"
            )
        if map_pictures is not None:
            _require_pictures(measured_by, f"--data {data}", has_images=samples.has_images)
        processes = join_processes(self._device, self._device_map)
        run = processes.shared(
            lambda: start_run(name, self._source.facts, options, data=samples, **begin)
        )
        with naming_the_run(run), ExitStack() as until_measured:
            with run.discarded_on_failure():
                model = self._ready(measured_by, samples, verify=verify, device=processes.device)
                builder = self._source.builder
                self._note_weights(run, measured_by, model, in_memory=only is not None)
                if verify:
                    self._verify(run, measured_by, model, example_inputs(builder, samples))
                if align is not None:
                    examples = alignment_examples(builder, model, align, samples)
                    until_measured.enter_context(aligned_for(run, model, align, examples))
                if watching:
                    first = first_inputs(builder, model, samples)
                    _warn_of(run, measured_by.remarks(model, first))
                self._note(run, model)
            started = time.perf_counter()
            rows = collect(run, model, samples, builder, measured_by, batch_size, workers, only)
            with run.discarded_on_failure():
                _doubt_parts(run, model)
                tables = measured_by.tables(rows, model)
                if map_pictures is not None:
                    drawn = measured_by.module("norm_map").norm_map
                    tables |= norm_maps(run, model, samples, builder, drawn, rows, map_pictures)
                return finished(run, tables, started)

    def _measure_inputs(
        self,
        measured_by: Measurement,
        inputs: Mapping[str, Any],
        options: Mapping[str, Any],
        begin: Mapping[str, Any],
    ) -> Run:
        """Measure one batch that a processor made."""
        run = start_run(measured_by.name, self._source.facts, options, **begin)
        run.note(data=_INPUTS)
        with run.discarded_on_failure(), ExitStack() as until_measured:
            model = self._ready(measured_by, inputs=inputs, verify=options["verify"])
            self._note_weights(run, measured_by, model)
            on_device = inputs_for(model.model, inputs)
            if options["verify"]:
                self._verify(run, measured_by, model, on_device)
            if options["align"] is not None:
                aligned_model = aligned_for(run, model, options["align"], [on_device])
                until_measured.enter_context(aligned_model)
            started = time.perf_counter()
            self._note(run, model)
            _warn_of(run, measured_by.remarks(model, on_device))
            if too_long := long_prompt(model, on_device):
                warn(run, too_long)
            rows = measured_by.sample_rows(model, on_device, None).assign(image_hash=None)
            _doubt_parts(run, model)
            run.append(rows)
            note_confidence(run, rows)
            if measured_by.tables_from_rows and run.path is None:
                return finished_later(run, lambda: measured_by.tables(rows, model), started)
            tables = measured_by.tables(rows, model)
            return finished(run, tables, started)

    @_undisturbed
    def embeddings(
        self,
        *,
        top: int = 10,
        base: "Probe | str | None" = None,
        output: Output = None,
        overwrite: bool = False,
    ) -> Run:
        """Norms of the embedding tables, and the tokens that stand out.

        Args:
            top: how many tokens with the largest and smallest norms to name.
            base: the language model that it was trained from: how far has the table moved?
            output: as in ``measure``, like ``overwrite``.
            overwrite: replace a run folder that exists.

        Raises:
            NormprobeError: there is no text embedding table, or it cannot be read.
        """
        from normprobe.measurements.embeddings.measure import measure_embeddings, text_table

        measured_by = measurement("embeddings")
        if isinstance(base, str):
            base = self._beside(base)
        options = {**self._options, "top": top, "base": base and base._typed}
        run = start_run(
            "embeddings", self._source.facts, options, output=output, overwrite=overwrite
        )
        with run.discarded_on_failure():  # nothing is kept of a table that cannot be read
            older = None
            if base is not None:
                other = base._ready(measured_by)
                if other.parts.text_embedding is None:
                    raise NormprobeError(
                        "the base model has no text embedding table",
                        "pass a language model as --base",
                    )
                older = text_table(other, base._source.tokenizer)
                run.note(base=base.name, base_revision=base._source.facts["model_revision"])
            model = self._ready(measured_by)
            self._note_weights(run, measured_by, model)
            started = time.perf_counter()
            self._note(run, model)
            table = text_table(model, self._source.tokenizer)
            tables = measure_embeddings(model, table, top, older, tokens_of(self.name))
            return finished(run, tables, started)

    @_undisturbed
    def attention(
        self,
        image: Picture | Sequence[Picture] | Sample,
        prompt: str = "",
        *,
        words: Sequence[str] = (),
        layers: Sequence[int] = (),
        box: tuple[float, float, float, float] | None = None,
        output: Output = None,
        overwrite: bool = False,
    ) -> Run:
        """How much the text of one prompt attends to its image, or images, and where.

        Args:
            image: a picture or its file, several of them, or a sample of a data set.
            prompt: the question about it; empty: that of the sample. Several images stand before
                it, or where it holds a mark ``<image>`` for each.
            words: words or phrases of the prompt to follow.
            layers: whose heat maps to keep, from 1; none: a few of all depths.
            box: target region: left, top, right, bottom in pixels of the image.
            output: as in ``measure``, like ``overwrite``.
            overwrite: replace a run folder that exists.

        Raises:
            NormprobeError: the model is no vision-language model, or as ``measure_attention``.
        """
        from normprobe.measurements.attention.measure import attention_of, check_request

        measured_by = measurement("attention")
        sample = as_sample(image, prompt)
        self._require_kind(measured_by)
        count = self._source.decoder_layer_count() if layers else None
        check_request(self._source.builder, sample, words, layers, box, decoder_layers=count)
        options = {
            **self._options,
            "image": sample.id,
            "prompt": sample.prompt,
            "word": list(words),
            "layer": list(layers),
            "box": box,
        }
        run = start_run(
            "attention", self._source.facts, options, output=output, overwrite=overwrite
        )
        with run.discarded_on_failure():  # a single forward: nothing is kept of a failure
            model = self._ready(measured_by, [sample])
            self._note_weights(run, measured_by, model)
            started = time.perf_counter()
            self._note(run, model)
            builder = self._source.builder
            found = attention_of(model, builder, sample, words=words, layers=layers, box=box)
            _doubt_parts(run, model)
            run.note(
                data=sample.id,
                image_hashes={sample.id: sample.image_hash},
                places=found.places if found.images is not None else found.places[0],
            )
            tables = {"attention": found.table, "heads": found.heads}
            if found.images is not None:
                tables["images"] = found.images
            if found.heatmaps is not None:
                tables["heatmaps"] = found.heatmaps
                for number, image in enumerate(sample.images, start=1):
                    run.write_image(image_name(number), image)
            for number, place in enumerate(found.places, start=1):
                if isinstance(place, str):
                    of_image = f" of image {number}" if found.images is not None else ""
                    without_box = "; no signal-to-noise of --box either" if box is not None else ""
                    warn(run, f"no heat maps{of_image}: {place}{without_box}")
            return finished(run, tables, started)

    @_undisturbed
    def align(
        self,
        target: str | float = "table",
        data: str = "sample",
        *,
        limit: int | None = None,
        seed: int = 42,
        output: Output = None,
        overwrite: bool = False,
    ) -> Run:
        """The norm that gives visual tokens the norm of text, to train with (Section 5).

        With ``output`` it is saved there as an adapter, which ``Probe`` and ``load_aligned`` take.
        The model itself is left as it is.

        Args:
            target: as ``align`` of ``measure``.
            data: whose first samples the target is measured on.
            limit: as in ``measure``, like the three that follow.
            seed: of the draw.
            output: the folder of the adapter.
            overwrite: replace a run folder that exists.

        Raises:
            NormprobeError: where alignment makes no sense, or the target cannot be measured.
        """
        from normprobe.measurements.align.measure import alignment_table, save_adapter

        measured_by = measurement("align")
        self._require_kind(measured_by)
        options = {**self._options, "target": target, "data": data, "limit": limit, "seed": seed}
        samples = open_data(data, limit=limit, seed=seed)
        run = start_run(
            "align",
            self._source.facts,
            options,
            data=samples,
            output=output,
            overwrite=overwrite,
        )
        with run.discarded_on_failure():
            model = self._ready(measured_by, samples)
            examples = alignment_examples(self._source.builder, model, target, samples)
            with aligned_for(run, model, target, examples):
                self._note(run, model)
                if isinstance(run, RunFolder):
                    save_adapter(run, model, *self._source.opened_by)
            run.write_table("align", alignment_table(run.record["alignment"]))
            run.finish()
        return Run(run)

    def _ready(
        self,
        measured_by: Measurement,
        samples: "DataSet | Sequence[Any]" = (),
        *,
        inputs: Mapping[str, Any] | None = None,
        verify: bool = False,
        device: str = "",
    ) -> MeasuredModel:
        """The model with what a measurement reads of it."""
        needs: list[Needs] = [everything] if verify else []
        if measured_by.needs is not None and not verify:
            needs = [measured_by.needs]

        def examples() -> Iterator[Mapping[str, Any]]:
            yield example_inputs(self._source.builder, samples) if inputs is None else inputs

        return self._source.measured(needs, examples(), device, runs=measured_by.runs_model)

    def _verify(
        self, run: RunStore, offered: Measurement, model: MeasuredModel, example: Mapping[str, Any]
    ) -> None:
        """Check buffers, parts and one batch of numbers on ways of their own."""
        note_buffers(run, self._source.changed_buffers())
        traced = traced_example(model.model, model.parts, example)
        note_verified(run, model.parts, traced)
        if offered.has("recomputed"):
            inputs = inputs_for(model.model, example)
            found = offered.module("recomputed").differences(model, inputs, traced)
            note_recomputed(run, found, model.model.dtype)

    def _note_weights(
        self,
        run: RunStore,
        measured_by: Measurement,
        model: MeasuredModel,
        *,
        in_memory: bool = False,
    ) -> None:
        """Record the weights that a run measures, of one in memory only where that is asked for."""
        kept = run.path is not None or in_memory
        if kept and run.writer == 0 and measured_by.needs is not None:
            names = measured_by.needs(model.model, model.parts)
            note_weights(run, tensor_digests(model.model, names))

    def _note(self, run: RunStore, model: MeasuredModel) -> None:
        run.note(bridges=self._source.bridges, prepared=self._source.prepared)
        notes = () if self._source.plan is None else self._source.plan.notes
        for warning in note_model(run, model, self._source.weights_record, notes):
            log.warning("warning: %s", warning)

    def _require_kind(self, measured_by: Measurement) -> None:
        """Refuse a checkpoint that a measurement makes no sense of."""
        kind, kinds = self._source.kind, measured_by.kinds
        if kind is not None and kinds and kind not in kinds:
            raise NormprobeError(
                f"{self.name} is a {kind}; {measured_by.name} needs a {' or '.join(kinds)}",
                f"measure the side that exists: normprobe interface {self._source.argument}; "
                "--kind says what a model is, where its config does not",
            )

    def _require_fitting(self, measured_by: Measurement, samples: DataSet, data: str) -> None:
        """Refuse images for a language model's layers, and text for a vision encoder."""
        facts, kind = self._source.facts, self._source.kind
        if OVERRIDES.get(facts["model_type"], {}).get("videos_only"):
            raise NormprobeError(
                f"{self.name} ({facts['model_type']}) reads videos; {measured_by.name} measures "
                "images",
                "`normprobe embeddings` and `normprobe inspect` work without images",
            )
        text_alone = measured_by.text_of_language_models
        if kind == LANGUAGE_MODEL and text_alone and samples.has_images:
            raise NormprobeError(
                f"{self.name} is a {kind}, and the samples of --data {data} hold images",
                "pass --data text, measure the side that exists: normprobe interface "
                f"{self._source.argument}, or say --kind vision-language, if it reads images",
            )
        if kind == VISION_ENCODER and not samples.has_images:
            raise NormprobeError(
                f"{self.name} is a {kind}, and the samples of --data {data} hold no images",
                "pass --data with images, such as --data sample",
            )

    def _beside(self, model: str) -> "Probe":
        """A probe of another checkpoint, loaded in the same way."""
        same = ("trust_remote_code", "device", "dtype")
        by_ranges = self._options["range_reads"] and not is_here(model)
        options = {name: self._options[name] for name in same}
        return Probe(model, range_reads=by_ranges, **options)


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Whatever the block draws, what follows draws what it would have drawn without it."""
    python, numpy = random.getstate(), np.random.get_state()
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    cuda = range(torch.cuda.device_count()) if in_use else ()
    try:
        with torch.random.fork_rng(cuda):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _refuse_inputs(measured_by: Measurement) -> None:
    """Refuse a batch where samples are asked for."""
    if measured_by.reads_samples:
        raise NormprobeError(
            f"{measured_by.name} measures samples; received a batch that a processor made",
            f"pass the name or path of data, such as data={measured_by.data!r}",
        )


def _require_pictures(measured_by: Measurement, data: str, *, has_images: bool) -> None:
    """Refuse a map of what draws none, or where no picture is at hand."""
    if not measured_by.maps:
        able = [offered.name for offered in measurements() if offered.maps]
        raise NormprobeError(
            f"{measured_by.name} draws no map",
            f"leave map_pictures out, or use {' or '.join(able)}",
        )
    if not has_images:
        raise NormprobeError(
            f"--map lays norms over pictures; {data}: no pictures",
            "leave --map out, or pass --data with images, such as --data sample",
        )


def _doubt_parts(run: RunStore, model: MeasuredModel) -> None:
    if model.doubt:
        doubt(run, model.doubt)


def _warn_of(run: RunStore, remarks: Iterable[str]) -> None:
    for remark in remarks:
        warn(run, remark)


def _refuse_hub_options(model: str, options: Mapping[str, Any]) -> None:
    """Refuse what only means something of a hub id, rather than pass over it."""
    for name in (name for name, value in options.items() if value and is_here(model)):
        raise NormprobeError(
            f"--{name}: {model} is on this machine, no hub is asked for it",
            f"leave --{name} out, or pass a hub id",
        )


def _over_samples(name: str) -> Measurement:
    """The measurement over samples of a name.

    Raises:
        NormprobeError: there is none.
    """
    names = [offered.name for offered in measurements() if offered.over_samples]
    if name not in names:
        raise NormprobeError(
            f"{name} is no measurement over samples: expected one of {', '.join(names)}",
            "the others are methods of Probe, such as probe.embeddings()",
        )
    return measurement(name)
