"""Scenes are reproducible, and their pictures and captions show what they hold."""

import numpy as np
import pytest

from experiments.specimen.scenes import (
    COLORS,
    DIGITS,
    POSITIONS,
    SHAPES,
    Scene,
    SceneObject,
    caption,
    render,
    sample_scene,
)

pytestmark = pytest.mark.slow  # no behaviour of the package


def scenes(count: int, seed: int = 0) -> list[Scene]:
    rng = np.random.default_rng(seed)
    return [sample_scene(rng) for _ in range(count)]


@pytest.mark.parametrize("kind", [*SHAPES, *DIGITS])
@pytest.mark.parametrize("cell", range(9))
def test_object_is_drawn_in_its_cell_only(kind: str, cell: int) -> None:
    empty = render(Scene(objects=(), background=(0, 0, 0))).astype(int)
    picture = render(Scene((SceneObject(kind, "white", cell),), background=(0, 0, 0))).astype(int)
    lit = (picture - empty).sum(axis=2) > 300
    rows, columns = np.nonzero(lit)
    assert len(rows) >= 20
    # Cells are 24 pixels apart and 16 wide, so bands of 22 pixels hold one cell each.
    assert set(rows // 22) == {cell // 3}
    assert set(columns // 22) == {cell % 3}


@pytest.mark.parametrize("color", COLORS)
def test_object_has_its_color(color: str) -> None:
    picture = render(Scene((SceneObject("square", color, 4),)))
    middle = picture[28:37, 28:37].reshape(-1, 3).mean(axis=0)
    distances = {name: np.abs(middle - value).sum() for name, value in COLORS.items()}
    assert min(distances, key=lambda name: distances[name]) == color


def test_caption_names_every_object() -> None:
    scene = Scene((SceneObject("circle", "red", 0), SceneObject("7", "blue", 4)))
    assert caption(scene) == "a red circle at the top left , a blue digit 7 at the center ."
    for scene in scenes(50):
        text = caption(scene)
        assert text.count(" at the ") == len(scene.objects)
        assert all(f"at the {POSITIONS[item.cell]} " in text for item in scene.objects)
