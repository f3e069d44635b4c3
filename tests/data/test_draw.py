import hashlib
import random

import pytest

from normprobe.data.data_set import draw_questions
from normprobe.data.question import Question


def no_load():
    raise AssertionError("a draw must not read rows")


QUESTIONS = [
    Question(benchmark, str(key), no_load) for benchmark in ("mmbench", "pope") for key in range(50)
]


def test_without_limit_everything_in_file_order():
    assert draw_questions(QUESTIONS, None, seed=1) == QUESTIONS


def test_draw_follows_the_published_rule():
    def rule(question):
        return hashlib.sha256(f"42|{question.benchmark}|{question.key}".encode()).hexdigest()

    assert draw_questions(QUESTIONS, 7, seed=42) == sorted(QUESTIONS, key=rule)[:7]


@pytest.mark.parametrize("shuffle", range(3))
def test_draw_does_not_depend_on_row_order(shuffle):
    shuffled = random.Random(shuffle).sample(QUESTIONS, len(QUESTIONS))
    assert draw_questions(shuffled, 20, seed=42) == draw_questions(QUESTIONS, 20, seed=42)


def test_larger_draw_extends_a_smaller_one_and_seeds_differ():
    assert draw_questions(QUESTIONS, 20, seed=42)[:5] == draw_questions(QUESTIONS, 5, seed=42)
    assert draw_questions(QUESTIONS, 20, seed=43) != draw_questions(QUESTIONS, 20, seed=42)
    assert len(draw_questions(QUESTIONS, 1000, seed=42)) == len(QUESTIONS)
