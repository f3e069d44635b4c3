"""Questions about scenes, each with one certain answer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

import numpy as np

from experiments.specimen.scenes import COLORS, POSITIONS, SHAPES, Scene, SceneObject

Item = TypeVar("Item")

LETTERS = "ABCD"
COLOR_NAMES = tuple(COLORS)


@dataclass(frozen=True)
class Question:
    """One question and its answer.

    Attributes:
        kind: A key of ``QUESTION_KINDS``.
        text: What the user asks.
        answer: The only right answer, in the words that the model is taught.
    """

    kind: str
    text: str
    answer: str


def ask(scene: Scene, kind: str, rng: np.random.Generator) -> Question | None:
    """Ask one question of a given kind.

    Args:
        scene: The scene that the question is about.
        kind: A key of ``QUESTION_KINDS``.
        rng: Source of all randomness.

    Returns:
        The question, or None where the scene allows no unambiguous question of this kind.
    """
    made = _MAKERS[kind](scene, rng)
    return None if made is None else Question(kind, *made)


def ask_many(
    scene: Scene, count: int, rng: np.random.Generator, among: Sequence[str] = ()
) -> list[Question]:
    """Ask several questions, kinds drawn with the weights of ``QUESTION_KINDS``.

    Args:
        scene: The scene that the questions are about.
        count: How many questions.
        rng: Source of all randomness.
        among: Kinds to draw from; none: all.

    Returns:
        Exactly ``count`` questions.
    """
    kinds = list(among or QUESTION_KINDS)
    weights = np.array([QUESTION_KINDS[kind] for kind in kinds])
    questions: list[Question] = []
    while len(questions) < count:
        for index in rng.choice(len(kinds), size=2 * count, p=weights / weights.sum()):
            question = ask(scene, kinds[index], rng)
            if question is not None and len(questions) < count:
                questions.append(question)
    return questions


def _existence(scene: Scene, rng: np.random.Generator) -> tuple[str, str] | None:
    """Ask whether a coloured shape is there; yes and no are equally likely."""
    present = {(item.kind, item.color) for item in scene.shapes}
    if not present:
        return None
    shape, color = _pick(sorted(present), rng)
    answer = "yes"
    if rng.random() < 0.5:
        answer = "no"
        absent = [pair for pair in product(SHAPES, COLOR_NAMES) if pair not in present]
        # Half of the absent pairs share one word with a real object, so both words matter.
        near = [pair for pair in absent if (pair[0] == shape) != (pair[1] == color)]
        shape, color = _pick(near if near and rng.random() < 0.5 else absent, rng)
    return f"Is there a {color} {shape} in the image? Please answer yes or no.", answer


def _color(scene: Scene, rng: np.random.Generator) -> tuple[str, str] | None:
    """Ask for the colour of the only shape of its kind."""
    item = _unique(scene.shapes, lambda item: item.kind, scene.shapes, rng)
    return None if item is None else (f"What color is the {item.kind}?", item.color)


def _shape(scene: Scene, rng: np.random.Generator) -> tuple[str, str] | None:
    """Ask for the shape of the only object of its colour."""
    item = _unique(scene.shapes, lambda item: item.color, scene.objects, rng)
    return None if item is None else (f"What shape is the {item.color} object?", item.kind)


def _position(scene: Scene, rng: np.random.Generator) -> tuple[str, str] | None:
    """Ask where the only object of its colour and shape is."""
    item = _unique(scene.shapes, lambda item: item.color + item.kind, scene.shapes, rng)
    if item is None:
        return None
    return f"Where is the {item.color} {item.kind}?", POSITIONS[item.cell]


def _count(scene: Scene, rng: np.random.Generator) -> tuple[str, str] | None:
    """Ask for the number of objects, digits included."""
    return "How many objects are in the image?", str(len(scene.objects))


def _digit(scene: Scene, rng: np.random.Generator) -> tuple[str, str] | None:
    """Ask which digit is shown."""
    if not scene.digits:
        return None
    return "Which digit is in the image?", scene.digits[0].kind


def _choice(scene: Scene, rng: np.random.Generator) -> tuple[str, str] | None:
    """Ask a colour or a shape question with four lettered options."""
    by_color = rng.random() < 0.5
    made = (_color if by_color else _shape)(scene, rng)
    if made is None:
        return None
    text, answer = made
    wrong = [name for name in (COLOR_NAMES if by_color else SHAPES) if name != answer]
    options = [*(str(name) for name in rng.permutation(wrong)[:3]), answer]
    options = [str(name) for name in rng.permutation(options)]
    lines = "".join(f"\n{letter}. {name}" for letter, name in zip(LETTERS, options, strict=True))
    return f"{text}{lines}\nAnswer with the letter.", LETTERS[options.index(answer)]


QUESTION_KINDS: dict[str, float] = {
    "existence": 0.24,
    "color": 0.13,
    "shape": 0.13,
    "position": 0.15,
    "count": 0.08,
    "digit": 0.09,
    "choice": 0.18,
}
"""Question kinds and how often each is asked in training."""

_MAKERS: dict[str, Callable[[Scene, np.random.Generator], tuple[str, str] | None]] = {
    "existence": _existence,
    "color": _color,
    "shape": _shape,
    "position": _position,
    "count": _count,
    "digit": _digit,
    "choice": _choice,
}


def _pick(items: Sequence[Item], rng: np.random.Generator) -> Item:
    """Draw one element."""
    return items[int(rng.integers(len(items)))]


def _unique(
    candidates: Sequence[SceneObject],
    key: Callable[[SceneObject], str],
    rivals: Sequence[SceneObject],
    rng: np.random.Generator,
) -> SceneObject | None:
    """Draw one candidate whose key no other rival shares, or None."""
    keys = [key(item) for item in rivals]
    unique = [item for item in candidates if keys.count(key(item)) == 1]
    return _pick(unique, rng) if unique else None
