"""A start for the projector: each visual token near the words of what it shows.

LLaVA's projector finds this by half a million captions. Here it is a regression without the
decoder, of seconds: the target of a visual token is the mean of the text embeddings of colour,
kind and place of the objects that it covers.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from experiments.smollm.encoder import POOLED_PATCH_SIZE, VISUAL_TOKENS, features
from experiments.specimen.pixels import to_pixel_values
from experiments.specimen.scenes import IMAGE_SIZE, POSITIONS, Scene, render, sample_scene
from experiments.specimen.training import Averages, Trainer, TrainingLog, is_log_step

BACKGROUND = "empty"
STEPS = 300
BATCH_SIZE = 16
LEARNING_RATE = 2e-3


def words_shown(scene: Scene) -> list[str]:
    """The words of each visual token, row by row."""
    side = IMAGE_SIZE // POOLED_PATCH_SIZE
    edges = np.arange(side) * POOLED_PATCH_SIZE
    found: list[list[str]] = [[] for _ in range(VISUAL_TOKENS)]
    for item in scene.objects:
        columns, rows = (
            (edges < middle + item.radius) & (edges + POOLED_PATCH_SIZE > middle - item.radius)
            for middle in item.center
        )
        for token in np.flatnonzero(rows[:, None] & columns[None, :]):
            found[token].append(f"{item.color} {item.kind} {POSITIONS[item.cell]}")
    return [" ".join(words) or BACKGROUND for words in found]


class Words:
    """Text to the mean of its tokens' embeddings."""

    def __init__(self, table: Tensor, tokenizer: Any) -> None:
        self._table, self._tokenizer = table, tokenizer
        self._known: dict[str, Tensor] = {}

    def __call__(self, text: str) -> Tensor:
        """``[hidden]``; a digit is the same token behind a space and without."""
        if text not in self._known:
            ids = self._tokenizer(" " + text, add_special_tokens=False)["input_ids"]
            blank = self._tokenizer(" ", add_special_tokens=False)["input_ids"]
            self._known[text] = self._table[[each for each in ids if [each] != blank]].mean(0)
        return self._known[text]


def taught(
    projector: nn.Module,
    vision: Any,
    words: Words,
    seed: int,
    steps: int,
    folder: Path,
    log: TrainingLog,
) -> None:
    """Teach a projector in place; once a seed and folder, where ``projector-SEED.pt`` is kept.

    The log has the share of variance that it misses.
    """
    path = folder / f"projector-{seed}.pt"
    if path.exists():
        projector.load_state_dict(torch.load(path, weights_only=True))
        return
    rng = np.random.default_rng([seed, 90])
    trainer = Trainer(
        projector.parameters(), steps=steps, learning_rate=LEARNING_RATE, weight_decay=0.0
    )
    averages = Averages()
    for step in range(1, steps + 1):
        scenes = [sample_scene(rng) for _ in range(BATCH_SIZE)]
        wanted = torch.stack([words(text) for scene in scenes for text in words_shown(scene)])
        with torch.no_grad():
            read = features(vision, to_pixel_values([render(scene) for scene in scenes]))
        missed = (projector(read).flatten(0, 1) - wanted).square().mean()
        loss = missed / (wanted - wanted.mean(0)).square().mean()
        trainer.step(loss)
        averages.add("missed", loss.item())
        if is_log_step(step, steps):
            log.record("words", step, seed=seed, **averages.take())
    torch.save(projector.state_dict(), path)
