"""A packed question is computed as if it were asked alone, and the same text is used."""

from typing import Any

import numpy as np
import pytest
import torch

from experiments.specimen.accuracy import conversation
from experiments.specimen.chat import IMAGE_PREFIX
from experiments.specimen.packing import Encoder, pack
from experiments.specimen.pixels import to_pixel_values
from experiments.specimen.questions import Question, ask_many
from experiments.specimen.scenes import render, sample_scene

pytestmark = pytest.mark.slow  # no behaviour of the package

SCENE = sample_scene(np.random.default_rng(11))
QUESTIONS = ask_many(SCENE, 3, np.random.default_rng(12))


def ask_alone(processor: Any, question: Question) -> Any:
    answered = {"role": "assistant", "content": question.answer}
    return processor.apply_chat_template(
        [*conversation(SCENE, question.text), answered],
        tokenize=True,
        return_dict=True,
        processor_kwargs={"return_tensors": "pt"},
    )


def test_training_text_is_the_chat_template(specimen: tuple[Any, Any]) -> None:
    processor = specimen[1]
    encode = Encoder(processor.tokenizer)
    for question in QUESTIONS:
        packed = pack([IMAGE_PREFIX], [[question]], encode)
        alone = ask_alone(processor, question)["input_ids"][0].tolist()
        # The last token of the dialogue is only a label.
        assert packed.input_ids[0].tolist() == alone[:-1]
        assert packed.labels[0][-1] == alone[-1]


def test_pixels_are_those_of_the_processor(specimen: tuple[Any, Any]) -> None:
    expected = ask_alone(specimen[1], QUESTIONS[0])["pixel_values"]
    assert torch.allclose(to_pixel_values([render(SCENE)]), expected, atol=1e-5)


@torch.inference_mode()
def test_packed_questions_do_not_see_each_other(specimen: tuple[Any, Any]) -> None:
    model, processor = specimen
    encode = Encoder(processor.tokenizer)
    other = sample_scene(np.random.default_rng(13))
    batch = pack([IMAGE_PREFIX, IMAGE_PREFIX], [QUESTIONS, QUESTIONS[:1]], encode)
    together = model(
        input_ids=batch.input_ids,
        pixel_values=to_pixel_values([render(SCENE), render(other)]),
        attention_mask=batch.attention_mask,
        position_ids=batch.position_ids,
    ).logits
    for index, question in enumerate(QUESTIONS, start=1):
        alone = model(**ask_alone(processor, question)).logits[0]
        length = int((batch.groups[0] == index).sum())
        assert torch.allclose(
            together[0][batch.groups[0] == index], alone[-length - 1 : -1], atol=1e-4
        )
