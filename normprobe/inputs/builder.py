"""``InputBuilder``: samples to one batch of model inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from normprobe.data.bad_rows import RefusedSample
from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError, first_line
from normprobe.inputs import own_ways, standard
from normprobe.inputs.chat import PLAIN_LAYOUTS, image_token
from normprobe.inputs.image_numbers import with_image_numbers
from normprobe.inputs.inputs_file import NO_INPUTS_FILE, InputsFile
from normprobe.inputs.refusals import REFUSALS
from normprobe.inputs.vocabulary import special_token_ids, tokenizer_of, vocabulary_ids

if TYPE_CHECKING:
    from transformers import BatchFeature


@dataclass(frozen=True)
class InputBuilder:
    """Turns samples into the inputs of one model: images and text in the order of their pieces.

    Attributes:
        processor: from ``load_processor``. A bare tokenizer reads the prompts and leaves the images
            out; a bare image processor reads the images alone.
        system: ``None`` keeps what the chat template does; ``"none"`` suppresses a system prompt
            that the template would insert; other text is the system prompt.
        model_type: ``config.model_type`` of the model.
        own_code: whether the model's code is not that of transformers.
        inputs_file: of the model's family, or the user's. Its ``build`` comes first, with the
            shapes and the padding of the model's own processor.
        model: what ``build`` of the inputs file gets.
    """

    processor: Any
    system: str | None = None
    model_type: str | None = None
    own_code: bool = False
    inputs_file: InputsFile = NO_INPUTS_FILE
    model: Any = None

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

    def build(self, samples: Sequence[Sample]) -> BatchFeature:
        """Turn samples into one batch, in the model's chat format.

        Args:
            samples: at least one.

        Returns:
            Tensors; ``input_ids`` and ``attention_mask`` are [batch, seq], padded on the right, and
            the image tensors have the processor's own names and shapes. Where not each sample has
            one image, ``image_numbers`` says which image a position belongs to.

        Raises:
            RefusedSample: the processor does not take a sample; the message names it.
            NormprobeError: the chat template cannot show the prompt or the system prompt.
        """
        self._check_prompts(samples)
        try:
            return with_image_numbers(self._build(samples), samples, self._build)
        except MemoryError as error:
            raise NormprobeError(
                f"there is no memory for the inputs of {', '.join(map(_described, samples))}: "
                f"{first_line(error)}",
                "check the sizes in the processor's files, or use a smaller --batch-size",
            ) from error
        except (ImportError, OSError, *REFUSALS) as error:
            if len(samples) > 1:  # one by one: the message is to name the sample at fault
                for sample in samples:
                    self.build([sample])
            raise RefusedSample(
                f"the processor refuses {', '.join(map(_described, samples))}: {first_line(error)}",
                "leave the sample out of the data, or use --batch-size 1 if only the batch fails",
            ) from error

    def _build(self, samples: Sequence[Sample]) -> BatchFeature:
        from transformers import BatchFeature

        if build := self.inputs_file.build:
            return BatchFeature(dict(build(self.model, self.processor, samples, self.system)))
        if self.own_code:
            return own_ways.build(self.processor, samples, self.system)
        layout = PLAIN_LAYOUTS.get(self.model_type or "", "{turn}")
        return standard.build(self.processor, samples, self.system, layout)

    def _check_prompts(self, samples: Sequence[Sample]) -> None:
        placeholder = image_token(self.processor)
        for sample in samples:
            if placeholder and any(placeholder in text for text in sample.texts):
                raise RefusedSample(
                    f"{sample.id}: the prompt contains this model's image token {placeholder!r}",
                    "remove it from the prompt; normprobe places the image itself",
                )


def _described(sample: Sample) -> str:
    """The id, with the sizes of its images in pixels."""
    sizes = ", ".join(f"{image.width}x{image.height} px" for image in sample.images)
    return f"{sample.id} ({sizes})" if sizes else sample.id
