"""Every question has one answer, and it is the right one by an independent reading.

The check never looks at the scene objects: it reads the caption as a person would.
"""

import re

import numpy as np
import pytest

from experiments.specimen.questions import QUESTION_KINDS, Question, ask
from experiments.specimen.scenes import caption, sample_scene

pytestmark = pytest.mark.slow  # no behaviour of the package

PHRASE = re.compile(
    r"a (?P<color>\w+) (?P<digit>digit )?(?P<kind>\w+) at the (?P<place>[\w ]+?) [,.]"
)


def read_caption(text: str) -> list[dict[str, str]]:
    return [match.groupdict() for match in PHRASE.finditer(text)]


def answer_from_caption(question: str, text: str) -> str:
    """Answer a question from the caption; fail where more than one answer is possible."""
    things = read_caption(text)
    shapes = [thing for thing in things if not thing["digit"]]
    stem, *options = question.split("\n")
    if match := re.fullmatch(r"Is there a (\w+) (\w+) in the image\? Please .*", stem):
        pairs = [(thing["color"], thing["kind"]) for thing in shapes]
        return "yes" if match.groups() in pairs else "no"
    if stem == "How many objects are in the image?":
        return str(len(things))
    if stem == "Which digit is in the image?":
        (found,) = [thing["kind"] for thing in things if thing["digit"]]
    elif match := re.fullmatch(r"What color is the (\w+)\?", stem):
        (found,) = [thing["color"] for thing in shapes if thing["kind"] == match[1]]
    elif match := re.fullmatch(r"What shape is the (\w+) object\?", stem):
        (found,) = [thing["kind"] for thing in things if thing["color"] == match[1]]
    elif match := re.fullmatch(r"Where is the (\w+) (\w+)\?", stem):
        (found,) = [
            thing["place"] for thing in shapes if (thing["color"], thing["kind"]) == match.groups()
        ]
    else:
        pytest.fail(f"unknown question: {question}")
    if options:
        assert options[-1] == "Answer with the letter."
        letters = dict(line.split(". ")[::-1] for line in options[:-1])
        assert sorted(letters.values()) == ["A", "B", "C", "D"]
        return letters[found]
    return found


@pytest.mark.parametrize("kind", QUESTION_KINDS)
def test_answers_are_right(kind: str) -> None:
    rng = np.random.default_rng(1)
    asked = 0
    for _ in range(400):
        scene = sample_scene(rng)
        question = ask(scene, kind, rng)
        if question is not None:
            asked += 1
            assert question.kind == kind
            assert question.answer == answer_from_caption(question.text, caption(scene))
    assert asked > 150


def answers(kind: str, count: int = 1500) -> list[Question]:
    rng = np.random.default_rng(2)
    made = (ask(sample_scene(rng), kind, rng) for _ in range(count))
    return [question for question in made if question is not None]


@pytest.mark.parametrize(("kind", "options"), [("existence", 2), ("choice", 4), ("color", 6)])
def test_no_answer_is_favoured(kind: str, options: int) -> None:
    given = [question.answer for question in answers(kind)]
    shares = [given.count(answer) / len(given) for answer in set(given)]
    assert len(shares) == options
    assert max(abs(share - 1 / options) for share in shares) < 0.05
