"""``InputBuilder``: samples to one batch of model inputs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from normprobe.data.rows import RefusedSample
from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError, first_line
from normprobe.failures import install, missing_packages, of_other_line
from normprobe.inputs.chat import PLAIN_LAYOUTS, guessed_placeholder, image_token, other_tokens
from normprobe.inputs.inputs_file import GUESS, NO_INPUTS_FILE, InputsFile
from normprobe.inputs.on_device import pixel_inputs
from normprobe.inputs.processor import special_token_ids, tokenizer_of, vocabulary_ids
from normprobe.inputs.standard import (
    REFUSALS,
    build_documented,
    build_standard,
    prompts,
    reads_messages,
    refuse_incomplete,
)
from normprobe.inputs.token_groups import with_image_numbers, with_turn_numbers
from normprobe.sandbox import kept_in_sandbox, limited, try_in_sandbox
from normprobe.schema import AUDIO, IMAGE, VIDEO, VIDEO_MASK
from normprobe.tensors import arrays_as_tensors, find_named

if TYPE_CHECKING:
    from transformers import BatchFeature


#: Seconds of sound; no processor that is known needs more to write a token.
_SHORT = 0.5

#: What processors raise of samples that they do not take.
_REFUSED = (ImportError, OSError, *REFUSALS)

#: What to do where nothing that is known makes the inputs of code of its own.
WRITE = "say how its inputs are made: `normprobe inputs MODEL --write inputs.py` begins the file"


@dataclass(frozen=True)
class InputBuilder:
    """Turns samples into the inputs of one model: images and text in the order of their pieces."""

    # from ``load_processor``. A bare tokenizer reads the prompts and leaves the images out; a bare
    # image processor reads the images alone.
    processor: Any
    # ``None`` keeps what the chat template does; ``"none"`` suppresses a system prompt that the
    # template would insert; other text is the system prompt
    system: str | None = None
    model_type: str | None = None  # ``config.model_type`` of the model
    own_code: bool = False  # whether the model's code is not that of transformers
    # of the model's family, or the user's. Its ``build`` comes first, with the shapes and the
    # padding of the model's own processor.
    inputs_file: InputsFile = NO_INPUTS_FILE
    model: Any = None  # what ``build`` of the inputs file gets
    # whether the processor's files are a stranger's: what they make of samples is limited in a
    # worker, and tried in a sandbox, elsewhere
    bounded: bool = False
    longest: int | None = None  # how many tokens a prompt may have; None: any number
    by_turn: bool = False  # whether the inputs say which turn a token belongs to

    @property
    def tokenizer(self) -> Any:
        """The tokenizer; None for a bare image processor."""
        return tokenizer_of(self.processor)

    @property
    def special_token_ids(self) -> list[int]:
        """Ids that the tokenizer treats as special, ascending; none without a tokenizer."""
        return [] if self.tokenizer is None else special_token_ids(self.tokenizer)

    @property
    def vocabulary_ids(self) -> list[int]:
        """Ids that the tokenizer can emit, ascending; none without a tokenizer."""
        return [] if self.tokenizer is None else vocabulary_ids(self.tokenizer)

    @property
    def left_out(self) -> list[str]:
        """What a model that sees is not shown or told, in words, if anything."""
        if self.inputs_file.build is not None:
            lines = ", ".join(map(str, self.inputs_file.guesses))
            own = self.inputs_file.record.get("path", self.inputs_file.names)
            told = (
                f"lines {lines} of {own} are guesses still: numbers are as "
                f"right as they are; hold them against the model's page, and take {GUESS!r} away"
            )
            return [told] * bool(lines)
        if self.processor is None:
            return []
        kind = type(self.processor).__name__
        if self.tokenizer is self.processor:
            if reads_messages(self.processor):
                return []
            return [f"its processor is a bare tokenizer ({kind}), which reads no picture: {WRITE}"]
        both = (self.processor, self.tokenizer)
        templates = [getattr(each, "chat_template", None) for each in both]
        if self.own_code and (placeholder := guessed_placeholder(self.processor)):
            return [
                f"where a picture stands in a prompt is a guess: {placeholder!r} and a line break "
                f"before its text, around which its page may write more; to ask otherwise, {WRITE}"
            ]
        if templates[0] or not templates[1]:
            return []
        return [
            f"the tokenizer holds a chat template, and {kind} holds none, so prompts are plain "
            f"text; to ask as in a chat, {WRITE}"
        ]

    def build(self, samples: Sequence[Sample]) -> BatchFeature:
        """Turn samples into one batch, in the model's chat format.

        Returns:
            Tensors; ``input_ids`` and ``attention_mask`` are [batch, seq], padded on the right, and
            the image tensors have the processor's own names and shapes. Where not each sample has
            one image, ``image_numbers`` says which image a position belongs to; where ``by_turn``,
            ``turn_numbers`` which turn.
        """
        if self.bounded:
            unbounded = replace(self, bounded=False)
            if not _in_a_worker():
                what = f"making inputs of {', '.join(map(_described, samples))}"
                # no model and no file: what is bounded is built without
                alone = replace(unbounded, processor=None, model=None, inputs_file=NO_INPUTS_FILE)
                act = partial(_build_with_kept, alone, samples)
                times, pixels = _size_of(samples)
                try_in_sandbox(act, what, keep=self.processor, times=times, pixels=pixels)
            with self.limits(samples):
                return unbounded.build(samples)
        self._check_prompts(samples)
        try:
            inputs = with_image_numbers(self._build(samples), samples, self._build)
            if any(sample.earlier for sample in samples):  # some templates leave out what was said
                refuse_incomplete(inputs, self.processor, samples)
            if self.by_turn:
                inputs = with_turn_numbers(inputs, samples, self._build)
            self._check_media(inputs, samples)
            self._check_lengths(inputs, samples)
            return inputs
        except MemoryError as error:
            raise NormprobeError(
                f"there is no memory for the inputs of {', '.join(map(_described, samples))}: "
                f"{first_line(error)}",
                "check the sizes in the processor's files, or use a smaller --batch-size",
            ) from error
        except Exception as error:
            of_a_user = "path" in self.inputs_file.record  # their code may raise anything
            if isinstance(error, NormprobeError) or not (of_a_user or isinstance(error, _REFUSED)):
                raise
            if len(samples) > 1:  # one by one: the message is to name the sample at fault
                for sample in samples:
                    self.build([sample])
            remedy, who = "leave the sample out of the data", "the processor refuses"
            remedy += ", or use --batch-size 1 if only the batch fails" * (len(samples) > 1)
            if self.own_code and not self.inputs_file.build:
                remedy = WRITE
            elif own := self.inputs_file.record.get("path"):
                remedy = f"mend build() in {own}, or {remedy}{of_other_line(self.model)}"
                who = f"build() of {own} fails on"
            if packages := missing_packages(error):
                remedy = install(packages)
            elif of_a_user and re.search(r"\bmeta\b", str(error), re.IGNORECASE):
                remedy = (
                    "weights that this command does not need are not read, and build() met some: "
                    "name all parts in the file, or run `normprobe layers`"
                )
            elif getattr(self.processor, "patch_size", "") is None and "NoneType" in str(error):
                remedy = "set patch_size in processor_config.json, as the vision encoder has it"
            raise RefusedSample(
                f"{who} {', '.join(map(_described, samples))}: {first_line(error)}", remedy
            ) from error

    def limits(self, samples: Sequence[Sample]) -> AbstractContextManager[None]:
        """What reading samples may take in a worker: that process may be killed for it."""
        if self.bounded and _in_a_worker():
            times, pixels = _size_of(samples)
            return limited(times=times, pixels=pixels)
        return nullcontext()

    def _build(self, samples: Sequence[Sample]) -> BatchFeature:
        from transformers import BatchFeature

        if build := self.inputs_file.build:
            more = any(s.videos or s.audios or s.earlier for s in samples)
            if more and "family" in self.inputs_file.record:
                raise ValueError("the inputs of this family are one turn of text and images")
            try:
                made = build(self.model, self.processor, samples, self.system)
            except AttributeError as error:  # a model of the same names may have any other code
                if f"{type(self.model).__name__!r} object" not in str(error):
                    raise
                raise NormprobeError(
                    f"the inputs file of {self.inputs_file.names} does not fit this model: "
                    f"{first_line(error)}",
                    "pass --inputs FILE.py with a build of your own",
                ) from error
            return BatchFeature(arrays_as_tensors(dict(made)))
        if self.own_code:
            return build_documented(self.processor, samples, self.system)
        layout = PLAIN_LAYOUTS.get(self.model_type or "", "{turn}")
        return build_standard(self.processor, samples, self.system, layout)

    def prompt(self, sample: Sample) -> tuple[str, bool]:
        """What another engine is asked, a placeholder for each image; whether it adds special ids.

        Raises:
            NormprobeError: the inputs are made by code of the model's or of an inputs file.
        """
        if self.inputs_file.build or self.own_code:
            raise NormprobeError(
                "the inputs of this model are made by code of its own, which no prompt says",
                "save the states of its input_ids by hand: docs/how-to/engines.md",
            )
        layout = PLAIN_LAYOUTS.get(self.model_type or "", "{turn}")
        (text,), special = prompts(self.processor, [sample], self.system, layout)
        return text, special

    def _check_media(self, inputs: BatchFeature, samples: Sequence[Sample]) -> None:
        """Refuse inputs without the clips or sounds of the samples."""
        token = None if self.inputs_file.build else other_tokens(self.processor).get(AUDIO)
        for sound in (sound for sample in samples for sound in sample.audios):
            if token and len(sound.samples) < _SHORT * sound.rate:
                # alone: padded beside a longer one it may pass
                ids = find_named(self._build([Sample("", "What?", audios=(sound,))]), "input_ids")
                if ids is not None and self.tokenizer.convert_tokens_to_ids(token) not in ids:
                    raise ValueError("no token stands for so short a sound")
        for group in (VIDEO, AUDIO):
            there = pixel_inputs(inputs, group) or (group == VIDEO and VIDEO_MASK in inputs)
            if any(group in sample.media for sample in samples) and not there:
                raise ValueError(f"what it returns holds no {group}: {', '.join(inputs)}")

    def _check_lengths(self, inputs: BatchFeature, samples: Sequence[Sample]) -> None:
        """Refuse prompts that are longer than the model has positions for."""
        ids = find_named(inputs, "input_ids")
        if self.longest is None or ids is None or ids.shape[-1] <= self.longest:
            return
        mask = find_named(inputs, "attention_mask")
        fits = mask is not None and mask.shape == ids.shape
        lengths = mask.sum(dim=-1).tolist() if fits else [ids.shape[-1]] * len(samples)
        for sample, length in zip(samples, lengths, strict=True):
            if length > self.longest:
                raise RefusedSample(
                    f"the prompt of {sample.id} has {length} tokens, more than the {self.longest} "
                    "positions of the model (max_position_embeddings)",
                    "shorten it, or pass --allow-long-prompts",
                )

    def _check_prompts(self, samples: Sequence[Sample]) -> None:
        tokens = {IMAGE: image_token(self.processor), **other_tokens(self.processor)}
        for sample in samples:
            for kind, token in tokens.items():
                if token and any(token in text for text in sample.texts):
                    raise RefusedSample(
                        f"{sample.id}: the prompt contains this model's {kind} token {token!r}",
                        f"remove it from the prompt; normprobe places the {kind} itself",
                    )


def _build_with_kept(builder: InputBuilder, samples: Sequence[Sample]) -> None:
    """Build in the helper, which keeps the processor."""
    replace(builder, processor=kept_in_sandbox()).build(samples)


def _in_a_worker() -> bool:
    from torch.utils.data import get_worker_info

    return get_worker_info() is not None


def _size_of(samples: Sequence[Sample]) -> tuple[int, int]:
    """How many samples there are, and how many pixels and numbers of sounds."""
    pixels = sum(sample.pixels for sample in samples)
    pixels += sum(len(audio.samples) for sample in samples for audio in sample.audios)
    return len(samples), pixels


def _described(sample: Sample) -> str:
    """The id, with the sizes of its images in pixels."""
    sizes = [f"{image.width}x{image.height} px" for image in sample.images]
    sizes += [f"{len(video.frames)} frames" for video in sample.videos]
    sizes += [f"{len(audio.samples) / audio.rate:.3g} s" for audio in sample.audios]
    return f"{sample.id} ({', '.join(sizes)})" if sizes else sample.id
