"""Where the model of a probe comes from: memory, or a checkpoint that is loaded when it is needed.

Both give a ``MeasuredModel`` that holds at least the weights that a measurement reads.
"""

import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from threading import RLock
from typing import Any

from torch import nn
from transformers import BatchFeature
from transformers.utils import logging as transformers_logging

from normprobe.data.rows import RefusedSample
from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError, first_line
from normprobe.failures import is_native, of_other_line
from normprobe.hooks import arguments_of, is_sharded, lock_of, observing, run_until
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.inputs_file import NO_INPUTS_FILE, InputsFile, family_file
from normprobe.inputs.on_device import moved_to, transformers_config
from normprobe.inputs.processor import decoded, load_processor, special_token_ids, vocabulary_ids
from normprobe.model.attention_weights import (
    attend_eagerly_where_asked,
    attention_in,
    uncapped_doubt,
)
from normprobe.model.checkpoint import Checkpoint
from normprobe.model.checkpoint_place import SPECIMEN, cached
from normprobe.model.class_doubts import (
    attention_doubt,
    diffusion_doubt,
    inputs_doubt,
    other_class_doubt,
)
from normprobe.model.config import read_config_file
from normprobe.model.find.parts import Parts
from normprobe.model.find.structure import UNKNOWN, find_parts, find_tables
from normprobe.model.load.gguf_weights import weight_files_of
from normprobe.model.load.loading import (
    bytes_to_fetch,
    device_and_dtype,
    fetched_files,
    load_model,
    reading_record,
    reading_sentence,
    reads_ranges,
)
from normprobe.model.load.partial_load import build_on_meta, changed_buffers
from normprobe.model.load.plan import LoadPlan, is_quantised, plan_for
from normprobe.model.load.required_tensors import Needs, everything
from normprobe.model.load.weight_checks import loading_beside, replaced_doubt, unplaced_doubt
from normprobe.model.measured_model import MeasuredModel, positions_of
from normprobe.model.model_kind import is_own_code, reads_sounds
from normprobe.model.own_forward import captured, run_by
from normprobe.model.tracing.trace import UnreadWeights, find_or_trace
from normprobe.options import AUTO, BALANCED, TENSOR_PARALLEL, Loading
from normprobe.runs.facts import checkpoint_facts, model_facts
from normprobe.schema import BARE_VISION_ENCODER, LANGUAGE_MODEL
from normprobe.specimen import SPECIMEN_DIR

log = logging.getLogger(__name__)

#: transformers loads under settings of the whole process: one thread at a time.
_LOADING = RLock()

_AS_IT_IS = Loading()
_AUTO_CLASSES = {LANGUAGE_MODEL: "AutoTokenizer", BARE_VISION_ENCODER: "AutoImageProcessor"}


class ModelSource(ABC):
    """Where the model of a probe comes from.

    Attributes:
        loading: how it is loaded and asked.
        lock: held by whoever measures the model.
        kind: what it is; None: nobody said it, the parts tell.
        argument: what opens it on a command line.
        bridges: what the model's own code needed to run on this transformers.
        doubt: of the class that is measured.
        brings_inputs: whether inputs come with it; else samples are made into some.
        plan: of the last load; None: there was none.
        fetched: bytes of weights, by all loads; None: unknown.
        prepared: what the inputs file changed in the model, in words.
    """

    kind: str | None = None
    argument = "MODEL"
    bridges: Sequence[str] = ()
    doubt = ""  # of the class that is measured
    brings_inputs = False
    plan: LoadPlan | None = None
    fetched: int | None = 0
    lock: Any
    _processor: Any

    def __init__(
        self,
        loading: Loading,
        config: Any,
        *,
        special_token_ids: Iterable[int] | None = None,
        inputs_file: InputsFile = NO_INPUTS_FILE,
    ) -> None:
        self.loading = loading
        self.prepared: list[str] = []
        self.dtype = ""  # of the weights, before any forward
        self._config = config
        self._model: Any = None
        self._named = {**inputs_file.parts, **loading.parts}
        self._inputs_file = inputs_file.over(family_file(config))
        self._special = None if special_token_ids is None else list(special_token_ids)
        self._found: MeasuredModel | None = None
        self._runs = False  # whether what was found can run: not its tables alone

    @property
    def model(self) -> Any:
        """The model, as soon as it is loaded."""
        return self._model

    @property
    def is_told_inputs(self) -> bool:
        """Whether a file makes the inputs of code of its own: it knows what that reads."""
        makes = self._inputs_file.build is not None
        return makes and self._config is not None and is_own_code(self._config)

    @property
    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What a record says of the model before its weights are read."""

    @property
    def name(self) -> str:
        """What it is called in run folders and titles."""
        return str(self.facts["model"])

    @property
    @abstractmethod
    def opened_by(self) -> tuple[str, str | None]:
        """What opens the model without an alignment norm from anywhere, and its revision."""

    @property
    @abstractmethod
    def builder(self) -> InputBuilder:
        """What makes inputs of samples."""

    @property
    @abstractmethod
    def tokenizer(self) -> Any:
        """The tokenizer; None where there is none."""

    def batches(self, times: int | None) -> Sequence[Mapping[str, Any]]:
        """Inputs that come with the model, the first so many, where it ``brings_inputs``."""
        raise NotImplementedError

    @abstractmethod
    def decoder_layer_count(self) -> int | None:
        """How many decoder layers there are, without a weight; None: nobody knows yet."""

    @abstractmethod
    def _loaded(self, needs: Sequence[Needs], device: str, runs: bool) -> nn.Module:
        """The model with the weights that are needed."""

    def _holds(self, found: MeasuredModel, needs: Sequence[Needs]) -> bool:
        """Whether what was loaded is enough."""
        return True

    @property
    def weights_record(self) -> dict[str, object] | None:
        """What was read of the weights: files, and bytes of the tensors; None: unknown."""
        return None if self.plan is None else reading_record(self.plan)

    def changed_buffers(self) -> list[str]:
        """Buffers that no checkpoint holds, and that are not those of a fresh build."""
        return []

    def measured(
        self,
        needs: Sequence[Needs],
        examples: Iterable[Mapping[str, Any]] = (),
        device: str = "",
        *,
        runs: bool = True,
    ) -> MeasuredModel:
        """The model with at least the weights that are needed, its parts found.

        The weights and parts of an earlier call are kept, unless these are not enough or a module
        was replaced. What forwards told is learnt again: hooks and weights may be others since.
        """
        if self._found is not None and not self._found.is_current():
            self._found = None  # a module was replaced since
        if self._found is None or (runs and not self._runs) or not self._holds(self._found, needs):
            self._found = None
            self._model = self._ready(needs, device, runs)
            self.dtype = device_and_dtype(self._model)[1]
            if runs and is_sharded(self._model):  # the whole model before any part of it
                examples = [*examples]
                with observing(self._model):
                    for example in examples[:1]:
                        run_until(self._model, moved_to(self._model, example))
            first = cache(partial(_first, examples))
            try:
                parts, found_by = self._find(first, runs, unread=self._has_unread())
            except UnreadWeights:
                self._model = self._ready((everything,), device, runs)
                parts, found_by = self._find(first, runs)
            self._found = self._measured(parts, found_by)
            # Whether a model that was found for its tables can be run as it is.
            as_it_is = self._inputs_file.prepare is None and self._inputs_file.forward is None
            whole = parts.family != UNKNOWN and as_it_is
            self._runs = runs or whole
        else:
            self.dtype = device_and_dtype(self._model)[1]  # its owner may have cast it
            self._found = self._found.afresh()
        self._found.add_doubt(uncapped_doubt(self._model))  # its owner may have set another one
        return self._found

    def _ready(self, needs: Sequence[Needs], device: str, runs: bool) -> nn.Module:
        """The model with the weights that are needed, prepared as its inputs file does."""
        model = self._model = self._loaded(needs, device, runs)
        if not runs:
            return model
        self.prepared = self._prepared_model()
        if self.plan is not None and self.plan.unplaced:
            plan = self.plan
            said = unplaced_doubt(plan.weights, plan.unplaced, model)
            self.doubt = "; ".join(filter(None, [self.doubt, said]))
        forward = self._inputs_file.forward
        return model if forward is None else run_by(model, forward)

    def _has_unread(self) -> bool:
        """Whether weights of the model that no measurement has needed so far hold no values."""
        return False

    def _builder(self, processor: Any) -> InputBuilder:
        """What makes inputs of samples; it holds the model as soon as that is loaded."""
        any_length = self.loading.allow_long_prompts
        return InputBuilder(
            processor,
            self.loading.system,
            model_type=getattr(self._config, "model_type", None),
            own_code=is_own_code(self._config),
            inputs_file=self._inputs_file,
            model=self._model,
            longest=None if any_length else positions_of(self._config),
        )

    def _prepared_model(self) -> list[str]:
        """Let the inputs file prepare the model; what it changed, in words."""
        prepare, model = self._inputs_file.prepare, self._model
        if prepare is None:
            return []
        before, held = attention_in(model), _floating_dtypes(model)
        read = dict(model.named_parameters(remove_duplicate=False))
        own = self._inputs_file.record.get("path")
        name = f"the inputs file {own or f'of {self._inputs_file.names}'}"
        try:
            with loading_beside(model) as found:
                changed = list(prepare(model, self._processor) or ())
            after = _floating_dtypes(model)
            if (others := sorted(after - held)) and len(after) > 1:
                found.append(
                    f"prepare() of {self._inputs_file.names} leaves weights in {', '.join(others)}"
                    f", the others are in {', '.join(sorted(held))}"
                )
            if self.plan is not None:
                found.append(replaced_doubt(self.plan.weights, read, model))
            self.doubt = "; ".join(filter(None, [self.doubt, *found]))
        except NormprobeError:
            raise
        except Exception as error:  # a model of the same names may have any other code
            raise NormprobeError(
                f"{name} does not fit {type(model).__name__}: {first_line(error)}",
                f"mend prepare() in {own}{of_other_line(model)}"
                if own
                else "pass --inputs FILE.py with prepare and build of your own",
            ) from error
        attention = self.loading.attn_implementation
        if attention is not None and attention in before - attention_in(model):
            raise NormprobeError(
                f"--attn-implementation {attention}: {name} lets {type(model).__name__} not run "
                f"so: {', '.join(changed)}",
                "leave --attn-implementation out",
            )
        for change in changed:
            log.warning("note: %s changes the model: %s", name, change)
        return changed

    def _find(
        self, example: Callable[[], Mapping[str, Any]], runs: bool, *, unread: bool = False
    ) -> tuple[Parts, str]:
        """The parts and how they were found; of a model that does not run, at least its tables."""
        if runs:
            return find_or_trace(self._model, self._named, example, unread=unread)
        found_by = "by hand" if self._named else "structure"
        return find_tables(self._model, named=self._named), found_by

    def _measured(self, parts: Parts, found_by: str) -> MeasuredModel:
        tokenizer, special = self.tokenizer, self._special
        if special is None and tokenizer is not None:
            special = special_token_ids(tokenizer)
        known = None if tokenizer is None else vocabulary_ids(tokenizer)
        text = None if tokenizer is None else partial(decoded, tokenizer)
        found = MeasuredModel(self._model, parts, special, known, found_by, text)
        if (padding := getattr(tokenizer, "pad_token_id", None)) is not None:
            found.padding_id = padding
        return found


class MemorySource(ModelSource):
    """A model that is in memory, with all of its weights."""

    def __init__(
        self, model: nn.Module, processor: Any = None, loading: Loading = _AS_IT_IS, **how: Any
    ) -> None:
        super().__init__(loading, transformers_config(model), **how)
        self.lock = lock_of(model)
        self._model = model
        self._processor = processor

    def called_by(self, function: Callable[[nn.Module], object]) -> "tuple[MemorySource, Any]":
        """The source and the batch of a function that runs the model, or parts of it."""
        if self._inputs_file.forward is not None:
            return self, function
        try:
            with observing(self._model):
                return self, arguments_of(self._model, function)
        except NormprobeError:
            held, forward = captured(function)
            if not held:
                raise
        file = replace(self._inputs_file, forward=forward)
        how: dict[str, Any] = {"special_token_ids": self._special, "inputs_file": file}
        return MemorySource(self._model, self._processor, self.loading, **how), held

    @property
    def facts(self) -> dict[str, Any]:
        """Its name, if it has one, and its type."""
        return model_facts(self._model) | {"inputs_file": self._inputs_file.record}

    @property
    def opened_by(self) -> tuple[str, str | None]:
        """The hub id or folder that it was loaded from, as far as it knows."""
        return str(self.facts["model"]), None

    @cached_property
    def builder(self) -> InputBuilder:
        """What makes inputs of samples, with the processor that was given."""
        if self._processor is None:
            raise NormprobeError(
                "samples need a processor to become inputs, and none was given",
                "pass Probe(model, processor), or measure inputs: probe.layers(inputs)",
            )
        return self._builder(self._processor)

    @property
    def tokenizer(self) -> Any:
        """That of the processor that was given; None: none was, or it has none."""
        return None if self._processor is None else self.builder.tokenizer

    def decoder_layer_count(self) -> int | None:
        """As soon as its parts are found."""
        return len(self._found.decoder_layers) if self._found and self._runs else None

    def _loaded(self, needs: Sequence[Needs], device: str, runs: bool) -> nn.Module:
        model: nn.Module = self._model
        return model


def tell_bridges(name: str, bridges: Sequence[str]) -> None:
    """Say what was made up for, in one line."""
    if bridges:
        log.warning(
            "note: the code of %s is older than this transformers; bridged: %s",
            name,
            ", ".join(dict.fromkeys(bridges)),
        )


class CheckpointSource(ModelSource):
    """A checkpoint of which no more is loaded than measurements read."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        processor: Any = None,
        loading: Loading = _AS_IT_IS,
        **how: Any,
    ) -> None:
        super().__init__(loading, checkpoint.config, **how)
        self.lock = RLock()
        self.checkpoint = checkpoint
        self.kind = checkpoint.kind
        self.argument = checkpoint.argument
        self.bridges = checkpoint.bridges
        self._given_processor = processor
        self._needs: tuple[Needs, ...] = ()

    @property
    def facts(self) -> dict[str, Any]:
        """Its name, revision, type and files."""
        return checkpoint_facts(self.checkpoint) | {"inputs_file": self._inputs_file.record}

    def changed_buffers(self) -> list[str]:
        """Buffers that no checkpoint holds, and that are not those of a fresh build."""
        return [] if self._model is None else changed_buffers(self.checkpoint, self._model)

    @property
    def opened_by(self) -> tuple[str, str | None]:
        """The folder, GGUF file or hub id of the model, or of the adapter merged into it."""
        checkpoint = self.checkpoint
        if checkpoint.gguf is not None:
            return str(Path(checkpoint.gguf).resolve()), None
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
        hears = reads_sounds(self.checkpoint.config)
        auto_class = (
            "AutoProcessor" if hears else _AUTO_CLASSES.get(self.checkpoint.kind, "AutoProcessor")
        )
        try:
            return self._load(auto_class, self._inputs_file.load_processor)
        except NormprobeError:
            _ = weight_files_of(self.checkpoint).file_of  # a folder may hold none
            raise

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
        """What makes inputs of samples, with the processor of the checkpoint."""
        # What the user gave is no stranger's.
        own = self._given_processor is not None or self._inputs_file.build is not None
        builder = self._builder(self._processor)
        return replace(builder, bounded=self.checkpoint.is_bounded and not own)

    @property
    def tokenizer(self) -> Any:
        """That of the processor where one is in use, else loaded alone."""
        in_use = self._given_processor is not None or "_processor" in vars(self)
        return self.builder.tokenizer if in_use else self._tokenizer

    @cached_property
    def _tokenizer(self) -> Any:
        try:
            return None if self.kind == BARE_VISION_ENCODER else self._load("AutoTokenizer")
        except NormprobeError as failure:
            log.warning(
                "note: %s has no tokenizer that can be loaded, so its tokens have ids and no "
                "names: %s",
                self.checkpoint.name,
                failure.problem,
            )
            return None

    def decoder_layer_count(self) -> int | None:
        """As the modules have them; None: only a trace tells."""
        try:
            parts = find_parts(build_on_meta(self.checkpoint), named=self._named)
        except NormprobeError:
            return None
        layers = parts.decoder_layers
        return None if layers is None else len(list(layers.module.children()))

    def _loaded(self, needs: Sequence[Needs], device: str, runs: bool) -> nn.Module:
        """The model with what any measurement has needed so far."""
        self._model = None  # two copies of a model need not fit into memory
        self._needs = tuple(dict.fromkeys((*self._needs, *needs)))
        if not sys.stderr.isatty():
            transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        if runs:
            _ = self._processor  # or the error, before anything is read
        with _LOADING:
            find = find_parts if runs else find_tables
            self.plan = plan_of_least_bytes(
                _all_of(self._needs), self.checkpoint, named=self._named, find=find
            )
            if self.plan.files:
                log.info(reading_sentence(self.plan))
                more = bytes_to_fetch(self.plan)
                unknown = self.fetched is None or more is None
                self.fetched = None if unknown else (self.fetched or 0) + (more or 0)
            spread = self.loading.device == BALANCED
            model = load_model(
                self.checkpoint,
                self.plan,
                device=AUTO if spread else device or self.loading.device,
                device_map="auto" if spread else None,
                dtype=self.loading.dtype,
                attn_implementation=self.loading.attn_implementation,
                shared=self.loading.device == TENSOR_PARALLEL,
            )
        said = cached(self.checkpoint.source, "config.json", self.checkpoint.revision)
        names = read_config_file(said).get("architectures") or ()
        doubts = [self.checkpoint.doubt, other_class_doubt(model, names)]
        if runs and self._inputs_file.build is None:
            doubts.append(inputs_doubt(model))
        if runs and self._inputs_file.forward is None:
            doubts.append(diffusion_doubt(model))
        if not is_native(model):
            doubts.append(attention_doubt(model))
        if not runs:
            doubts.append(self._rounding_doubt(self._narrow(model), model))
        self.doubt = "; ".join(filter(None, doubts))
        tell_bridges(self.checkpoint.name, self.bridges)
        return model

    def _prepared_model(self) -> list[str]:
        """Also of parts that ``prepare`` loads: no user asked for their attention."""
        narrow = self._narrow(self._model)
        changed = super()._prepared_model()
        rounds = self._rounding_doubt(narrow, self._model)
        self.doubt = "; ".join(filter(None, [self.doubt, rounds]))
        if self.loading.attn_implementation is not None or not self.loading.trust_remote_code:
            return changed
        asked = attend_eagerly_where_asked(self._model)
        for change in asked:
            log.warning("note: %s", change)
        return [*changed, *asked]

    def _narrow(self, model: nn.Module) -> set[str]:
        """Floating-point types that code makes weights in though another was asked for."""
        asked = self.loading.dtype
        if asked == AUTO or is_quantised(self.checkpoint):
            return set()
        return _floating_dtypes(model) - {asked, "float32", "float64"}

    def _rounding_doubt(self, narrow: set[str], model: nn.Module) -> str:
        """A doubt where such weights or what is computed of them is rounded.

        ``narrow``: as they were read. What ``prepare`` widens is not, if the files hold no more.
        """
        stored = str(getattr(self.plan, "dtype", None)).removeprefix("torch.")
        if not narrow or (narrow == {stored} and not self._narrow(model)):
            return ""
        told = (
            f"{self.loading.dtype} was asked for, and code of the model's own makes weights in "
            f"{', '.join(sorted(narrow))}"
        )
        if narrow == {stored}:
            return (
                f"{told}, as its files hold them: what they compute is rounded; model.float() in "
                "prepare(model, processor) of an --inputs file widens them"
            )
        return f"{told}: numbers are those of rounded weights"

    def _has_unread(self) -> bool:
        if self.plan is None or self.plan.keys is None:
            return False
        return any(weight.is_meta for weight in self._model.parameters())

    def _holds(self, found: MeasuredModel, needs: Sequence[Needs]) -> bool:
        """Whether what was loaded is enough."""
        if self.plan is None or self.plan.keys is None:  # every weight was read
            return True
        there = _all_of(self._needs)(found.model, found.parts)
        return _all_of(tuple(needs))(found.model, found.parts) <= there


def plan_of_least_bytes(needs: Needs, checkpoint: Checkpoint, **how: Any) -> LoadPlan:
    """Plan a load, by ranges of the files on a hub where that saves a quarter of them or more.

    Ranges are fetched anew by every run; files stay in the hub's cache.
    """
    plan = plan_for(needs, checkpoint, **how, range_reads=True)
    if reads_ranges(plan):
        needed = sum(size or 0 for size in fetched_files(plan).values())
        plan.weights.range_reads = False
        whole = bytes_to_fetch(plan)
        plan.weights.range_reads = whole is not None and needed <= 0.75 * whole
    return plan


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


def _all_of(needs: tuple[Needs, ...]) -> Needs:
    def union(model: nn.Module, parts: Parts) -> set[str]:
        return set[str]().union(*(each(model, parts) for each in needs))

    return union


def _first(examples: Iterable[Mapping[str, Any]]) -> Any:
    """The first of some inputs; they are made only when they are asked for."""
    for example in examples:
        return example
    raise NormprobeError("no inputs with an image to trace", "pass inputs, or data with images")


def _floating_dtypes(model: nn.Module) -> set[str]:
    """Of its weights, without those that are quantised or were not read."""
    weights = (w for w in model.parameters() if w.is_floating_point() and not w.is_meta)
    return {str(weight.dtype).removeprefix("torch.") for weight in weights}
