"""Stages 3 and 4: join the parts and teach the language model to read visual tokens.

As in LLaVA, the projector is first trained alone on captions, then the projector and the language
model together on questions. The vision encoder stays frozen.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers import LlavaForConditionalGeneration, PreTrainedTokenizerFast

from experiments.specimen.chat import DESCRIBE, IMAGE_PREFIX
from experiments.specimen.packing import (
    CAPTION_KIND,
    NO_LABEL,
    Encoder,
    PackedBatch,
    answer_scores,
    hidden_states,
    pack,
)
from experiments.specimen.pixels import to_pixel_values
from experiments.specimen.pretrain_language import LEARNING_RATE, WEIGHT_DECAY
from experiments.specimen.questions import Question, ask_many
from experiments.specimen.scenes import Scene, caption, render, sample_scene
from experiments.specimen.training import Averages, Trainer, TrainingLog, is_log_step

PROJECTOR_LEARNING_RATE = 2e-3
BATCH_SIZE = 8
QUESTIONS_PER_IMAGE = 12
CAPTION_SHARE = 0.1

Ask = Callable[[Scene, np.random.Generator], list[Question]]


def align_projector(
    model: LlavaForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    steps: int,
    seed: int,
    log: TrainingLog,
    also: nn.Module | None = None,
) -> None:
    """Stage 3: train the projector alone to caption images.

    Args:
        model: The joined model, changed in place.
        tokenizer: The tokenizer.
        steps: Optimizer steps.
        seed: Seed of the scenes.
        log: Where progress goes.
        also: A module behind the projector, trained with it.
    """
    trained = nn.ModuleList([model.model.multi_modal_projector, *([also] if also else [])])
    model.requires_grad_(False)
    trained.requires_grad_(True)
    trainer = Trainer(
        trained.parameters(),
        steps=steps,
        learning_rate=PROJECTOR_LEARNING_RATE,
        weight_decay=0.0,
    )
    rng = np.random.default_rng([seed, 30])
    _train("align_projector", model, Encoder(tokenizer), trainer, steps, rng, ask_caption, log)


def finetune(
    model: LlavaForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    steps: int,
    seed: int,
    log: TrainingLog,
) -> None:
    """Stage 4: train the projector and the language model to answer questions.

    Args:
        model: The joined model, changed in place.
        tokenizer: The tokenizer.
        steps: Optimizer steps.
        seed: Seed of the scenes.
        log: Where progress goes.
    """
    model.requires_grad_(True)
    model.model.vision_tower.requires_grad_(False)
    trainer = Trainer(
        (item for item in model.parameters() if item.requires_grad),
        steps=steps,
        learning_rate=LEARNING_RATE,
        weight_decay=WEIGHT_DECAY,
        # As in the stage before, and for the same reason.
        undecayed=model.lm_head.parameters(),
    )
    rng = np.random.default_rng([seed, 40])
    _train("finetune", model, Encoder(tokenizer), trainer, steps, rng, _ask_mixed, log)


def _train(
    stage: str,
    model: LlavaForConditionalGeneration,
    encode: Encoder,
    trainer: Trainer,
    steps: int,
    rng: np.random.Generator,
    ask: Ask,
    log: TrainingLog,
) -> None:
    """Run one stage on fresh scenes; every scene is used once."""
    averages = Averages()
    for step in range(1, steps + 1):
        loss, scores = answer_loss(model, encode, rng, ask)
        trainer.step(loss)
        averages.add("loss", loss.item())
        for kind, (hits, total) in scores.items():
            averages.add(kind, hits, total)
        if is_log_step(step, steps):
            log.record(stage, step, **averages.take())


def answer_loss(
    model: LlavaForConditionalGeneration, encode: Encoder, rng: np.random.Generator, ask: Ask
) -> tuple[torch.Tensor, dict[str, tuple[int, int]]]:
    """Run the model on a batch of fresh scenes.

    Args:
        model: The joined model.
        encode: Text to token ids.
        rng: Draws the scenes and the questions.
        ask: Chooses the questions about a scene.

    Returns:
        The scalar loss of the answers, and right answers and all answers per question kind.
    """
    scenes = [sample_scene(rng) for _ in range(BATCH_SIZE)]
    batch = pack([IMAGE_PREFIX] * BATCH_SIZE, [ask(scene, rng) for scene in scenes], encode)
    return batch_loss(model, batch, scenes)


def batch_loss(
    model: Any, batch: PackedBatch, scenes: Sequence[Scene]
) -> tuple[torch.Tensor, dict[str, tuple[int, int]]]:
    """Run the model on packed dialogues about scenes, one scene each.

    Returns:
        As ``answer_loss``.
    """
    pixels = to_pixel_values([render(scene) for scene in scenes]).to(model.device)
    batch = batch.to(model.device)
    hidden = hidden_states(model, batch, pixel_values=pixels)
    labelled = batch.labels != NO_LABEL
    logits, labels = model.lm_head(hidden[labelled]), batch.labels[labelled]
    loss = functional.cross_entropy(logits.float(), labels)
    return loss, answer_scores(logits.argmax(-1) == labels, batch, labelled)


def ask_caption(scene: Scene, rng: np.random.Generator) -> list[Question]:
    """Ask for the caption only."""
    return [Question(CAPTION_KIND, DESCRIBE, caption(scene))]


def _ask_mixed(scene: Scene, rng: np.random.Generator) -> list[Question]:
    """Ask questions, and sometimes for the caption."""
    questions = ask_many(scene, QUESTIONS_PER_IMAGE, rng)
    if rng.random() < CAPTION_SHARE:
        questions[-1] = Question(CAPTION_KIND, DESCRIBE, caption(scene))
    return questions
