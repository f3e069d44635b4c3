"""Held-out accuracy of a specimen, with its own images and with shuffled images."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from experiments.specimen.chat import EOS_ID
from experiments.specimen.questions import QUESTION_KINDS, Question, ask
from experiments.specimen.scenes import Scene, render, sample_scene

HELD_OUT_SEED = 31337
BATCH_SIZE = 50


@dataclass(frozen=True)
class Item:
    """One test item."""

    scene: Scene
    question: Question


@dataclass(frozen=True)
class Score:
    """Accuracy on n items.

    Attributes:
        n: Number of items.
        accuracy: Share of right answers with each question's own image.
        shuffled: Share of right answers with the image of another item of the same kind.
    """

    n: int
    accuracy: float
    shuffled: float

    @property
    def standard_error(self) -> float:
        """Standard error of ``accuracy``."""
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.n)

    @property
    def shuffled_standard_error(self) -> float:
        """Standard error of ``shuffled``."""
        return math.sqrt(self.shuffled * (1 - self.shuffled) / self.n)


def held_out_items(per_kind: int) -> dict[str, list[Item]]:
    """Draw test items from a seed that no training stage uses.

    Args:
        per_kind: Items of each question kind.

    Returns:
        Items by question kind, one scene each.
    """
    rng = np.random.default_rng(HELD_OUT_SEED)
    items: dict[str, list[Item]] = {}
    for kind in QUESTION_KINDS:
        items[kind] = []
        while len(items[kind]) < per_kind:
            scene = sample_scene(rng)
            question = ask(scene, kind, rng)
            if question is not None:
                items[kind].append(Item(scene, question))
    return items


def score(model: Any, processor: Any, items: Sequence[Item]) -> Score:
    """Measure accuracy on items of one kind.

    Args:
        model: The model.
        processor: Its processor.
        items: At least two items.

    Returns:
        Accuracy with own and with shuffled images.
    """
    scenes = [item.scene for item in items]
    others = scenes[1:] + scenes[:1]
    questions = [item.question for item in items]
    right = answers_right(model, processor, scenes, questions)
    shuffled = answers_right(model, processor, others, questions)
    return Score(len(items), sum(right) / len(items), sum(shuffled) / len(items))


def conversation(scene: Scene, text: str) -> list[dict[str, Any]]:
    """Build the chat messages that ask one question about a scene."""
    content = [{"type": "image", "image": Image.fromarray(render(scene))}]
    return [{"role": "user", "content": [*content, {"type": "text", "text": text}]}]


@torch.inference_mode()
def answers_right(
    model: Any, processor: Any, scenes: Sequence[Scene], questions: Sequence[Question]
) -> list[bool]:
    """Tell which answers greedy decoding gets exactly right, the end of the answer included.

    Args:
        model: The model.
        processor: Its processor.
        scenes: The scene whose picture goes with each question.
        questions: The questions.

    Returns:
        One truth value per question.
    """
    right: list[bool] = []
    for start in range(0, len(questions), BATCH_SIZE):
        part = slice(start, start + BATCH_SIZE)
        dialogues = [
            [*conversation(scene, question.text), {"role": "assistant", "content": question.answer}]
            for scene, question in zip(scenes[part], questions[part], strict=True)
        ]
        inputs = processor.apply_chat_template(
            dialogues,
            tokenize=True,
            return_dict=True,
            processor_kwargs={"return_tensors": "pt", "padding": True},
        )
        predicted = model(**inputs).logits.argmax(-1)
        for row, question in enumerate(questions[part]):
            length = len(processor.tokenizer(" " + question.answer, add_special_tokens=False)[0])
            end = int((inputs["input_ids"][row] == EOS_ID).nonzero()[-1]) + 1
            # Greedy decoding yields the answer exactly if, given the answer so far, each of its
            # tokens is the most likely one. One pass over the full dialogue shows that.
            wanted = inputs["input_ids"][row, end - length - 1 : end]
            given = predicted[row, end - length - 2 : end - 1]
            right.append(bool((wanted == given).all()))
    return right
