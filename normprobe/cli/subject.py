"""The model that a command measures: its weights, its parts, its processor."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from normprobe.cli import console
from normprobe.errors import NormprobeError

if TYPE_CHECKING:
    from transformers import BatchFeature

    from normprobe.data.sample import Sample
    from normprobe.model.checkpoint import Checkpoint
    from normprobe.model.parts import Parts
    from normprobe.model.plan import LoadPlan
    from normprobe.report.run_dir import RunDir


@dataclass(frozen=True)
class Subject:
    """A loaded model with its parts and its processor."""

    checkpoint: "Checkpoint"
    model: Any
    parts: "Parts"
    processor: Any
    found_by: str  # how the parts were found
    plan: "LoadPlan"  # which weights were read

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


def load_subject(
    command: str,
    checkpoint: "Checkpoint",
    *,
    device: str = "auto",
    dtype: str = "auto",
    device_map: str | None = None,
    attn_implementation: str | None = None,
    range_reads: bool = False,
    named: Mapping[str, object] | None = None,
    samples: "Iterable[Sample]" = (),
    system: str | None = None,
    quiet: bool = False,
) -> Subject:
    """Load what a command needs of the model, and its processor; find the parts.

    Args:
        command: says which weights are needed, a key of ``unneeded.NEEDED``.
        checkpoint: of ``open_checkpoint``.
        device: as ``load_model`` takes it, like the three that follow.
        dtype: likewise.
        device_map: likewise.
        attn_implementation: likewise.
        range_reads: of files that are not here, fetch the needed bytes alone.
        named: parts named by hand.
        samples: the first of them that has an image helps where the structure of the model does
            not tell its parts.
        system: the system prompt of that sample.
        quiet: do not say what is read.
    """
    from transformers.utils import logging

    from normprobe.analyses.finding import find_or_trace
    from normprobe.data.batches import load_processor
    from normprobe.model.checkpoint import LANGUAGE_MODEL, VISION_ENCODER
    from normprobe.model.loading import load_model, plan_for
    from normprobe.report.reading import reading_sentence

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
    plan = plan_for(command, checkpoint, named=named, range_reads=range_reads)
    if plan.files and not quiet:
        console.talk(reading_sentence(plan))
    model = load_model(
        checkpoint,
        plan,
        device=device,
        dtype=dtype,
        device_map=device_map,
        attn_implementation=attn_implementation,
    )
    parts, found_by = find_or_trace(
        model, named or {}, lambda: example_inputs(checkpoint, processor, samples, system)
    )
    return Subject(checkpoint, model, parts, processor, found_by, plan)


def example_inputs(
    checkpoint: "Checkpoint", processor: Any, samples: "Iterable[Sample]", system: str | None
) -> "BatchFeature":
    """The inputs of the first sample that has an image and that the processor takes."""
    from normprobe.data.bad_rows import RefusedSample
    from normprobe.data.batches import build_inputs

    refusal = NormprobeError("no sample has an image to trace", "pass --data with images")
    for sample in samples:
        if sample.image is None:
            continue
        try:
            return build_inputs(
                processor, [sample], system=system, model_type=checkpoint.config.model_type
            )
        except RefusedSample as error:
            refusal = error
    raise refusal


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
