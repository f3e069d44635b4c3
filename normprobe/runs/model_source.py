"""Where the model of a probe comes from: memory, or a checkpoint that is loaded when it is needed.

Both give a ``MeasuredModel`` that holds at least the weights that a measurement reads.
"""

import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from threading import RLock
from typing import Any

from torch import nn
from transformers import BatchFeature
from transformers.utils import logging as transformers_logging

from normprobe.data.rows import RefusedSample
from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError, first_line
from normprobe.hooks import lock_of
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.families import family_file
from normprobe.inputs.inputs_file import NO_INPUTS_FILE, InputsFile
from normprobe.inputs.processor import load_processor, special_token_ids, vocabulary_ids
from normprobe.model.attention_weights import attention_in
from normprobe.model.checkpoint import (
    LANGUAGE_MODEL,
    SPECIMEN,
    VISION_ENCODER,
    Checkpoint,
    is_own_code,
)
from normprobe.model.find.parts import Parts
from normprobe.model.find.structure import UNKNOWN, find_parts, find_tables
from normprobe.model.load.loading import (
    bytes_to_fetch,
    load_model,
    reading_record,
    reading_sentence,
)
from normprobe.model.load.partial_load import build_on_meta, changed_buffers
from normprobe.model.load.plan import LoadPlan, plan_for
from normprobe.model.load.required_tensors import Needs
from normprobe.model.measured_model import MeasuredModel, positions_of
from normprobe.model.tracing.trace import find_or_trace
from normprobe.runs.begin import checkpoint_facts, model_facts
from normprobe.specimen import SPECIMEN_DIR

log = logging.getLogger(__name__)

#: transformers loads under settings of the whole process: one thread at a time.
_LOADING = RLock()

_AUTO_CLASSES = {LANGUAGE_MODEL: "AutoTokenizer", VISION_ENCODER: "AutoImageProcessor"}


class MemorySource:
    """A model that is in memory, with all of its weights."""

    kind = None  # nobody said it; the parts tell
    argument = "MODEL"  # nothing opens it on a command line
    plan = None
    fetched = 0

    def __init__(
        self,
        model: nn.Module,
        processor: Any = None,
        *,
        named: Mapping[str, Any] | None = None,
        system: str | None = None,
        allow_long_prompts: bool = False,
        special_token_ids: Iterable[int] | None = None,
        inputs_file: InputsFile = NO_INPUTS_FILE,
    ) -> None:
        self.lock = lock_of(model)
        self._model = model
        self._processor = processor
        self._named = {**inputs_file.parts, **(named or {})}
        self._inputs_file = inputs_file.over(family_file(getattr(model, "config", None)))
        self._prompting: dict[str, Any] = {"system": system, "any_length": allow_long_prompts}
        self._special = None if special_token_ids is None else list(special_token_ids)
        self._measured: MeasuredModel | None = None
        self._runs = False  # whether what was found can run: not its tables alone
        self.prepared: list[str] = []  # what the inputs file changed in the model, in words

    @property
    def facts(self) -> dict[str, Any]:
        """What a record says of the model."""
        return model_facts(self._model) | {"inputs_file": self._inputs_file.record}

    @property
    def bridges(self) -> list[str]:
        """What the model's own code needed to run: nobody knows."""
        return []

    @property
    def weights_record(self) -> dict[str, object] | None:
        """What was read of the weights: nobody knows."""
        return None

    def changed_buffers(self) -> list[str]:
        """Buffers that are not those of a fresh build: there is nothing to build from."""
        return []

    @property
    def opened_by(self) -> tuple[str, str | None]:
        """The hub id or folder that the model was loaded from, as far as it knows."""
        return str(self.facts["model"]), None

    @cached_property
    def builder(self) -> InputBuilder:
        """What makes inputs of samples."""
        if self._processor is None:
            raise NormprobeError(
                "samples need a processor to become inputs, and none was given",
                "pass Probe(model, processor), or measure inputs: probe.layers(inputs)",
            )
        return _builder(self._processor, self._inputs_file, self._model, **self._prompting)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer; None where no processor was given, or it has none."""
        return None if self._processor is None else self.builder.tokenizer

    def decoder_layer_count(self) -> int | None:
        """How many decoder layers there are; None: nobody has looked yet."""
        return len(self._measured.decoder_layers) if self._measured and self._runs else None

    def measured(
        self,
        needs: Sequence[Needs],
        examples: Iterable[Mapping[str, Any]] = (),
        device: str = "",
        *,
        runs: bool = True,
    ) -> MeasuredModel:
        """The model with its parts, found once."""
        if self._measured is None or (runs and not self._runs):
            if runs:
                self.prepared = _prepared(self._inputs_file, self._model, self._processor)
            found = _find(self._model, self._named, examples, runs)
            self._measured = _measured(self._model, *found, self.tokenizer, self._special)
            self._runs = runs or _is_whole(self._measured, self._inputs_file)
        self._measured.notice_changed_weights()
        return self._measured


class CheckpointSource:
    """A checkpoint of which no more is loaded than measurements read."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        processor: Any = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        device_map: str | None = None,
        attn_implementation: str | None = None,
        range_reads: bool = False,
        named: Mapping[str, Any] | None = None,
        system: str | None = None,
        allow_long_prompts: bool = False,
        special_token_ids: Iterable[int] | None = None,
        inputs_file: InputsFile = NO_INPUTS_FILE,
    ) -> None:
        self.lock = RLock()
        self.checkpoint = checkpoint
        self.kind = checkpoint.kind
        self.argument = checkpoint.argument
        self.plan: LoadPlan | None = None
        self.fetched: int | None = 0  # bytes of weights, by all loads; None: unknown
        self._given_processor = processor
        self._inputs_file = inputs_file.over(family_file(checkpoint.config))
        self._model: Any = None
        self._device = device
        self._loading: dict[str, Any] = {
            "dtype": dtype,
            "device_map": device_map,
            "attn_implementation": attn_implementation,
        }
        self._range_reads = range_reads
        self._named = {**inputs_file.parts, **(named or {})}
        self._prompting: dict[str, Any] = {"system": system, "any_length": allow_long_prompts}
        self._special = None if special_token_ids is None else list(special_token_ids)
        self._measured: MeasuredModel | None = None
        self._runs = False  # whether what was found can run: not its tables alone
        self._needs: tuple[Needs, ...] = ()
        self.prepared: list[str] = []  # what the inputs file changed in the model, in words

    @property
    def facts(self) -> dict[str, Any]:
        """What a record says of the checkpoint."""
        return checkpoint_facts(self.checkpoint) | {"inputs_file": self._inputs_file.record}

    @property
    def bridges(self) -> list[str]:
        """What the checkpoint's own code needed to run on this transformers."""
        return self.checkpoint.bridges

    @property
    def weights_record(self) -> dict[str, object] | None:
        """What was read of the weights: files, and bytes of the tensors."""
        return None if self.plan is None else reading_record(self.plan)

    def changed_buffers(self) -> list[str]:
        """Buffers that no checkpoint holds, and that are not those of a fresh build."""
        return [] if self._model is None else changed_buffers(self.checkpoint, self._model)

    @property
    def opened_by(self) -> tuple[str, str | None]:
        """What opens the model without an alignment norm from anywhere, and its revision."""
        checkpoint = self.checkpoint
        source, revision = checkpoint.source, checkpoint.revision
        if checkpoint.adapter is not None:
            source, revision = checkpoint.adapter, checkpoint.adapter_revision
        if source == str(SPECIMEN_DIR):
            return SPECIMEN, None
        return (str(Path(source).resolve()) if Path(source).is_dir() else source), revision

    @cached_property
    def _processor(self) -> Any:
        if self._given_processor is not None:
            return self._given_processor
        auto_class = _AUTO_CLASSES.get(self.kind, "AutoProcessor")
        return self._load(auto_class, self._inputs_file.load_processor)

    def _load(self, auto_class: str, load: Callable[[str], Any] | None = None) -> Any:
        checkpoint = self.checkpoint
        with _LOADING:
            return load_processor(
                checkpoint.source,
                revision=checkpoint.revision,
                trust_remote_code=checkpoint.trust_remote_code,
                auto_class=auto_class,
                load=load,
                bridges=checkpoint.bridges,
                bounded=checkpoint.is_bounded,
            )

    @property
    def builder(self) -> InputBuilder:
        """What makes inputs of samples, with the processor of the checkpoint.

        It holds the model as soon as that is loaded.
        """
        builder = _builder(
            self._processor,
            self._inputs_file,
            self._model,
            self.checkpoint.config,
            **self._prompting,
        )
        # What the user gave is no stranger's.
        own = self._given_processor is not None or self._inputs_file.build is not None
        return replace(builder, bounded=self.checkpoint.is_bounded and not own)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer; that of the processor where one is in use, else loaded alone.

        None where there is none.
        """
        in_use = self._given_processor is not None or "_processor" in vars(self)
        return self.builder.tokenizer if in_use else self._tokenizer

    @cached_property
    def _tokenizer(self) -> Any:
        try:
            return None if self.kind == VISION_ENCODER else self._load("AutoTokenizer")
        except NormprobeError as failure:
            log.warning(
                "note: %s has no tokenizer that can be loaded, so its tokens have ids and no "
                "names: %s",
                self.checkpoint.name,
                failure.problem,
            )
            return None

    def decoder_layer_count(self) -> int | None:
        """How many decoder layers there are, without a weight; None: only a trace tells."""
        try:
            parts = find_parts(build_on_meta(self.checkpoint), named=self._named)
        except NormprobeError:
            return None
        layers = parts.decoder_layers
        return None if layers is None else len(list(layers.module.children()))

    def measured(
        self,
        needs: Sequence[Needs],
        examples: Iterable[Mapping[str, Any]] = (),
        device: str = "",
        *,
        runs: bool = True,
    ) -> MeasuredModel:
        """The model with at least the weights that are needed, its parts found.

        What an earlier call loaded is kept, and loaded again only where it is not enough.
        """
        enough = self._runs or not runs
        if self._measured is not None and enough and self._holds(self._measured, needs):
            self._measured.notice_changed_weights()
            return self._measured
        self._measured = self._model = None  # two copies of a model need not fit into memory
        self._needs = tuple(dict.fromkeys((*self._needs, *needs)))
        if not sys.stderr.isatty():
            transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        processor = self._processor if runs else None  # or the error, before anything is read
        with _LOADING:
            self.plan = plan_for(
                _all_of(self._needs),
                self.checkpoint,
                named=self._named,
                find=find_parts if runs else find_tables,
                range_reads=self._range_reads,
            )
            if self.plan.files:
                log.info(reading_sentence(self.plan))
                more = bytes_to_fetch(self.plan)
                unknown = self.fetched is None or more is None
                self.fetched = None if unknown else (self.fetched or 0) + (more or 0)
            device = device or self._device
            model = load_model(self.checkpoint, self.plan, device=device, **self._loading)
        if bridges := self.checkpoint.bridges:
            log.warning(
                "note: the code of %s is older than this transformers; bridged: %s",
                self.checkpoint.name,
                ", ".join(bridges),
            )
        if runs:
            asked = self._loading["attn_implementation"]
            self.prepared = _prepared(self._inputs_file, model, processor, asked)
        self._model = model
        found = _find(model, self._named, examples, runs)
        self._measured = _measured(model, *found, self.tokenizer, self._special)
        self._runs = runs or _is_whole(self._measured, self._inputs_file)
        return self._measured

    def _holds(self, measured: MeasuredModel, needs: Sequence[Needs]) -> bool:
        """Whether what was loaded is enough."""
        if self.plan is None or self.plan.keys is None:  # every weight was read
            return True
        there = _all_of(self._needs)(measured.model, measured.parts)
        return _all_of(tuple(needs))(measured.model, measured.parts) <= there


ModelSource = MemorySource | CheckpointSource


def example_inputs(builder: InputBuilder, samples: Iterable[Sample]) -> BatchFeature:
    """The inputs of the first sample that has an image and that the processor takes."""
    refusal = NormprobeError("no sample has an image to trace", "pass --data with images")
    for sample in samples:
        if sample.image is None:
            continue
        try:
            return builder.build([sample])
        except RefusedSample as error:
            refusal = error
    raise refusal


def _builder(
    processor: Any,
    inputs_file: InputsFile,
    model: Any,
    config: Any = None,
    *,
    system: str | None,
    any_length: bool,
) -> InputBuilder:
    config = getattr(model, "config", None) if config is None else config
    return InputBuilder(
        processor,
        system,
        model_type=getattr(config, "model_type", None),
        own_code=is_own_code(config),
        inputs_file=inputs_file,
        model=model,
        longest=None if any_length else positions_of(config),
    )


def _prepared(
    inputs_file: InputsFile, model: nn.Module, processor: Any, attention: str | None = None
) -> list[str]:
    """Let an inputs file prepare a model; what it changed, in words."""
    if inputs_file.prepare is None:
        return []
    before = attention_in(model)
    name = f"the inputs file of {' '.join(inputs_file.record.values()) or 'its family'}"
    try:
        changed = list(inputs_file.prepare(model, processor) or ())
    except NormprobeError:
        raise
    except Exception as error:  # a model of the same names may have any other code
        raise NormprobeError(
            f"{name} does not fit {type(model).__name__}: {first_line(error)}",
            "pass --inputs FILE.py with prepare and build of your own",
        ) from error
    if attention is not None and attention in before - attention_in(model):
        raise NormprobeError(
            f"--attn-implementation {attention}: {name} lets {type(model).__name__} not run so: "
            f"{', '.join(changed)}",
            "leave --attn-implementation out",
        )
    for change in changed:
        log.warning("note: %s changes the model: %s", name, change)
    return changed


def _all_of(needs: tuple[Needs, ...]) -> Needs:
    def union(model: nn.Module, parts: Parts) -> set[str]:
        return set[str]().union(*(each(model, parts) for each in needs))

    return union


def _find(
    model: nn.Module,
    named: Mapping[str, Any],
    examples: Iterable[Mapping[str, Any]],
    runs: bool,
) -> tuple[Parts, str]:
    """The parts and how they were found; of a model that does not run, at least its tables."""
    if runs:
        return find_or_trace(model, named, partial(_first, examples))
    return find_tables(model, named=named), "by hand" if named else "structure"


def _is_whole(measured: MeasuredModel, inputs_file: InputsFile) -> bool:
    """Whether a model that was found for its tables can be run as it is."""
    return measured.parts.family != UNKNOWN and inputs_file.prepare is None


def _measured(
    model: nn.Module, parts: Parts, found_by: str, tokenizer: Any, special: list[int] | None
) -> MeasuredModel:
    if special is None:
        special = [] if tokenizer is None else special_token_ids(tokenizer)
    known = None if tokenizer is None else vocabulary_ids(tokenizer)
    text = None if tokenizer is None else tokenizer.decode
    return MeasuredModel(model, parts, special, known, found_by, text)


def _first(examples: Iterable[Mapping[str, Any]]) -> Any:
    """The first of some inputs; they are made only when they are asked for."""
    for example in examples:
        return example
    raise NormprobeError("no inputs with an image to trace", "pass inputs, or data with images")
