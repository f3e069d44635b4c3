"""Scenes and questions of each step, drawn from its own seed; no test scene is among them."""

from collections.abc import Iterator
from functools import cache

import numpy as np

from experiments.specimen.accuracy import Item, held_out_items
from experiments.specimen.held_out import KINDS, PER_KIND
from experiments.specimen.questions import Question, ask_many
from experiments.specimen.scenes import Scene, sample_scene

BATCH_SIZE = 8
QUESTIONS_PER_IMAGE = 6

Shown = tuple[tuple[str, str, int], ...]


def drawn(seed: int, stage: int, step: int) -> tuple[list[Scene], list[list[Question]]]:
    """Scenes of a step, and what is asked about each.

    Args:
        seed: of the run.
        stage: 1 or 2; 0: the language stage.
        step: of the stage.
    """
    rng = np.random.default_rng([seed, 100 + stage, step])
    scenes = fresh(rng)
    chosen = [next(scenes) for _ in range(BATCH_SIZE)]
    return chosen, [ask_many(scene, QUESTIONS_PER_IMAGE, rng, KINDS) for scene in chosen]


def fresh(rng: np.random.Generator) -> Iterator[Scene]:
    """Scenes whose objects, colours and places are those of no test scene."""
    while True:
        if shown(scene := sample_scene(rng)) not in _tested():
            yield scene


def shown(scene: Scene) -> Shown:
    """What a scene shows, whatever its noise, background and sizes."""
    return tuple((item.kind, item.color, item.cell) for item in scene.objects)


def held_out() -> dict[str, list[Item]]:
    """The 200 questions of ``--data scenes``, by kind."""
    items = held_out_items(PER_KIND)
    return {kind: items[kind] for kind in KINDS}


@cache
def _tested() -> frozenset[Shown]:
    return frozenset(shown(item.scene) for items in held_out().values() for item in items)
