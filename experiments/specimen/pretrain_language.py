"""Stage 2: the language model reads captions and answers questions about them, without images."""

import numpy as np
import torch
from torch.nn import functional
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from experiments.specimen.architecture import build_language_model
from experiments.specimen.chat import ANSWER_CUE, DESCRIBE, train_tokenizer
from experiments.specimen.packing import (
    CAPTION_KIND,
    NO_LABEL,
    Encoder,
    answer_scores,
    hidden_states,
    pack,
)
from experiments.specimen.questions import Question, ask_many
from experiments.specimen.scenes import caption, sample_scene
from experiments.specimen.training import Averages, Trainer, TrainingLog, is_log_step

LEARNING_RATE = 1e-3
# Decay keeps the residual updates small, so that visual tokens stay louder than text in each layer.
WEIGHT_DECAY = 0.5
BATCH_SIZE = 8
QUESTIONS_PER_SCENE = 12
CAPTION_SHARE = 0.1
CONTEXT_WEIGHT = 0.2
TOKENIZER_SCENES = 3000


def caption_context(text: str) -> str:
    """Open a dialogue with a caption in place of an image."""
    return f"USER: The image shows {text}\n"


def build_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Train the tokenizer on captions, questions and answers.

    Args:
        seed: Seed of the scenes.

    Returns:
        The tokenizer.
    """
    rng = np.random.default_rng([seed, 20])
    texts = []
    for _ in range(TOKENIZER_SCENES):
        scene = sample_scene(rng)
        texts.append(f"{caption_context(caption(scene))}{DESCRIBE}{ANSWER_CUE}")
        texts += [
            f"{question.text}{ANSWER_CUE} {question.answer}" for question in ask_many(scene, 4, rng)
        ]
    return train_tokenizer(texts)


def pretrain_language(
    tokenizer: PreTrainedTokenizerFast, steps: int, seed: int, log: TrainingLog
) -> LlamaForCausalLM:
    """Train the language model on text alone.

    Args:
        tokenizer: The tokenizer.
        steps: Optimizer steps.
        seed: Seed of the weights and of the scenes.
        log: Where progress goes.

    Returns:
        The trained language model.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng([seed, 21])
    encode = Encoder(tokenizer)
    model = build_language_model(len(tokenizer))
    trainer = Trainer(
        model.parameters(),
        steps=steps,
        learning_rate=LEARNING_RATE,
        weight_decay=WEIGHT_DECAY,
        # In trials with decay here, the output rows of words that are equally likely in a caption
        # (the colours) grew alike, and finetuning did not learn to tell them apart.
        undecayed=model.lm_head.parameters(),
    )
    averages = Averages()
    for step in range(1, steps + 1):
        scenes = [sample_scene(rng) for _ in range(BATCH_SIZE)]
        questions = [ask_many(scene, QUESTIONS_PER_SCENE, rng) for scene in scenes]
        for scene, asked in zip(scenes, questions, strict=True):
            if rng.random() < CAPTION_SHARE:
                asked[-1] = Question(CAPTION_KIND, DESCRIBE, caption(scene))
        contexts = [caption_context(caption(scene)) for scene in scenes]
        batch = pack(contexts, questions, encode, learn_context=True)
        hidden = hidden_states(model, batch)
        labelled = batch.labels != NO_LABEL
        logits, labels = model.lm_head(hidden[labelled]), batch.labels[labelled]
        losses = functional.cross_entropy(logits, labels, reduction="none")
        is_answer = batch.groups[labelled] > 0
        answer_loss, context_loss = losses[is_answer].mean(), losses[~is_answer].mean()
        trainer.step(answer_loss + CONTEXT_WEIGHT * context_loss)
        averages.add("answer_loss", answer_loss.item())
        averages.add("context_loss", context_loss.item())
        scores = answer_scores(logits.argmax(-1) == labels, batch, labelled)
        for kind, (hits, total) in scores.items():
            averages.add(kind, hits, total)
        if is_log_step(step, steps):
            log.record("pretrain_language", step, **averages.take())
    return model
