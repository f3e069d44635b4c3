"""``Probe``: a model that is ready to be measured. The command line is this in words.

probe = Probe("org/model")                 # a hub id, a folder, or a model in memory
run = probe.layers(data="mmbench")         # a Run: .table, .verdict, .figures(), .save()
probe.layers(inputs).table                 # one batch of the processor, in memory
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import pandas as pd
from torch import nn

from normprobe.data.data_set import open_data
from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError, did_you_mean
from normprobe.hooks import same_random_numbers
from normprobe.inputs.inputs_file import NO_INPUTS_FILE, read_inputs_file
from normprobe.measurements import measurement, measurements, over_samples
from normprobe.measurements.measurement import SampleMeasurement
from normprobe.model.checkpoint import open_checkpoint
from normprobe.model.checkpoint_place import is_here
from normprobe.model.config import ADAPTER_FILES
from normprobe.model.find.parts import Parts
from normprobe.model.load.alignment import save_alignment
from normprobe.model.load.loading import check_dtype
from normprobe.model.load.required_tensors import everything
from normprobe.options import AUTO, Loading, Output, Sampling, chosen, flag, names_in, takes
from normprobe.paper.numbers import tokens_of_paper
from normprobe.pipeline import INPUTS, FixedInputs, OverSamples, Pipeline
from normprobe.registry import answers, opener
from normprobe.run import Run
from normprobe.runs.files import write_failures
from normprobe.runs.model_source import CheckpointSource, MemorySource, ModelSource
from normprobe.runs.run_folder import RunFolder

#: One batch, of ``inputs.on_device.named_inputs``.
Batch = Mapping[str, Any] | tuple[Any, ...] | Callable[[nn.Module], object]

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _undisturbed(method: _Method) -> _Method:
    """A method that no other probe of the model runs beside, and that draws no random number."""

    @wraps(method)
    def alone(self: "Probe", *args: Any, **kwargs: Any) -> Any:
        with self.source.lock, same_random_numbers():
            return method(self, *args, **kwargs)

    return cast(_Method, alone)


class Probe:
    """A model that is ready to be measured, as often as wanted.

    Parts and structural tokens are found once. Of a checkpoint no more is loaded than the
    measurements read; a measurement that reads more loads it then.

    What other threads run on a model in memory passes untouched, as they would without the probe.
    Several probes of it measure one after the other. Random numbers that are drawn afterwards are
    those that would have been drawn without it.

    Args:
        model: ``specimen`` (bundled), a local folder, a hub id, a script that loads a model and
            asks it, with its arguments (``"infer.py --image a.png"``), or a model in memory.
        processor: of a model in memory, where samples are measured; of a checkpoint: its own.
        special_token_ids: ids to report as ``special`` rather than ``text``; None: those of the
            tokenizer, or without one the config's ``bos_token_id`` where it opens a prompt.
        forward: what makes the layers run, ``forward(model, **inputs)``, in place of the model's
            own forward, such as ``lambda m, ids, pixels: m.decode(m.embed(ids, pixels))``.
        **options: how it is loaded and asked. ``revision``: branch, tag or commit of a hub id;
            ``device``: ``auto``, cpu, cuda, cuda:1 or mps, ``balanced``: spread over devices with
            accelerate (a model in memory stays where it is), ``tp``: each layer shared by the
            processes of torchrun; ``dtype``: ``auto`` (as saved),
            float32, bfloat16 or float16; ``attn_implementation``: sdpa, eager,
            flash_attention_2; ``trust_remote_code``: run the checkpoint's own code; ``inputs``: a
            Python file that says how the model takes its inputs, as ``inputs.inputs_file``
            describes it; ``named``: parts named by hand, dotted names by role, and
            ``image_token_ids``, and ``kind`` (vision-language, vision-encoder or language): what
            a checkpoint is, where its config does not tell; ``system``: system prompt, ``none``
            for none, None: the chat template's; ``allow_long_prompts``: measure samples whose
            prompt has more tokens than the model has positions.

    Raises:
        NormprobeError: there is no such checkpoint, or its config or ``inputs`` cannot be read.
    """

    @takes(Loading)
    def __init__(
        self,
        model: str | Path | nn.Module = "specimen",
        processor: Any = None,
        *,
        special_token_ids: Iterable[int] | None = None,
        forward: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        loading = Loading(**options)
        file = loading.inputs
        inputs_file = NO_INPUTS_FILE if file is None else read_inputs_file(file)
        if forward is not None:
            inputs_file = replace(inputs_file, forward=forward)
        check_dtype(loading.dtype)
        how: dict[str, Any] = {"special_token_ids": special_token_ids, "inputs_file": inputs_file}
        self.source: ModelSource
        if isinstance(model, nn.Module):
            self.source = MemorySource(model, processor, loading, **how)
        elif (opened := opener(str(model))) is not None:
            self.source = opened(loading, **how)
        else:
            if loading.revision and is_here(str(model)):  # rather than pass over it
                raise NormprobeError(
                    f"--revision: {model} is on this machine, no hub is asked for it",
                    "leave --revision out, or pass a hub id",
                )
            checkpoint = open_checkpoint(
                str(model),
                revision=loading.revision,
                trust_remote_code=loading.trust_remote_code,
                inputs_file=inputs_file,
                kind=loading.kind,
            )
            self.source = CheckpointSource(checkpoint, processor, loading, **how)
        self.typed = None if isinstance(model, nn.Module) else str(model)

    @property
    def name(self) -> str:
        """What the model is called in run folders and titles."""
        return self.source.name

    @property
    def fetched_bytes(self) -> int | None:
        """Bytes of weights that were fetched so far; None where that is unknown."""
        return self.source.fetched

    @property
    @_undisturbed
    def parts(self) -> Parts:
        """Where the model keeps its vision encoder, projector, decoder layers and tables.

        Raises:
            NormprobeError: the model cannot be loaded, or its parts are not found.
        """
        return self.source.measured([]).parts

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
        known = measurements()
        if unknown := [name for name in names if name not in known]:
            raise NormprobeError(
                f"there is no measurement {unknown[0]}: expected one of {', '.join(known)}",
                did_you_mean(unknown[0], known, "pass no name to load the whole model"),
            )
        needs = [needs for name in names if (needs := known[name].needs)] or [everything]
        runs = not names or any(known[name].runs_model for name in names)
        self.source.measured(needs, runs=runs)
        return self

    def layers(self, data: str | Batch = "sample", **options: Any) -> Run:
        """Norm, cosine, angle and update of every decoder layer. Arguments are of ``measure``."""
        return self.measure("layers", data, **options)

    def interface(self, data: str | Batch = "sample", **options: Any) -> Run:
        """Norms from the vision encoder to the decoder input. Arguments are of ``measure``."""
        return self.measure("interface", data, **options)

    def __getattr__(self, name: str) -> Any:
        """A measurement or method of an extension, such as ``probe.cause()``."""
        if name.startswith("_"):  # of Python itself, while there is no probe yet
            raise AttributeError(name)
        for _, methods in answers(lambda extension: extension.methods()):
            if name in methods:
                return partial(_undisturbed(methods[name]), self)
        if name in over_samples():
            return partial(self.measure, name)
        raise AttributeError(f"{type(self).__name__} has no {name}, nor has an extension")

    def __dir__(self) -> list[str]:
        """The methods of extensions, too."""
        added = (
            name
            for _, methods in answers(lambda extension: extension.methods())
            for name in methods
        )
        return [*super().__dir__(), *over_samples(), *added]

    @_undisturbed
    @takes(Sampling, Output, without=("data",))
    def measure(
        self,
        name: str,
        data: str | Batch | None = None,
        *,
        also: str | Sequence[str] = (),
        by: str | None = None,
        do: str | Sequence[str] = (),
        answer: bool = False,
        tower: str | None = None,
        align: str | float | None = None,
        map: int | None = None,
        verify: bool = False,
        only: Collection[str] | None = None,
        intervals: bool = True,
        **options: Any,
    ) -> Run:
        """Run the model over samples.

        Args:
            name: of a measurement over samples: ``layers``, ``interface``, or of an extension, such
                as ``cause`` and ``grounding``.
            data: what ``--data`` takes: ``sample`` (bundled), ``text``, a benchmark, a file or a
                folder; or one batch: a mapping by the names of the model's forward, as its
                processor returns it, a tuple in their order, or a function that calls the model,
                such as ``lambda m: m(ids, image=pixels)``, or a part of it that holds the layers,
                of tensors or NumPy arrays; None: the bundled data that the measurement is for.
            also: of ``layers``, what else to measure: ``branches``, what attention and MLP write,
                each by itself; ``massive``, the largest dimensions of the states, massive tokens,
                and norm, cosine and angle without them; ``headroom``, the largest magnitudes, also
                inside of layers, against the end of float16.
            by: of ``layers``, ``turn``: each turn of a conversation by itself, too.
            do: of ``cause``, which interventions, of ``DOSES`` in
                ``normprobe.model.intervention_plan``, also ``scale=3`` and ``freeze@12-20``; none:
                the usual ones.
            answer: of ``cause``, also whether the model's own greedy answers are right.
            tower: of ``layers``, ``vision`` or ``audio``: every block of that tower in place of
                decoder layers. None of the model but the tower is loaded.
            align: measure with a norm behind the projector, untrained: ``table`` (the mean norm of
                the text embedding), ``prompt`` (that of the prompts) or a number. The model is as
                it was afterwards.
            map: lay the norms of visual tokens over so many pictures of the samples, the first
                ones; None: no map.
            verify: compare the parts with a trace of the running model, buffers with a fresh build,
                and the numbers of one sample with recomputed ones.
            only: ids of samples that are measured, each in the batch that it has among all; None:
                all are.
            intervals: of ``layers``, False: neither intervals nor what the theory says, which take
                longer than the forward of a small model.
            **options: ``prompt`` of every image, where the data are a folder of images (None: a
                neutral one); ``batch_size``: samples a forward, ``auto``: as many as fit;
                ``workers``: processes that decode pictures, 0: none but this one, None: half of
                the cores; ``limit``: draw this many samples; ``seed`` of the draw; ``skip_bad``:
                leave bad rows out and list them; ``output``: the run folder, ``auto``: below
                ``runs/``, None: the run stays in memory; ``overwrite``: replace a run folder that
                exists; ``resume``: go on with an unfinished run in ``output``, of ``auto``, the
                last one.

        Raises:
            NormprobeError: whatever of these fails; nothing is written before the run is due.
            SystemExit: in all but the main process of several, whose work is done.
        """
        measured_by = _over_samples(name)
        if tower is not None:
            measured_by = measured_by.of_tower(tower)
        measured_by = measured_by.asking(
            also=names_in(also), by=by, do=names_in(do), answer=answer, intervals=intervals
        )
        asked = {"align": align, "map": map, "verify": verify, **measured_by.requested}
        if by is not None:
            asked["by"] = by
        data = measured_by.data if data is None else data
        pipeline = self._over(data, measured_by, asked, options, only)
        with pipeline.begin():
            pipeline.ready(verify=verify, align=align)
            rows = pipeline.collect()
            return pipeline.finish(lambda: pipeline.tables(rows))

    def _over(
        self,
        data: str | Batch,
        measured_by: SampleMeasurement,
        asked: Mapping[str, Any],
        options: Mapping[str, Any],
        only: Collection[str] | None,
    ) -> OverSamples | FixedInputs:
        """The pipeline of samples, or of one batch that a processor made."""
        asked = {"model": self.typed, **asked}
        if self.source.brings_inputs:
            self._require_brought(data, measured_by, options)
            output, sampling = chosen({**options, "data": INPUTS}, Output, Sampling)
            asked |= {"limit": sampling.limit}
            brought = partial(self.source.batches, sampling.limit)
            return FixedInputs(self.source, measured_by, asked, output, brought)
        if isinstance(data, str):
            output, sampling = chosen({**options, "data": data}, Output, Sampling)
            if not measured_by.batches:
                if sampling.batch_size not in (1, AUTO):
                    raise NormprobeError(
                        f"{measured_by.name} runs one sample a forward: batch_size is "
                        f"{sampling.batch_size}",
                        "leave batch_size out",
                    )
                sampling = replace(sampling, batch_size=1)
            return OverSamples(self.source, measured_by, asked, output, sampling, only)
        output, sampling = chosen(options, Output, Sampling)
        asked |= {"batch_size": sampling.batch_size, "skip_bad": sampling.skip_bad}
        source = self.source
        if callable(data) and isinstance(source, MemorySource):
            source, data = source.called_by(data)
        return FixedInputs(source, measured_by, asked, output, lambda: [data])

    def _require_brought(
        self, data: str | Batch, measured_by: SampleMeasurement, options: Mapping[str, Any]
    ) -> None:
        """Refuse to ask otherwise than the inputs that came with the model do."""
        if measured_by.reads_samples:
            raise NormprobeError(
                f"{measured_by.name} measures samples, and {self.typed} asks its model itself",
                "pass the model in place of the script",
            )
        usual = {**vars(Sampling()), "data": measured_by.data}
        named = {"data": data, **options}
        for name in ("data", "prompt", "batch_size"):
            if named.get(name, usual[name]) != usual[name]:
                raise NormprobeError(
                    f"{flag(name)}: {self.typed} asks its model itself",
                    "leave it out, or pass the model in place of the script",
                )

    @_undisturbed
    @takes(Output, without=("resume",))
    def embeddings(self, *, top: int = 10, base: "Probe | str | None" = None, **to: Any) -> Run:
        """Norms of the embedding tables, and the tokens that stand out.

        Args:
            top: how many tokens with the largest and smallest norms to name.
            base: the language model that it was trained from: how far has the table moved?
            **to: ``output`` and ``overwrite``, as in ``measure``.

        Raises:
            NormprobeError: there is no text embedding table, or it cannot be read.
        """
        from normprobe.measurements.embeddings.measure import measure_embeddings, text_table

        if isinstance(base, str):
            base = self.beside(base, named=None, inputs=None)  # those are of this model
        options = {"top": top, "base": base and base.typed}
        with self.pipeline("embeddings", options, to).begin() as pipeline:
            older = None
            if base is not None:
                measured_by, other = pipeline.measured_by, base.source
                needs = [] if measured_by.needs is None else [measured_by.needs]
                before = other.measured(needs, runs=measured_by.runs_model)
                if before.parts.text_embedding is None:
                    raise NormprobeError(
                        "the base model has no text embedding table",
                        "pass a language model as --base",
                    )
                older = text_table(before, other.tokenizer)
                pipeline.run.note(base=base.name, base_revision=other.facts["model_revision"])
            model = pipeline.ready()
            table = text_table(model, self.source.tokenizer)
            tables = measure_embeddings(model, table, top, older, tokens_of_paper(self.name))
            return pipeline.finish(lambda: tables)

    @_undisturbed
    @takes(Output, without=("resume",))
    def align(
        self,
        target: str | float = "table",
        data: str = "sample",
        *,
        limit: int | None = None,
        seed: int = 42,
        **to: Any,
    ) -> Run:
        """The norm that gives visual tokens the norm of text, to train with (Section 5).

        With ``output`` it is saved there as an adapter, which ``Probe`` and ``load_aligned`` take.
        The model itself is left as it is.

        Args:
            target: as ``align`` of ``measure``.
            data: whose first samples the target is measured on.
            limit: as in ``measure``, like ``seed``.
            seed: of the draw.
            **to: ``output``, the folder of the adapter, and ``overwrite``, as in ``measure``.

        Raises:
            NormprobeError: where alignment makes no sense, or the target cannot be measured.
        """
        options = {"target": target, "data": data, "limit": limit, "seed": seed}
        pipeline = self.pipeline("align", options, to)
        pipeline.samples = open_data(data, limit=limit, seed=seed)
        with pipeline.begin() as pipeline:
            model, run = pipeline.ready(align=target), pipeline.run
            if isinstance(run, RunFolder):
                base, revision = self.source.opened_by
                with write_failures(run.path):
                    run.replace_older()  # its adapter has the same names
                    run.note(files=[*run.record["files"], *ADAPTER_FILES])
                    save_alignment(model.model, run.path, base_model=base, revision=revision)
            return pipeline.finish(lambda: {"align": pd.DataFrame([run.record["alignment"]])})

    def pipeline(
        self,
        name: str,
        options: Mapping[str, Any],
        to: Mapping[str, Any],
        samples: Sequence[Sample] = (),
    ) -> Pipeline:
        """The pipeline of a measurement that does not go over samples."""
        output = Output(**to)
        if output.resume:
            raise NormprobeError(f"{name} is one step, and is not resumed", "leave resume out")
        asked = {"model": self.typed, **options}
        return Pipeline(self.source, measurement(name), asked, output, samples)

    def beside(self, model: str, **but: Any) -> "Probe":
        """A probe of another checkpoint, loaded and asked in the same way, but for the revision."""
        return Probe(model, **{**vars(self.source.loading), "revision": None, **but})


def _over_samples(name: str) -> SampleMeasurement:
    """The measurement over samples of a name.

    Raises:
        NormprobeError: there is none.
    """
    known = over_samples()
    if name not in known:
        raise NormprobeError(
            f"{name} is no measurement over samples: expected one of {', '.join(known)}",
            did_you_mean(name, known, "the others are methods of Probe, as probe.embeddings()"),
        )
    return known[name]
