"""What every measuring command begins with: the model in memory, and a run folder."""

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normprobe.cli import console
from normprobe.cli.options import named_parts
from normprobe.errors import NormprobeError

if TYPE_CHECKING:
    import pandas as pd
    from transformers import BatchFeature

    from normprobe.data.datasets import DataSet
    from normprobe.data.sample import Sample
    from normprobe.model.checkpoint import Checkpoint
    from normprobe.model.parts import Parts
    from normprobe.report.run_dir import RunDir


@dataclass(frozen=True)
class Subject:
    """A loaded model with its parts and its processor."""

    checkpoint: "Checkpoint"
    model: Any
    parts: "Parts"
    processor: Any
    found_by: str  # how the parts were found

    @property
    def tokenizer(self) -> Any:
        """The tokenizer; None for a bare vision encoder."""
        tokenizer = getattr(self.processor, "tokenizer", self.processor)
        return tokenizer if hasattr(tokenizer, "get_vocab") else None

    @property
    def vocabulary_ids(self) -> list[int]:
        """Ids the tokenizer can emit."""
        from normprobe.data.vocabulary import vocabulary_ids

        return [] if self.tokenizer is None else vocabulary_ids(self.tokenizer)

    @property
    def special_token_ids(self) -> list[int]:
        """Ids of the tokenizer's special tokens."""
        from normprobe.data.batches import special_token_ids

        return special_token_ids(self.processor)


def begin(
    command: str, options: Mapping[str, Any], kinds: Sequence[str] | None = None
) -> "tuple[Subject, DataSet, RunDir]":
    """Check everything that can be wrong, create the run folder, then load.

    Args:
        command: names the run folder.
        options: the command's options by name, recorded as they are.
        kinds: the kinds of checkpoint that the command can measure; None: any.

    Returns:
        The model with its parts, the samples, and the run folder.

    Raises:
        NormprobeError: whatever of these fails; nothing is written before the run folder is due.
    """
    from normprobe.cli.align import align_subject
    from normprobe.data.datasets import open_data
    from normprobe.model.checkpoint import open_checkpoint
    from normprobe.model.overrides import OVERRIDES

    checkpoint = open_checkpoint(
        options["model"],
        revision=options["revision"],
        trust_remote_code=options["trust_remote_code"],
    )
    if kinds is not None and checkpoint.kind not in kinds:
        raise NormprobeError(
            f"{checkpoint.name} is a {checkpoint.kind}; {command} needs a {' or '.join(kinds)}, "
            f"because the samples of --data {options['data']} hold images",
            f"measure the side that exists: normprobe interface {options['model']}",
        )
    if OVERRIDES.get(checkpoint.config.model_type, {}).get("videos_only"):
        raise NormprobeError(
            f"{checkpoint.name} ({checkpoint.config.model_type}) reads videos; {command} measures "
            "images",
            "`normprobe embeddings` and `normprobe inspect` work without images",
        )
    samples = open_data(options["data"], limit=options["limit"], seed=options["seed"])
    run = start_run(command, checkpoint, samples, options["output"], options["overwrite"], options)
    loading = ("device", "dtype", "device_map", "attn_implementation")
    with run.discarded_on_failure():
        subject = load_subject(
            checkpoint,
            **{name: options[name] for name in loading},
            named=named_parts(options),
            samples=samples,
            system=options["system"],
        )
        if options["verify"]:
            verify_parts(run, subject, samples, options["system"])
        align_subject(run, subject, samples, options)
    return subject, samples, run


def load_subject(
    checkpoint: "Checkpoint",
    *,
    device: str = "auto",
    dtype: str = "auto",
    device_map: str | None = None,
    attn_implementation: str | None = None,
    named: Mapping[str, object] | None = None,
    samples: "DataSet | None" = None,
    system: str | None = None,
) -> Subject:
    """Load the model and its processor, and find the parts that are not named by hand.

    With samples, the first of them that has an image helps where the model's structure does not
    tell.
    """
    from transformers.utils import logging

    from normprobe.analyses.finding import find_or_trace
    from normprobe.data.batches import load_processor
    from normprobe.model.checkpoint import LANGUAGE_MODEL, VISION_ENCODER
    from normprobe.model.loading import load_model

    if not sys.stderr.isatty():
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    processor = load_processor(
        checkpoint.source,
        revision=checkpoint.revision,
        trust_remote_code=checkpoint.trust_remote_code,
        auto_class={LANGUAGE_MODEL: "AutoTokenizer", VISION_ENCODER: "AutoImageProcessor"}.get(
            checkpoint.kind, "AutoProcessor"
        ),
    )
    model = load_model(
        checkpoint,
        device=device,
        dtype=dtype,
        device_map=device_map,
        attn_implementation=attn_implementation,
    )
    parts, found_by = find_or_trace(
        model, named or {}, lambda: example_inputs(checkpoint, processor, samples or (), system)
    )
    return Subject(checkpoint, model, parts, processor, found_by)


def example_inputs(
    checkpoint: "Checkpoint", processor: Any, samples: "Iterable[Sample]", system: str | None
) -> "BatchFeature":
    """The inputs of the first sample that has an image."""
    from normprobe.data.batches import build_inputs

    example = next((sample for sample in samples if sample.image is not None), None)
    if example is None:
        raise NormprobeError("no sample has an image to trace", "pass --data with images")
    model_type = checkpoint.config.model_type
    return build_inputs(processor, [example], system=system, model_type=model_type)


def start_run(
    command: str,
    checkpoint: "Checkpoint",
    data: "DataSet | None",
    output: Path | None,
    overwrite: bool,
    options: Mapping[str, object],
) -> "RunDir":
    """Create the run folder before anything slow is done: a bad --output costs no time."""
    from normprobe.report.provenance import provenance
    from normprobe.report.run_dir import RunDir, default_run_path

    path = output or _free(default_run_path(checkpoint.name, command, data.name if data else None))
    record = provenance(
        sys.argv,
        options,
        command=command,
        model=checkpoint.name,
        model_revision=checkpoint.revision,
        model_type=checkpoint.config.model_type,
        data=data.name if data else None,
        data_provenance=data.provenance if data else None,
        sample_ids=data.ids if data else [],
    )
    return RunDir.create(path, overwrite=overwrite, record=record)


def _free(path: Path) -> Path:
    """The path, numbered where another run began in the same second."""
    taken = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return next(free for free in chain([path], taken) if not free.exists())


def note_subject(run: "RunDir", subject: Subject) -> None:
    """Record what was loaded: parts, device, dtype, attention."""
    from normprobe.analyses.inspect import norm_placement_note
    from normprobe.model.overrides import FUSIONS
    from normprobe.model.parts import family_of

    run.note(
        parts_found_by=subject.found_by,
        parts={role: part.name for role, part in subject.parts},
        image_token_ids=list(subject.parts.image_token_ids),
        family=family_of(subject.parts),
        norm_placement=norm_placement_note(subject.model, subject.parts),
        fusion=f"{subject.parts.fusion}: {FUSIONS[subject.parts.fusion]}",
        residual_stream=subject.parts.stream.meaning,
        device=str(subject.model.device),
        dtype=str(subject.model.dtype).removeprefix("torch."),
        attn_implementation=getattr(subject.model.config, "_attn_implementation", None),
    )
    if family_of(subject.parts) == "projector" and subject.parts.projector is None:
        warning = "no projector found: its stages are left out; --projector NAME names one"
        run.add_warning(warning)
        console.talk(f"warning: {warning}")


def verify_parts(
    run: "RunDir", subject: Subject, samples: "Iterable[Sample]", system: str | None
) -> None:
    """Trace one sample, and say where the trace and the parts in use agree."""
    from normprobe.analyses.finding import verified

    example = example_inputs(subject.checkpoint, subject.processor, samples, system)
    table = verified(subject.model, subject.parts, example)
    run.note(verified=table.to_dict("records"))
    for _, row in table.iterrows():
        word = "agrees" if row["agree"] else f"DIFFERS: the trace finds {row['traced']}"
        console.talk(f"{row['part'].replace('_', ' ')}: {row['static']} {word}")
    if not table["agree"].all():
        run.add_warning("parts differ from a trace of the running model, see `verified`")


def input_batches(
    subject: Subject, data: "DataSet", batch_size: int, system: str | None, run: "RunDir"
) -> "Iterator[tuple[Sequence[str], BatchFeature]]":
    """Sample ids and model inputs, batch by batch. Image hashes go to the run's record."""
    from normprobe.data.batches import batches

    hashes: dict[str, str | None] = {}
    model_type = subject.checkpoint.config.model_type
    for samples, inputs in batches(
        data, subject.processor, batch_size, system, model_type=model_type
    ):
        hashes.update((sample.id, sample.image_hash) for sample in samples)
        yield [sample.id for sample in samples], inputs
    run.note(image_hashes=hashes)


def collect(
    run: "RunDir", rows: "Iterator[pd.DataFrame]", data: "DataSet", batch_size: int, what: str
) -> "pd.DataFrame":
    """Write each batch of sample rows as it comes, and return them all."""
    total = -(-len(data) // batch_size)
    for batch in console.progress(rows, total=total, what=what):
        run.append(batch)
    collected = run.rows()
    if collected.empty:
        raise NormprobeError(f"{data.name} holds no samples", "pass another --data")
    return collected


def finish_run(
    run: "RunDir", command: str, tables: "Mapping[str, pd.DataFrame]", started: float
) -> None:
    """Write the tables, draw the plots from them, call the run complete."""
    from normprobe.report.plots import draw

    for name, table in tables.items():
        run.write_table(name, table)
    draw(command, run.path)
    run.finish(seconds=round(time.perf_counter() - started, 3))
