"""What the VLM is trained on, and what it never sees."""

import json

import numpy as np
import pytest

from experiments.smollm.scenes import drawn, held_out, shown
from experiments.specimen.scenes import sample_scene
from normprobe.data.data_set import bundled_data_dir

pytestmark = pytest.mark.slow  # no behaviour of the package

TESTED = {shown(item.scene) for items in held_out().values() for item in items}


def test_held_out_questions_are_those_of_the_bundled_scenes() -> None:
    lines = (bundled_data_dir() / "scenes/scenes.jsonl").read_text(encoding="utf-8").splitlines()
    bundled = [(row["prompt"], row["answer"]) for row in map(json.loads, lines)]
    items = [item for of_kind in held_out().values() for item in of_kind]
    assert [(item.question.text, item.question.answer) for item in items] == bundled


def test_no_training_scene_shows_what_a_test_scene_shows() -> None:
    for stage in (0, 1, 2):
        scenes = [scene for step in range(130) for scene in drawn(0, stage, step)[0]]
        assert TESTED.isdisjoint(map(shown, scenes)), stage


def test_some_would_without_the_choice() -> None:
    rng = np.random.default_rng(0)
    assert not TESTED.isdisjoint(shown(sample_scene(rng)) for _ in range(3000))


def test_steps_seeds_and_stages_draw_their_own() -> None:
    assert drawn(1, 2, 3) == drawn(1, 2, 3)
    others = [drawn(2, 2, 3), drawn(1, 1, 3), drawn(1, 2, 4)]
    assert all(drawn(1, 2, 3)[0] != scenes for scenes, _ in others)
